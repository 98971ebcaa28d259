"""The options that commands share, which select kernels and state geometries."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._base import positive
from .._checkpoint import suffixes
from .._checkpoint.select import FIELDS, Options, read_table
from .._layer.boundary import BOUNDARIES
from .._report.affordable import SECONDS as VALUES_SECONDS
from .._report.backends import BACKENDS
from .._route import CLOSING_SECONDS, SECONDS
from .outputs import FIGURE_FORMATS

CLOSENESS = "relative gap between the bounds of a norm, where it can be reached"
FILE = f"{suffixes()}, or a folder with one of these"
WITH_GRAPH = suffixes(lambda format: format.graph)
# Files that say what their layers are: which are matrices, and with which geometry.
WITH_GEOMETRY = suffixes(lambda format: format.matrices)


def add_report(to: argparse.ArgumentParser) -> None:
    """What a report is on, what it leaves behind, who works on several files."""
    to.add_argument(
        "--skip-pointwise",
        action="store_true",
        help="leave out kernels with one tap: 1x1 convolutions and matrices",
    )
    to.add_argument(
        "--quick",
        action="store_true",
        help="a first look: norm bounds to 1 %% for every input size, no values",
    )
    to.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    to.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="FOLDER",
        help=(
            "for the page, the figures and the results (default convspectra-report; "
            "for one file with --json or --csv, nothing is written without this "
            "option); files of an earlier report are replaced, others never"
        ),
    )
    to.add_argument(
        "--figures",
        choices=FIGURE_FORMATS,
        default=FIGURE_FORMATS[0],
        help="the format of the figures (default png)",
    )
    many = to.add_argument_group("several files")
    many.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="number of files to process at the same time (default 1)",
    )
    many.add_argument(
        "--backend",
        choices=BACKENDS,
        default=BACKENDS[0],
        help="processes on this machine, by joblib (default), or a cluster",
    )
    many.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="address of a cluster: tcp://10.0.0.1:8786 (Dask), 10.0.0.1:6379 (Ray)",
    )
    many.add_argument(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="take every Nth file, starting with the Ith: one of N jobs",
    )


def add_budget(to: argparse.ArgumentParser) -> None:
    """How long a norm may take."""
    to.add_argument(
        "--budget",
        type=_seconds,
        metavar="SECONDS",
        help=(
            "predicted time that the norm of a layer may take: the closest bounds "
            f"within it are shown (default: {CLOSING_SECONDS:g} to close a gap, "
            f"{SECONDS:g} in all); in a report, also that of all values of a file "
            f"(default {VALUES_SECONDS:g})"
        ),
    )


def add_folding(to: argparse.ArgumentParser) -> None:
    """Whether a BatchNorm belongs to the layer before it."""
    to.add_argument(
        "--fold",
        action="store_true",
        help=f"fold each BatchNorm into the layer before it ({WITH_GRAPH})",
    )


def add_file(
    to: argparse.ArgumentParser,
    *,
    grid: Callable[[str], Any],
    rtol: float = 1e-4,
    closeness: str = CLOSENESS,
) -> None:
    """A file, and what it leaves to say of its kernels."""
    to.add_argument("file", type=Path, metavar="FILE", help=FILE)
    add_geometry(to, grid=grid, rtol=rtol, closeness=closeness)


def add_geometry(
    to: argparse.ArgumentParser,
    *,
    grid: Callable[[str], Any],
    rtol: float = 1e-4,
    closeness: str = CLOSENESS,
) -> None:
    """Which kernels, and all that a file may leave to say of them."""
    to.add_argument(
        "--key",
        action="append",
        metavar="NAME",
        help=(
            "a kernel to take, or a pattern like '*.conv*'; may be repeated (default: "
            "every floating-point array with at least 3 axes)"
        ),
    )
    add_input(to, WITH_GRAPH)
    to.add_argument(
        "--geometry",
        dest="table",
        type=Path,
        metavar="FILE.toml",
        help="a table of geometries by kernel names or patterns",
    )
    to.add_argument(
        "--like",
        type=Path,
        metavar="FILE",
        help=(
            "another file of the same network, for the geometry that this one does not "
            f"state: {WITH_GEOMETRY}, or a .json configuration of Keras, transformers "
            "or timm"
        ),
    )
    meaning = "the input size of the layers, 32x32, or 32 for every axis"
    if grid is sizes_or_none:
        meaning += ", or none for every input size at once (default)"
    to.add_argument("--grid", type=grid, metavar="SIZE", help=meaning)
    for name, least in (("stride", 1), ("dilation", 1)):
        to.add_argument(
            f"--{name}",
            type=sizes,
            metavar="N",
            help=f"2, or 2x1 for one per axis (default {least})",
        )
    to.add_argument(
        "--groups",
        type=int,
        metavar="N",
        help="number of groups of channels (default 1)",
    )
    to.add_argument(
        "--padding",
        type=_padding,
        metavar="P",
        help=(
            "same, valid, 1, 1x2, or before:after for each axis, 0:1x0:1 (default same)"
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
        help="the layer is a transposed convolution with a kernel (in, out, *kernel)",
    )
    to.add_argument(
        "--output-padding",
        type=sizes,
        metavar="N",
        help="additional output sites at the end of a transposed layer (default 0)",
    )
    to.add_argument(
        "--layout",
        choices=("oihw", "hwio"),
        help=(
            "the layout of arrays: oihw, (out, in, *kernel), as in PyTorch; hwio, "
            "(*kernel, in, out), as in Keras, TensorFlow and Flax (default: the file's "
            "own, else oihw)"
        ),
    )
    to.add_argument(
        "--linear",
        action="store_true",
        help=(
            "take arrays with 2 axes for matrices of linear layers, where the format "
            f"does not say what they are (these do: {WITH_GEOMETRY}); clip and project "
            "change linear layers only with this option"
        ),
    )
    add_output(to, rtol, closeness)


def add_input(to: argparse.ArgumentParser, where: str) -> None:
    """The sizes of a network's input, which its graph may leave open."""
    to.add_argument(
        "--input",
        dest="sizes",
        type=_all_sizes,
        metavar="SIZES",
        help=(
            "the network's input shape, like 1x3x224x224, for a file with a graph "
            f"({where})"
        ),
    )


