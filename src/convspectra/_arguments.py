"""The options of the command, and what they say of the kernels in a file."""

import argparse
import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ._examine import Options
from ._geometry import BOUNDARIES
from ._kernels import read_table
from ._readers import SUFFIXES

CLOSENESS = "how close the ends of a norm are to be, where they can"
FORMATS = ", ".join(SUFFIXES)
GEOMETRY = (
    "grid",
    "stride",
    "dilation",
    "groups",
    "padding",
    "boundary",
    "transposed",
    "output_padding",
)
EPILOG = """\
examples:
  convspectra report
  convspectra report model.onnx --input 1x3x224x224 -o my-report
  convspectra report runs/*.safetensors --grid 32 --jobs 2
  convspectra diff before.pt after.pt --fail-above 1.1
  convspectra values kernels.npz --grid 32x32
  convspectra norm model.safetensors --key '*.conv1.weight' --grid 32 --boundary zeros
  convspectra norm model.safetensors --fail-above 1
  convspectra project kernel.npy --grid none --max-norm 1 -o bounded.npy

exit codes: 0 done, 1 what --fail-above asks does not hold, 2 could not run.
`convspectra COMMAND --help` has the options of a command."""

REPORT = """

Singular values and the certified norm of every layer: as a table, and in FOLDER as
report.html, a page to look at them, report.json, and figures. Without a file, a small
network that comes with the package. With several files, one result for each in
FOLDER/results, written when it is done: a run that was stopped goes on where it was.

The graph of an .onnx file gives every layer its geometry. Other files have weights
alone: --grid and the like hold for all of their kernels, and --geometry FILE.toml for
each by its name:

  ["layer1.*"]
  grid = [32, 32]
  stride = 2
  padding = 1
  boundary = "zeros"

Without a grid a norm is bounded for every input size, and if nothing else is known
either, for any stride, dilation, groups and zero padding. With a grid alone, layers are
taken to be circular, of stride 1 and in one group, as the options say by default."""

DIFF = """

For each layer that both files have: its norm in both, and by what factor it grew, the
most first. Exit code 1: some layer grew by more than --fail-above."""

