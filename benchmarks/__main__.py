"""`python -m benchmarks`: data on stdout, talk on stderr, and an exit code."""

import argparse
import json
import sys
from pathlib import Path

from .contenders import JOBS
from .page import MEANS, NETWORKS, RATIOS, REAL_LAYERS, REAL_MEANS, TRAINING, say, table
from .run import run

DESCRIPTION = """\
How fast convspectra is beside what others do, every answer checked before it is timed.

The layers of the paper's figure 1 and of ResNet-18 and ResNet-50, with random float32
kernels, by convspectra, by the paper's lines in NumPy, torch, JAX and TensorFlow, and
by the full matrix, Gram iteration and power iteration. Ratios are their seconds over
ours. An answer that fails its check is not timed. A run that was stopped goes on where
it was, if nothing has changed."""
EPILOG = """\
examples:
  python -m benchmarks
  python -m benchmarks --jobs norm -o norms
  python -m benchmarks --full -o benchmarks/records/mine
  python -m benchmarks --training -o training
  OMP_NUM_THREADS=1 python -m benchmarks --ways 64 16 -o ways
  python -m benchmarks --real-layers -o real
  python -m benchmarks --networks my-networks -o networks

exit codes: 0 done, 1 an answer of convspectra failed its check or a network took more
than 60 s or 1 GB, 2 could not run."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line, and return its exit code, as the help states it."""
    args = _parser().parse_args(argv)
    try:
        if args.ways is not None:
            return _try_ways(args)
        if args.training:
            return _train(args)
        if args.networks is not None:
            return _networks(args)
        return _real_layers(args) if args.real_layers else _compare(args)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here.")
        return 130
    except (OSError, ValueError) as error:
        say(str(error))
    except ModuleNotFoundError as error:
        say(f"{error}. convspectra[all] brings every library.")
    return 2


def _compare(args: argparse.Namespace) -> int:
    summary, right = run(args.output, full=args.full, jobs=args.jobs, fresh=args.fresh)
    if args.json:
        sys.stdout.write(json.dumps(summary, indent=1) + "\n")
    else:
        tables = table(RATIOS, summary["ratios"]), table(MEANS, summary["means"])
        sys.stdout.write("\n\n".join(tables) + "\n")
    say(f"results.json, results.md and figure.png are in {args.output}.")
    return int(not right)


def _train(args: argparse.Namespace) -> int:
    from .training import training

    found = training(args.output)
    rows = [found, *found["others"]]
    if args.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        shown = [row | row["median_seconds"] for row in rows]
        sys.stdout.write(table(TRAINING, shown) + "\n")
    say(f"training.json is in {args.output}.")
    return int(not all(row["right"] for row in rows))


def _real_layers(args: argparse.Namespace) -> int:
    from .real_layers import means_of, measure_real_layers, rows_of  # with torch

    document = measure_real_layers(args.output)
    rows = rows_of(document)
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        tables = table(REAL_LAYERS, rows), table(REAL_MEANS, means_of(rows))
        sys.stdout.write("\n\n".join(tables) + "\n")
    say(f"real_layers.json is in {args.output}.")
    return int(not all(row["right"] for row in rows))


def _networks(args: argparse.Namespace) -> int:
    from .networks import measure_networks, rows_of  # which need POSIX

    rows = rows_of(measure_networks(args.networks, args.output))
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        sys.stdout.write(table(NETWORKS, rows) + "\n")
    say(f"networks.json is in {args.output}.")
    return int(any(row["over"] for row in rows))


def _try_ways(args: argparse.Namespace) -> int:
    from .ways import multiples, ways  # which needs torch

    found = {
        width: multiples(
            ways(width, args.output / f"ways-{width}.json", fresh=args.fresh)
        )
        for width in args.ways
    }
    rows = [
        {"way": way, **{f"width_{w}": f"{found[w][way]:.3f}" for w in found}}
        for way in found[args.ways[0]]
    ]
    columns = " ".join(["way", *(f"width_{width}" for width in found)])
    text = json.dumps(found, indent=1) if args.json else table(columns, rows)
    sys.stdout.write(text + "\n")
    say(f"ways-WIDTH.json are in {args.output}.")
    return 0


def _jobs(text: str) -> list[str]:
    jobs = text.split(",")
    if any(job not in JOBS for job in jobs):
        raise argparse.ArgumentTypeError(
            f"must be some of {', '.join(JOBS)}, joined by commas, got {text!r}."
        )
    return jobs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--quick", action="store_true", help="a few cases, two minutes (the default)"
    )
    what.add_argument(
        "--full", action="store_true", help="all cases, an hour and a half on two cores"
    )
    what.add_argument(
        "--training",
        action="store_true",
        help="what a pass costs while a ResNet trains, in PyTorch, Keras and Flax",
    )
    what.add_argument(
        "--real-layers",
        action="store_true",
        help="norms of layers with zero padding, on the grids that networks have",
    )
    what.add_argument(
        "--networks",
        type=Path,
        metavar="FOLDER",
        help="what `convspectra report` says of each network in a folder, and takes",
    )
    what.add_argument(
        "--ways",
        type=int,
        nargs="+",
        metavar="WIDTH",
        help="what each way to bound a ResNet-18 of these widths costs while it trains",
    )
    parser.add_argument(
        "--jobs",
        type=_jobs,
        default=list(JOBS),
        metavar="JOBS",
        help="some of values, norm and clip, joined by commas (default all)",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="FOLDER",
        default=Path("benchmark-results"),
        help="for results.json, results.md, figure.png (default benchmark-results)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="forget the results in FOLDER, start anew"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, not tables")
    return parser


if __name__ == "__main__":
    sys.exit(main())