def add_output(to: argparse.ArgumentParser, rtol: float, closeness: str) -> None:
    """How close numbers are, and how they are printed."""
    to.add_argument(
        "--rtol",
        type=float,
        default=rtol,
        metavar="R",
        help=f"{closeness} (default {rtol:g})",
    )
    to.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_bound(to: argparse.ArgumentParser) -> None:
    """The bound, and where the changed copy goes."""
    to.add_argument(
        "--max-norm",
        type=float,
        required=True,
        metavar="NORM",
        help="the bound on the norm, a positive number",
    )
    to.add_argument(
        "-o",
        dest="output",
        type=Path,
        required=True,
        metavar="OUT",
        help=(
            "the copy of FILE with the new kernels and everything else unchanged; it "
            "replaces an older one, but never FILE itself"
        ),
    )


def options_of(args: argparse.Namespace) -> Options:
    """Return what the options say of the kernels in a file."""
    given = {name: getattr(args, name) for name in FIELDS}
    return Options(
        keys=args.key,
        geometry={name: value for name, value in given.items() if value is not None},
        table={} if args.table is None else read_table(args.table),
        like=args.like,
        layout=args.layout,
        sizes=args.sizes,
        fold=getattr(args, "fold", False),
        linear=args.linear,
        skip_pointwise=getattr(args, "skip_pointwise", False),
        rtol=args.rtol,
        quick=getattr(args, "quick", False),
        budget=getattr(args, "budget", None),
    )


def sizes(text: str) -> int | tuple[int, ...]:
    """32 as a number for every axis, 32x16 as a tuple."""
    try:
        found = [int(part) for part in text.split("x")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a whole number, or one per axis like 32x16, got {text!r}"
        ) from None
    return tuple(found) if len(found) > 1 else found[0]


def _all_sizes(text: str) -> tuple[int, ...]:
    found = sizes(text)
    return found if isinstance(found, tuple) else (found,)


def _shard(text: str) -> tuple[int, int]:
    """3/16 as a pair, the first within the second."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 0 < int(number) <= int(count)):
        raise argparse.ArgumentTypeError(
            f"must be like 3/16, the third of sixteen, got {text!r}"
        )
    return int(number), int(count)


def sizes_or_none(text: str) -> int | tuple[int, ...] | None:
    """As `sizes`, and "none" for every size."""
    return None if text == "none" else sizes(text)


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


def _seconds(text: str) -> float:
    """A positive number of seconds."""
    try:
        return positive("--budget", float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a positive number of seconds, got {text!r}"
        ) from None


def level(text: str) -> float:
    """A finite number to compare norms with."""
    try:
        level = float(text)
    except ValueError:
        level = math.nan
    if not math.isfinite(level):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text!r}")
    return level
