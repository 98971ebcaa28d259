"""The commands, their arguments and their help."""

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .option_types import finite_number, sizes, sizes_or_none
from .options import (
    FILE,
    add_bound,
    add_budget,
    add_file,
    add_folding,
    add_geometry,
    add_input,
    add_output,
    add_report,
    add_workers,
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
  convspectra lipschitz model.onnx

exit codes: 0 done, 1 the check of --fail-above failed, 2 could not run.
`convspectra COMMAND --help` lists the options of a command."""

REPORT = """

Prints the singular values and the certified norm of every layer as a table, and writes
a page, report.html, its data, report.json, and figures to FOLDER. Without a file, it
analyses a small network that comes with the package. With several files, it writes a
result for each to FOLDER/results as soon as it is done; an interrupted run resumes
where it stopped.

A graph (.onnx, .pt2, .tflite, .pb) contains the geometry of every layer, and so does,
mostly, a whole Keras model. For other files, --grid and the like apply to all kernels,
and --geometry FILE.toml states the geometry by name:

  ["layer1.*"]
  grid = [32, 32]
  stride = 2
  padding = 1
  boundary = "zeros"

What nobody states is unknown. The upper bound of a norm then holds for any input size,
stride, dilation, groups and zero padding; there is a lower bound only where it does so,
too. --grid, --stride, --groups and --boundary together state a geometry."""

DIFF = """

Shows the norm in both files of every layer that they share, and the factor by which it
grew, largest growth first. Exit code 1: some norm may have grown by more than
--fail-above."""

LIPSCHITZ = """

Prints every part that changes the size of what goes through it, with a certified bound
on its own Lipschitz constant and on that of all parts up to it: layers with the
BatchNorm after them, slopes of functions, sums and the like. The bound of the network,
and the input sizes that it holds for, are on stderr. It grows with depth, and is
usually far above the constant itself. A part without a bound is named, and then the
network has none either. An open batch is one example; --input states other sizes that
the file leaves open. Without a file, it takes a small network that comes with the
package. `convspectra.torch.lipschitz` has a lower bound, too."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="convspectra",
        description="Singular values and certified norms of convolutional layers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=version("convspectra"))
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_report(commands)
    _add_diff(commands)
    _add_values(commands)
    _add_norm(commands)
    _add_clip(commands)
    _add_project(commands)
    _add_compare(commands)
    _add_lipschitz(commands)
    return top


def _add(
    commands: Any, name: str, text: str, *examples: str, more: str = ""
) -> argparse.ArgumentParser:
    """Add a command with its help and examples; return its parser."""
    calls = (f"convspectra {name} {example}".rstrip() for example in examples)
    lines = "\n".join(f"  {call}" for call in calls)
    return commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + "." + more,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_report(commands: Any) -> None:
    report = _add(
        commands,
        "report",
        "analyse every layer of a trained network: table, page, figures",
        "",
        "model.onnx --input 1x3x224x224",
        "model.safetensors --grid 32 --json",
        "weights.pth --geometry layers.toml -o my-report",
        "runs/*.safetensors --grid 32 --jobs 2",
        more=REPORT,
    )
    report.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help=f"{FILE}; or several"
    )
    add_geometry(report, grid=sizes_or_none)
    add_output(report, csv=True)
    add_budget(report)
    add_folding(report)
    add_report(report)
    add_workers(report)


def _add_diff(commands: Any) -> None:
    diff = _add(
        commands,
        "diff",
        "which layers grew from one checkpoint to another, and by how much",
        "before.onnx after.onnx",
        "step100.safetensors step200.safetensors --grid 32 --fail-above 1.1",
        more=DIFF,
    )
    diff.add_argument("before", type=Path, metavar="A", help=FILE)
    diff.add_argument(
        "after", type=Path, metavar="B", help="another file, of any of these formats"
    )
    add_geometry(diff, grid=sizes_or_none)
    add_output(diff)
    add_budget(diff)
    add_folding(diff)
    diff.add_argument(
        "--fail-above",
        type=finite_number,
        metavar="FACTOR",
        help="exit with 1 if some norm may have grown by more than this factor",
    )


def _add_values(commands: Any) -> None:
    values = _add(
        commands,
        "values",
        "all singular values of each kernel, with a circular boundary",
        "kernels.npz --grid 32x32",
        "kernel.npy --grid 28 --stride 2 --json > values.json",
        "model.safetensors --grid 32 --key 'layer1.*' -o values.npz",
    )
    add_file(values, grid=sizes)
    add_budget(values)
    add_folding(values)
    values.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="OUT.npz",
        help="save the values by name, as arrays (*frequencies, groups, count)",
    )


def _add_norm(commands: Any) -> None:
    norm = _add(
        commands,
        "norm",
        "a lower and a certified upper bound on the operator norm of each kernel",
        "kernel.npy",
        "kernel.npy --grid 32x32 --boundary zeros --padding 1",
        "model.safetensors --grid 32 --fail-above 1.0",
    )
    add_file(norm, grid=sizes_or_none)
    add_budget(norm)
    add_folding(norm)
    norm.add_argument(
        "--fail-above",
        type=finite_number,
        metavar="NORM",
        help="exit with 1 if the upper bound of some kernel exceeds this",
    )


def _add_clip(commands: Any) -> None:
    clip = _add(
        commands,
        "clip",
        "clip the singular values and crop to the kernel: fast, comes near the bound",
        "kernel.npy --grid 32x32 --max-norm 1 -o clipped.npy",
        "model.safetensors --grid 32 --max-norm 1 --rounds 10 -o clipped.safetensors",
    )
    add_file(clip, grid=sizes_or_none)
    add_budget(clip)
    add_bound(clip)
    clip.add_argument(
        "--min-norm",
        type=float,
        default=0.0,
        metavar="NORM",
        help="raise smaller values to this threshold (default 0)",
    )
    clip.add_argument(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="rounds of clipping and cropping (default 1)",
    )


def _add_project(commands: Any) -> None:
    project = _add(
        commands,
        "project",
        "the nearest kernel with a certified norm bound",
        "kernel.npy --grid 32x32 --max-norm 1 -o bounded.npy",
        "model.safetensors --grid none --max-norm 1 -o bounded.safetensors",
    )
    rtol_help = "relative duality gap of the squared distance"
    add_file(project, grid=sizes_or_none, rtol=1e-3, rtol_help=rtol_help)
    add_bound(project)


def _add_compare(commands: Any) -> None:
    compare = _add(
        commands,
        "compare",
        "compare the certified norm with the results of other methods",
        "kernel.npy --grid 32x32",
        "model.safetensors --grid 32 --boundary zeros --json",
    )
    add_file(compare, grid=sizes)
    add_budget(compare)
    add_folding(compare)


def _add_lipschitz(commands: Any) -> None:
    lipschitz = _add(
        commands,
        "lipschitz",
        "a certified bound on the Lipschitz constant of a whole network",
        "",
        "model.onnx --input 1x3x224x224",
        "model.onnx --json --fail-above 100",
        more=LIPSCHITZ,
    )
    lipschitz.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help=".onnx: a whole network"
    )
    add_input(lipschitz, ".onnx")
    add_budget(lipschitz)
    add_output(lipschitz, rtol=1e-3)
    lipschitz.add_argument(
        "--fail-above",
        type=finite_number,
        metavar="L",
        help="exit with 1 if the bound exceeds this, or if there is none",
    )
