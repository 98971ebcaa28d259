"""`python -m experiments NAME`: does the claim hold? The exit code answers."""

import argparse
import importlib
import sys
import traceback
from pathlib import Path

from .claims import Claim, exit_code, verdicts
from .options import SCALES, Options
from .processes import is_first, joined
from .talk import say

# In the order of --all: what takes minutes comes before what takes hours, and what
# takes the networks of `cifar10` comes after it.
EXPERIMENTS = {
    "timing": "figure 1: how long all singular values take, by three methods",
    "theorem": "theorem 6: the values are those of the full matrix",
    "pretrained": "appendix: the spectra of a pretrained residual network",
    "signals": "introduction: bounded values keep gradients from vanishing",
    "alternating": "section 3: one round of clip-and-crop is enough",
    "cifar10": "figure 2: clipping lowers the test error of a ResNet on CIFAR-10",
    "sweep": "figure 3: with clipping, more hyperparameters work, and the best better",
    "reshaped": "section 4.4: clipping the reshaped kernel instead",
    "generalization": "introduction: norms bound what a network gets wrong",
    "train_embedded": "ours: the network that comes with convspectra",
}
INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
DESCRIPTION = """\
Does what the paper says hold? Each experiment tries what one place in the paper claims,
and its exit code is the verdict. The claims are on top of experiments/NAME.py."""
EPILOG = """\
--scale small is what two CPU cores finish: minutes, and hours where networks are
trained. --scale paper is the setting as published, for a machine with a GPU and days:
the same code with --device cuda, and on several GPUs
  torchrun --nproc-per-node=4 -m experiments cifar10 --scale paper --device cuda ...

Results go to OUT/NAME: result.json with settings, seeds, versions and numbers, figures
as PNG and SVG. They are saved after every epoch or unit: the same command goes on where
a killed run was, on a CPU to the same numbers.

examples:
  python -m experiments --list
  python -m experiments theorem
  python -m experiments cifar10 --data ~/cifar10 --download --jobs 2
  python -m experiments sweep --data ~/cifar10 --scheduler tcp://head:8786
  python -m experiments --all --data ~/cifar10

exit codes: 0 every claim that this scale can decide holds, 1 one does not, 2 none is
decided, or it could not run. --all: 2 one could not run, else 1 a claim does not hold,
else 0. torchrun has codes of its own: OUT/NAME/summary.md has the verdicts."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line, and return its exit code, as the help states it."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.list:
        lines = (f"{name:<15} {what}" for name, what in EXPERIMENTS.items())
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    if args.all == bool(args.name):
        parser.error("name one experiment, or give --all; --list lists them.")
    names = list(EXPERIMENTS) if args.all else [args.name]
    options = Options(
        scale=args.scale,
        data=args.data and args.data.resolve(),  # workers of a cluster start elsewhere
        out=args.out.resolve(),
        device=args.device,
        jobs=args.jobs,
        scheduler=args.scheduler,
        networks=tuple(args.network),
    )
    try:
        found = [_tried(name, options, download=args.download) for name in names]
    except KeyboardInterrupt:
        return INTERRUPTED
    if None in found:
        return 2
    if not is_first():  # of the processes of a torchrun
        return 0
    return exit_code([c for claims in found if claims for c in claims])


def _tried(name: str, options: Options, *, download: bool) -> list[Claim] | None:
    """Run one experiment and print its verdicts; None if it could not run."""
    try:
        if download and is_first():  # the others wait for it in `joined`
            from .download import download_cifar10

            download_cifar10(options.data_folder())
        module = importlib.import_module(f".{name}", __package__)
        with joined(options.device):
            claims = module.run(options)
    except KeyboardInterrupt:
        say(f"{name}: interrupted; the same command goes on from here.")
        raise
    except (OSError, ValueError) as error:
        say(f"{name}: {error}")
        return None
    except ModuleNotFoundError as error:
        say(f"{name}: {error}. Run `pip install -e '.[experiments]'`.")
        return None
    except Exception:  # which must not end with the code of a claim that does not hold
        say(f"{name}: could not run.\n{traceback.format_exc()}")
        return None
    if is_first():
        sys.stdout.write(f"{name}, {options.scale}\n\n{verdicts(claims)}\n\n")
    return claims


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", nargs="?", choices=EXPERIMENTS, metavar="NAME", help="one of --list"
    )
    parser.add_argument("--list", action="store_true", help="list them, and do nothing")
    parser.add_argument("--all", action="store_true", help="run all of them in turn")
    parser.add_argument(
        "--scale", choices=SCALES, default="small", help="default small; see below"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="CIFAR-10: data_batch_1.bin to test_batch.bin, or mosaics (README.md)",
    )
    parser.add_argument(
        "--download",
        action="store_true",
        help="first fetch CIFAR-10 (162 MB) into that folder, where it is missing",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        default=Path("experiment-results"),
        help="for the results (default experiment-results)",
    )
    parser.add_argument(
        "--device", default="cpu", help="what torch trains on (default cpu)"
    )
    parser.add_argument(
        "--jobs",
        type=_positive,
        default=1,
        metavar="N",
        help="trainings at once, one thread each (default 1)",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of a Dask cluster that runs the trainings instead, one thread per worker",
    )
    parser.add_argument(
        "--network",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a network's file for `pretrained` and `alternating`; may be repeated",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
