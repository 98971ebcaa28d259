"""The figures of a report, saved beside its page."""

from pathlib import Path
from typing import Any

from .._base import replacing
from .._norm.top_vectors import top_vectors
from .._report.from_file import FileReport
from .._report.spectra import Report
from .render import say

PANELS = ({"ratio": False}, {"ratio": True}, {"ratio": True, "normalized": True})


def save_figures(about: FileReport, folder: Path, suffix: str) -> list[str]:
    """Draw all spectra, and the loudest layer, where matplotlib is installed.

    Returns the names of what was written.
    """
    plot = plotting()
    with_values = [layer for layer in about.report.layers if layer.values is not None]
    if plot is None or not with_values:
        return []
    figure = new_figure(15, 4.8)
    shown = Report(tuple(with_values))
    for ax, panel in zip(figure.subplots(1, 3), PANELS):
        plot.draw_report(shown, ax, legend=False, **panel)
    plot.draw_order(shown, figure)
    save(figure, folder / f"spectra.{suffix}")
    images = [
        x for x in with_values if len(x.shape) == 4 and min(x.norm.grid or (0,)) > 1
    ]
    if not images:
        return [f"spectra.{suffix}"]
    loudest = max(images, key=lambda layer: float(layer.norm.upper))
    figure = new_figure(12, 5)
    left, right = figure.subplots(1, 2)
    plot.draw_heat_map(loudest, left)
    layer = about.layer(loudest.name)
    top = top_vectors(layer.weight, layer.geometry, rtol=1e-3)
    plot.draw_witness(top.input, right)
    save(figure, folder / f"loudest.{suffix}")
    return [f"spectra.{suffix}", f"loudest.{suffix}"]


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


def new_figure(width: float, height: float) -> Any:
    """An empty figure that no window shows."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, target: Path) -> None:
    """Write a figure in the format of its suffix."""
    with replacing(target) as partial:
        figure.savefig(partial, format=target.suffix[1:], dpi=130)
