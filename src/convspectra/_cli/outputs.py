"""What commands write to files: a report's page, data and figures, and arrays."""

import csv
import json
import os
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._arrays.array import to_double
from .._base import replacing
from .._norm.top_vectors import top_vectors
from .._report.from_file import FileReport
from .._report.page import page
from .._report.spectra import Report
from .render import say

FIGURES = ("spectra", "largest-norm", "trajectories")
FIGURE_FORMATS = ("png", "pdf", "svg")
# In every file of a report: it tells them from files of the user under the same names.
MARK = "Written by convspectra report, which replaces it when it is run again."
# The panels of the figure of all spectra, from left to right.
PANELS = ({"ratio": False}, {"ratio": True}, {"ratio": True, "normalized": True})


def check_folder(folder: Path, figures: str) -> None:
    """Refuse a folder before any work is done for it.

    It must be one that can be written, and hold no file of the user under a name that
    a report with figures of this format takes.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(
            f"The output must be a folder that can be written, got {str(folder)!r}."
        )
    for path in _files_of_report(folder, (figures,)):
        if path.exists() and not _is_of_a_report(path):
            raise ValueError(
                f"A report replaces only files of earlier reports, got {str(path)!r}, "
                "which is none. Move it, or name another folder by -o."
            )


def make_folder(folder: Path, figures: str) -> None:
    """Make the folder for the results, and see once more that it is free for them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The output must be a folder that can be made, got {str(folder)!r}: "
            f"{error.strerror}."
        ) from error
    check_folder(folder, figures)


def remove_older(folder: Path, written: Sequence[str]) -> None:
    """Remove what earlier reports have left in the folder beside what is new in it."""
    for path in _files_of_report(folder, FIGURE_FORMATS):
        if path.name not in written and _is_of_a_report(path):
            path.unlink()


def _files_of_report(folder: Path, formats: Sequence[str]) -> list[Path]:
    """All files that a report with figures of these formats may consist of."""
    figures = [f"{name}.{suffix}" for name in FIGURES for suffix in formats]
    return [folder / name for name in ("report.html", "report.json", *figures)]


def _is_of_a_report(path: Path) -> bool:
    """Whether this command has written the file."""
    try:
        return path.is_file() and MARK.encode() in path.read_bytes()
    except OSError:  # it cannot be read
        return False


def write_page(document: dict[str, Any], folder: Path) -> list[str]:
    """Write report.json and, where plotly is installed, report.html; return these."""
    document = {"generator": MARK, **document}  # the page holds it, too
    with replacing(folder / "report.json") as partial:
        partial.write_text(json.dumps(document, indent=1), encoding="utf-8")
    try:
        text = page(document)
    except ModuleNotFoundError as error:
        if error.name != "plotly":
            raise
        say(f"no page: {error}")
        return ["report.json"]
    with replacing(folder / "report.html") as partial:
        partial.write_text(text, encoding="utf-8")
    return ["report.html", "report.json"]


def as_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows to stdout, under the keys of the first."""
    writer = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: _csv_cell(value) for key, value in row.items()})


def _csv_cell(value: Any) -> Any:
    """Sizes and pairs of padding as the options take them, words with spaces."""
    if not isinstance(value, list | tuple):
        return value
    if all(isinstance(part, str) for part in value):
        return " ".join(value)
    pairs = [part if isinstance(part, list | tuple) else [part] for part in value]
    return "x".join(":".join(map(str, pair)) for pair in pairs)


def check_target(target: Path, suffix: str, inputs: Iterable[Path | None]) -> None:
    """Refuse a target that cannot be written, before any work is done for it.

    A file that was there before is replaced, unless it is one of the inputs.
    """
    if target.suffix.lower() != suffix:
        raise ValueError(f"The output must end in {suffix}, got {str(target)!r}.")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise ValueError(
            "The output must be in a folder that exists and can be written, got "
            f"{str(target)!r}."
        )
    if target.exists() and not target.is_file():
        raise ValueError(f"The output must be a file, got {str(target)!r}.")
    if target.exists() and not os.access(target, os.W_OK):
        raise ValueError(
            f"The output must not be write-protected, got {str(target)!r}. Name "
            "another file by -o."
        )
    for path in inputs:
        if path and path.exists() and target.exists() and target.samefile(path):
            raise ValueError(
                f"The output must be another file than the input, got {str(target)!r} "
                "for both. Name another file by -o."
            )


def write_npz(target: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a new .npz file."""
    # Not by `np.savez`, whose own arguments are names that an array cannot have.
    with replacing(target) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def save_figures(found: FileReport, folder: Path, suffix: str) -> list[str]:
    """Draw all spectra, and the layer of largest norm, where matplotlib is installed.

    Returns the names of what was written.
    """
    plot = plotting()
    with_values = [layer for layer in found.report.layers if layer.values is not None]
    if plot is None or not with_values:
        return []
    figure = new_figure(15, 4.8, top=0.96, right=1.06)  # beside which a bar takes space
    shown = Report(tuple(with_values))
    for ax, panel in zip(figure.subplots(1, 3), PANELS):
        plot.draw_report(shown, ax, legend=False, **panel)
    plot.draw_order(shown, figure)
    save(figure, folder / f"spectra.{suffix}")
    images = [
        x
        for x in with_values
        if len(x.shape) == 4 and min(x.norm.grid or (0,)) > 1 and not x.unknown
    ]
    if not images:
        return [f"spectra.{suffix}"]
    largest = max(images, key=lambda layer: float(layer.norm.upper))
    figure = new_figure(12, 5, top=0.88, right=0.99)
    left, right = figure.subplots(1, 2)
    plot.draw_heat_map(largest, left)
    layer = found.load(largest.name)
    top = top_vectors(to_double(layer.weight), layer.geometry, rtol=1e-3)
    plot.draw_witness(top.input, right)
    save(figure, folder / f"largest-norm.{suffix}")
    return [f"spectra.{suffix}", f"largest-norm.{suffix}"]


def plotting() -> Any:
    """`convspectra.plot`, None (and a word about it) where matplotlib is missing."""
    try:
        from .. import plot
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        say(f"no figures: {error}")
        return None
    return plot


def new_figure(width: float, height: float, **margins: float) -> Any:
    """An empty figure that no window shows.

    Without stated margins, matplotlib finds those that suit the contents. That takes as
    long again as drawing.
    """
    from matplotlib.figure import Figure

    if not margins:
        return Figure(figsize=(width, height), layout="constrained")
    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(left=0.06, bottom=0.12, wspace=0.25, **margins)
    return figure


def save(figure: Any, target: Path) -> None:
    """Write a figure in the format of its suffix."""
    suffix = target.suffix[1:]
    mark = {"Software" if suffix == "png" else "Creator": MARK}
    with replacing(target) as partial:
        figure.savefig(partial, format=suffix, dpi=130, metadata=mark)
