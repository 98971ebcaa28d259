"""The options that commands share, which select kernels and state geometries."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._checkpoint import suffixes
from .._checkpoint.select import FIELDS, Options, read_table
from .._layer.boundary import BOUNDARIES
from .._report.affordable import SECONDS as VALUES_SECONDS
from .._report.backends import BACKENDS
from .._route.norm import CLOSING_SECONDS, SECONDS
from .option_types import (
    all_sizes,
    count,
    padding,
    seconds,
    shard,
    sizes,
    sizes_or_none,
)
from .outputs import FIGURE_FORMATS

RTOL_HELP = "relative gap between the bounds of a norm, where it can be reached"
FILE = f"{suffixes()}, or a folder with one of these"
WITH_GRAPH = suffixes(lambda format: format.graph)
# Files that say what their layers are: which are matrices, and with which geometry.
WITH_GEOMETRY = suffixes(lambda format: format.matrices)


def add_report(to: argparse.ArgumentParser) -> None:
    """What a report is on, and what it leaves behind."""
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


def add_workers(to: argparse.ArgumentParser) -> None:
    """Who works on several files."""
    many = to.add_argument_group("several files")
    many.add_argument(
        "--jobs",
        type=count,
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
        type=shard,
        metavar="I/N",
        help="take every Nth file, starting with the Ith: one of N jobs",
    )


def add_budget(to: argparse.ArgumentParser) -> None:
    """How long a norm may take."""
    to.add_argument(
        "--budget",
        type=seconds,
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
    rtol_help: str = RTOL_HELP,
) -> None:
    """A file, what it leaves to say of its kernels, and what is printed of them."""
    to.add_argument("file", type=Path, metavar="FILE", help=FILE)
    add_geometry(to, grid=grid)
    add_output(to, rtol=rtol, rtol_help=rtol_help)


def add_geometry(to: argparse.ArgumentParser, *, grid: Callable[[str], Any]) -> None:
    """Which kernels, and all that a file may leave to say of them."""
    _add_key(to)
    add_input(to, WITH_GRAPH)
    _add_descriptions(to)
    _add_sizes(to, grid)
    _add_borders(to)
    _add_arrays(to)


def _add_key(to: argparse.ArgumentParser) -> None:
    """Which kernels are meant."""
    to.add_argument(
        "--key",
        action="append",
        metavar="NAME",
        help=(
            "a kernel to take, or a pattern like '*.conv*'; may be repeated (default: "
            "every floating-point array with at least 3 axes)"
        ),
    )


def _add_descriptions(to: argparse.ArgumentParser) -> None:
    """Other files that state geometries."""
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


def _add_sizes(to: argparse.ArgumentParser, grid: Callable[[str], Any]) -> None:
    """Sizes and steps of a layer, and its groups."""
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


def _add_borders(to: argparse.ArgumentParser) -> None:
    """What a layer reads beyond its input, and which outputs it has at the end."""
    to.add_argument(
        "--padding",
        type=padding,
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


def _add_arrays(to: argparse.ArgumentParser) -> None:
    """What the axes of arrays are."""
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


def add_input(to: argparse.ArgumentParser, where: str) -> None:
    """The sizes of a network's input, which its graph may leave open."""
    to.add_argument(
        "--input",
        dest="sizes",
        type=all_sizes,
        metavar="SIZES",
        help=(
            "the network's input shape, like 1x3x224x224, for a file with a graph "
            f"({where})"
        ),
    )


def add_output(
    to: argparse.ArgumentParser,
    *,
    rtol: float = 1e-4,
    rtol_help: str = RTOL_HELP,
    csv: bool = False,
) -> None:
    """How close numbers are, and how they are printed: as CSV too, where that is so."""
    to.add_argument(
        "--rtol",
        type=float,
        default=rtol,
        metavar="R",
        help=f"{rtol_help} (default {rtol:g})",
    )
    formats = {"--json": "print JSON instead of a table"}
    if csv:
        formats["--csv"] = "print CSV instead of a table"
    one_of = to.add_mutually_exclusive_group()
    for name, meaning in formats.items():
        one_of.add_argument(name, action="store_true", help=meaning)


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
