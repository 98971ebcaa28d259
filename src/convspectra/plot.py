"""Pictures of spectra, drawn on axes that the caller makes, shows and saves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ._optional import require
from ._report import LayerSpectrum, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

matplotlib = require("matplotlib", extra="plot")
DECADES = 2.3  # that a picture shows below its largest value
LEGEND = 14  # lines that fit into a legend; where there are more, a color bar serves


def draw_spectrum(spectrum: LayerSpectrum, ax: "Axes") -> None:
    """Draw the sorted singular values of one layer, and its norm, on `ax`.

    Parameters
    ----------
    spectrum : LayerSpectrum
    ax : matplotlib.axes.Axes
        Gets a line of the values over their rank, from 0 to 1, and a dashed one at the
        certified upper end of the norm.
    """
    ax.plot(*_line(spectrum), linewidth=1.8, label="singular values")
    upper = float(spectrum.norm.upper)
    ax.axhline(
        upper, color="0.4", linestyle="--", linewidth=1, label="norm of the layer"
    )
    _finish(ax, [spectrum])
    ax.set_title(spectrum.name)
    ax.legend(frameon=False, loc="lower left")


def draw_report(report: Report, ax: "Axes") -> None:
    """Draw the sorted singular values of all layers on `ax`, colored by their order.

    Parameters
    ----------
    report : Report
    ax : matplotlib.axes.Axes
        Gets a line per layer over the rank from 0 to 1, and a legend beside it, or a
        color bar where there are too many layers for one. Where only some layers are
        exact, the legend says which.
    """
    colors = _colors(len(report.layers))
    mixed = len({layer.exact for layer in report.layers}) > 1
    for spectrum, color in zip(report.layers, colors):
        label = spectrum.name + " (exact)" * (mixed and spectrum.exact)
        ax.plot(*_line(spectrum), color=color, linewidth=1.6, label=label)
    _finish(ax, report.layers)
    if len(report.layers) <= LEGEND:
        ax.legend(
            frameon=False,
            fontsize="small",
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
        )
        return
    cm = require("matplotlib.cm", extra="plot")
    bar = cm.ScalarMappable(cmap=matplotlib.colors.ListedColormap(colors))
    bar.set_clim(0.5, len(colors) + 0.5)
    ax.figure.colorbar(bar, ax=ax, label="layer, from first to last")


def _colors(count: int) -> np.ndarray:
    """Return `count` colors from dark to light, without the palest: (count, 4)."""
    return matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, count))


def _line(spectrum: LayerSpectrum) -> tuple[np.ndarray, np.ndarray]:
    """Return ranks from 0 to 1, and the values in descending order."""
    values = spectrum.sorted_values()
    return np.linspace(0, 1, values.size), values


def _finish(ax: "Axes", layers: Sequence[LayerSpectrum]) -> None:
    kinds = {layer.exact for layer in layers}
    of = " of the layer or its torus" if len(kinds) > 1 else " of the torus"
    ax.set_xlabel("rank, from the largest value to the smallest")
    ax.set_ylabel("singular value" + of * (False in kinds))
    top = max((float(layer.norm.upper) for layer in layers), default=0.0)
    if top > 0:
        ax.set_yscale("log", nonpositive="mask")
        least = [np.quantile(layer.values, 0.005) for layer in layers]
        ax.set_ylim(max(float(min(least)), top / 10**DECADES) / 1.2, 1.2 * top)
    ax.set_xlim(0, 1)
    ax.grid(True, which="major", color="0.9", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