BENCH = """

The layers of the paper's figure 1 and of ResNet-18 and ResNet-50, with random float32
kernels, by convspectra, by the paper's lines in NumPy, torch, JAX and TensorFlow, and
by the full matrix, Gram iteration and power iteration. Ratios are their seconds over
ours. What fails its check is not timed. A run that was stopped goes on where it was,
if nothing has changed. Exit code 1: an answer of ours has failed its check."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="convspectra",
        description="What a convolutional layer really does to the size of its input.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=version("convspectra"))
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, text: str, *examples: str, more: str = ""
    ) -> argparse.ArgumentParser:
        lines = "\n".join(f"  convspectra {name} {example}" for example in examples)
        return commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + "." + more,
            epilog=f"examples:\n{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    report = add(
        "report",
        "every layer of a trained network: table, page, figures",
        "",
        "model.onnx --input 1x3x224x224",
        "model.safetensors --grid 32 --json",
        "weights.pth --geometry layers.toml -o my-report",
        "runs/*.safetensors --grid 32 --jobs 2",
        more=REPORT,
    )
    report.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help=f"{FORMATS}, or several"
    )
    _add_geometry(report, grid=_sizes_or_none)
    _add_folding(report)
    _add_report(report)

    diff = add(
        "diff",
        "which layers grew from one checkpoint to another, and by how much",
        "before.onnx after.onnx",
        "step100.safetensors step200.safetensors --grid 32 --fail-above 1.1",
        more=DIFF,
    )
    diff.add_argument("before", type=Path, metavar="A", help=FORMATS)
    diff.add_argument("after", type=Path, metavar="B", help="another, of any format")
    _add_geometry(diff, grid=_sizes_or_none)
    _add_folding(diff)
    diff.add_argument(
        "--fail-above",
        type=_level,
        metavar="FACTOR",
        help="exit 1 if some norm may have grown by more than this factor",
    )

    values = add(
        "values",
        "every singular value of each kernel, on a torus",
        "kernels.npz --grid 32x32",
        "kernel.npy --grid 28 --stride 2 --json > values.json",
        "model.safetensors --grid 32 --key 'layer1.*' -o values.npz",
    )
    _add_file(values, grid=_sizes)
    _add_folding(values)
    values.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="OUT.npz",
        help="save the values by name, each (*frequencies, groups, count)",
    )

    norm = add(
        "norm",
        "the operator norm of each kernel, between two certified ends",
        "kernel.npy",
        "kernel.npy --grid 32x32 --boundary zeros --padding 1",
        "model.safetensors --grid 32 --fail-above 1.0",
    )
    _add_file(norm, grid=_sizes_or_none)
    _add_folding(norm)
    norm.add_argument(
        "--fail-above",
        type=_level,
        metavar="NORM",
        help="exit 1 if the upper end of some kernel is above",
    )

    clip = add(
        "clip",
        "clip the singular values and crop to the kernel: fast, ends near the bound",
        "kernel.npy --grid 32x32 --max-norm 1 -o clipped.npy",
        "model.safetensors --grid 32 --max-norm 1 --rounds 10 -o clipped.safetensors",
    )
    _add_file(clip, grid=_sizes)
    _add_bound(clip)
    clip.add_argument(
        "--min-norm",
        type=float,
        default=0.0,
        metavar="NORM",
        help="raise smaller values to this (default 0)",
    )
    clip.add_argument(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="how often to clip and crop in turn (default 1)",
    )

    project = add(
        "project",
        "the nearest kernel whose norm is certainly within a bound",
        "kernel.npy --grid 32x32 --max-norm 1 -o bounded.npy",
        "model.safetensors --grid none --max-norm 1 -o bounded.safetensors",
    )
    closeness = "how close the squared distance is to be to the least one"
    _add_file(project, grid=_sizes_or_none, rtol=1e-3, closeness=closeness)
    _add_bound(project)

    compare = add(
        "compare",
        "the certified norm beside what other methods say of it",
        "kernel.npy --grid 32x32",
        "model.safetensors --grid 32 --boundary zeros --json",
    )
    _add_file(compare, grid=_sizes)
    _add_folding(compare)

    bench = add(
        "bench",
        "how fast this is beside what others do, every answer checked first",
        "",
        "--jobs norm -o norms",
        "--full -o benchmarks/mine",
        more=BENCH,
    )
    _add_bench(bench)
    return top


def _add_bench(to: argparse.ArgumentParser) -> None:
    size = to.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_true", help="a few cases, two minutes (the default)"
    )
    size.add_argument(
        "--full", action="store_true", help="all cases, about an hour on two cores"
    )
    size.add_argument(
        "--training",
        action="store_true",
        help="what SpectralClip costs while a ResNet trains, beside the paper's clip",
    )
    to.add_argument(
        "--jobs",
        default="values,norm,clip",
        metavar="JOBS",
        help="some of values, norm and clip, joined by commas (default all)",
    )
    to.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="FOLDER",
        help="for results.json, results.md, figure.png (default convspectra-bench)",
        default=Path("convspectra-bench"),
    )
    to.add_argument(
        "--fresh", action="store_true", help="forget the results in FOLDER, start anew"
    )
    to.add_argument("--json", action="store_true", help="print JSON, not a table")


def _add_report(to: argparse.ArgumentParser) -> None:
    to.add_argument("--csv", action="store_true", help="print CSV, not a table")
    to.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="FOLDER",
        help=(
            "for the page, the figures and the results (default convspectra-report; "
            "of one file, with --json or --csv, nothing is written unless this is said)"
        ),
    )
    to.add_argument(
        "--figures",
        choices=("png", "pdf", "svg"),
        default="png",
        help="the format of the figures (default png)",
    )
    many = to.add_argument_group("several files")
    many.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="files that are worked on at the same time (default 1)",
    )
    many.add_argument(
        "--backend",
        choices=("loky", "dask", "ray"),
        default="loky",
        help="processes of this machine by joblib (default), or a cluster",
    )
    many.add_argument(
        "--scheduler", metavar="ADDRESS", help="of Dask, like tcp://10.0.0.1:8786"
    )
    many.add_argument(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="every Nth file, from the Ith on: one of N jobs that share the work",
    )


def _add_folding(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--fold",
        action="store_true",
        help="take a layer together with the BatchNorm after it (.onnx)",
    )


def _add_file(
    to: argparse.ArgumentParser,
    *,
    grid: Callable[[str], Any],
    rtol: float = 1e-4,
    closeness: str = CLOSENESS,
) -> None:
    to.add_argument("file", type=Path, metavar="FILE", help=FORMATS)
    _add_geometry(to, grid=grid, rtol=rtol, closeness=closeness)


def _add_geometry(
    to: argparse.ArgumentParser,
    *,
    grid: Callable[[str], Any],
    rtol: float = 1e-4,
    closeness: str = CLOSENESS,
) -> None:
    to.add_argument(
        "--key",
        action="append",
        metavar="NAME",
        help=(
            "a kernel to take, or a pattern like '*.conv*'; may be repeated (default: "
            "every floating-point array with at least 3 axes)"
        ),
    )
    to.add_argument(
        "--input",
        dest="sizes",
        type=_all_sizes,
        metavar="SIZES",
        help="of the network's input, 1x3x224x224, for a file with a graph (.onnx)",
    )
    to.add_argument(
        "--geometry",
        dest="table",
        type=Path,
        metavar="FILE.toml",
        help="geometries by the names of kernels, or patterns for names",
    )
    meaning = "the input size of the layers, 32x32 or 32 for every axis"
    if grid is _sizes_or_none:
        meaning += ", or none for every input size at once (default)"
    to.add_argument("--grid", type=grid, metavar="SIZE", help=meaning)
    for name, least in (("stride", 1), ("dilation", 1)):
        to.add_argument(
            f"--{name}",
            type=_sizes,
            metavar="N",
            help=f"2, or 2x1 for one per axis (default {least})",
        )
    to.add_argument(
        "--groups",
        type=int,
        metavar="N",
        help="into which the channels are divided (default 1)",
    )
    to.add_argument(
        "--padding",
        type=_padding,
        metavar="P",
        help=(
            "same, valid, 1, 1x2, or before:after on each axis, 0:1x0:1 (default same)"
        ),
    )
    to.add_argument(
        "--boundary",
        choices=BOUNDARIES,
        help="what the layer reads beyond its input (default circular)",
    )
    to.add_argument(
        "--transposed",
        action="store_true",
        default=None,
        help="the layer is a transposed convolution, its kernel (in, out, *kernel)",
    )
    to.add_argument(
        "--output-padding",
        type=_sizes,
        metavar="N",
        help="further outputs at the end of a transposed layer (default 0)",
    )
    to.add_argument(
        "--layout",
        choices=("oihw", "hwio"),
        help=(
            "of arrays: oihw, (out, in, *kernel), as in PyTorch; hwio, (*kernel, in, "
            "out), as in Keras, TensorFlow and Flax (default: what the file says, else "
            "oihw)"
        ),
    )
    to.add_argument(
        "--rtol",
        type=float,
        default=rtol,
        metavar="R",
        help=f"{closeness} (default {rtol:g})",
    )
    to.add_argument("--json", action="store_true", help="print JSON, not a table")


def _add_bound(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--max-norm",
        type=float,
        required=True,
        metavar="NORM",
        help="the bound, a positive number",
    )
    to.add_argument(
        "-o",
        dest="output",
        type=Path,
        required=True,
        metavar="OUT",
        help="a copy of FILE with the new kernels; all else in it is kept",
    )
    to.add_argument(
        "--linear",
        action="store_true",
        help="bound matrices of linear layers, too (.onnx, .keras, .h5)",
    )


def options_of(args: argparse.Namespace) -> Options:
    """Return what the options say of the kernels in a file."""
    given = {name: getattr(args, name) for name in GEOMETRY}
    return Options(
        keys=args.key,
        geometry={name: value for name, value in given.items() if value is not None},
        table={} if args.table is None else read_table(args.table),
        layout=args.layout,
        sizes=args.sizes,
        fold=getattr(args, "fold", False),
        rtol=args.rtol,
    )


def _sizes(text: str) -> int | tuple[int, ...]:
    """32 as a number for every axis, 32x16 as a tuple."""
    try:
        sizes = [int(part) for part in text.split("x")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a whole number, or one per axis like 32x16, got {text!r}"
        ) from None
    return tuple(sizes) if len(sizes) > 1 else sizes[0]


def _all_sizes(text: str) -> tuple[int, ...]:
    sizes = _sizes(text)
    return sizes if isinstance(sizes, tuple) else (sizes,)


def _shard(text: str) -> tuple[int, int]:
    """3/16 as a pair, the first within the second."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 0 < int(number) <= int(count)):
        raise argparse.ArgumentTypeError(
            f"must be like 3/16, the third of sixteen, got {text!r}"
        )
    return int(number), int(count)


def _sizes_or_none(text: str) -> int | tuple[int, ...] | None:
    return None if text == "none" else _sizes(text)


def _padding(text: str) -> Any:
    if text in ("same", "valid"):
        return text
    try:
        sides = [[int(n) for n in part.split(":")] for part in text.split("x")]
    except ValueError:
        sides = [[]]
    if any(len(pair) not in (1, 2) for pair in sides):
        raise argparse.ArgumentTypeError(
            "must be same, valid, a number, one per axis like 1x2, or before:after on "
            f"each axis like 0:1x0:1, got {text!r}"
        )
    if len(sides) == 1 and len(sides[0]) == 1:
        return sides[0][0]
    return tuple((pair[0], pair[-1]) for pair in sides)


def _level(text: str) -> float:
    try:
        level = float(text)
    except ValueError:
        level = math.nan
    if not math.isfinite(level):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text!r}")
    return level
