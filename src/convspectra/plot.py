"""Plots of spectra, on axes that the caller makes, shows and saves."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ._base import require
from ._report.spectra import LayerSpectrum, Report
from ._text import cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

matplotlib: ModuleType = require("matplotlib", extra="plot")
DECADES = 2.3  # that a picture shows below its largest value
TICKS = 12  # names of checkpoints below an axis
POINTS = 5000  # of a line: more than a picture has columns
LEGEND = 14  # lines that fit into a legend; where there are more, a color bar serves


def draw_spectrum(spectrum: LayerSpectrum, ax: "Axes") -> None:
    """Draw the sorted singular values of one layer, and its norm, on `ax`.

    Parameters
    ----------
    spectrum : LayerSpectrum
    ax : matplotlib.axes.Axes
        Gets a line of the values over their relative rank, from 0 to 1, and a dashed
        line at the certified upper bound of the norm.
    """
    ax.plot(*_line(spectrum, normalized=True), linewidth=1.8, label="singular values")
    upper = float(spectrum.norm.upper)
    ax.axhline(
        upper, color="0.4", linestyle="--", linewidth=1, label="norm of the layer"
    )
    _finish(ax, [spectrum], normalized=True)
    ax.set_title(_as_text(spectrum.name))
    ax.legend(frameon=False, loc="lower left")


def draw_report(
    report: Report,
    ax: "Axes",
    *,
    ratio: bool = False,
    normalized: bool = False,
    legend: bool = True,
) -> None:
    """Draw the sorted singular values of all layers on `ax`, colored by layer order.

    Ranks begin with 1, on a logarithmic axis: layers have a thousand values or
    millions, and on a linear one the small ones would vanish.

    Parameters
    ----------
    report : Report
    ax : matplotlib.axes.Axes
        Gets a line per layer that has values.
    ratio : bool
        Whether to divide the values by the largest of their layer.
    normalized : bool
        Whether to scale the ranks of every layer to [0, 1].
    legend : bool
        Whether to show a legend of the layers, or a color bar if there are too many. If
        only some layers have exact values, the legend says which.
    """
    layers = [layer for layer in report.layers if layer.values is not None]
    mixed = len({layer.exact for layer in layers}) > 1
    for spectrum, color in zip(layers, _colors(len(layers))):
        label = _as_text(spectrum.name) + " (exact)" * (mixed and spectrum.exact)
        line = _line(spectrum, ratio=ratio, normalized=normalized)
        ax.plot(*line, color=color, linewidth=1.6, label=label)
    _finish(ax, layers, ratio=ratio, normalized=normalized)
    if not legend or not layers:
        return
    if len(layers) > LEGEND:
        draw_order(report, ax.figure, ax)
        return
    beside = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
    ax.legend(frameon=False, fontsize="small", **beside)


def draw_order(report: Report, figure: Any, ax: "Axes | None" = None) -> None:
    """Add a color bar to `figure` that shows the order of the layers.

    Parameters
    ----------
    report : Report
    figure : matplotlib.figure.Figure
    ax : matplotlib.axes.Axes, optional
        The axes to place it beside; by default all axes of the figure.
    """
    cm = require("matplotlib.cm", extra="plot")
    count = sum(layer.values is not None for layer in report.layers)
    bar = cm.ScalarMappable(cmap=matplotlib.colors.ListedColormap(_colors(count)))
    bar.set_clim(0.5, count + 0.5)
    where = figure.axes if ax is None else ax
    figure.colorbar(bar, ax=where, label="layer, from first to last")


def draw_heat_map(spectrum: LayerSpectrum, ax: "Axes") -> None:
    """Draw a layer's largest singular value at each frequency, with 0 in the center.

    Parameters
    ----------
    spectrum : LayerSpectrum
        The spectrum of a layer with two axes and a grid.
    ax : matplotlib.axes.Axes
        Gets an image and a color bar. Frequencies are in cycles per output site (for a
        transposed layer, per input site): at 0.5 the sign alternates from site to site.
    """
    values = spectrum.values
    if values is None or values.ndim != 4:
        raise ValueError(
            "A map over frequencies must be of a layer with two axes and a grid, got "
            f"{spectrum.name!r} with {len(spectrum.shape) - 2} axes on grid "
            f"{spectrum.geometry.grid}."
        )
    top = np.fft.fftshift(values[..., 0].max(axis=-1))
    edges = [_edges(n) for n in top.shape]
    image = ax.imshow(top, cmap="magma", extent=(*edges[1], *edges[0]), origin="lower")
    side = "input" if spectrum.geometry.transposed else "output"
    ax.set_xlabel(f"frequency on the last axis, cycles per {side} site")
    ax.set_ylabel("on the first axis")
    of = "" if spectrum.exact else ", of the torus"
    name = _as_text(spectrum.name)
    ax.set_title(f"{name}\nlargest value at each frequency{of}", fontsize="medium")
    ax.figure.colorbar(image, ax=ax, shrink=0.8)


def draw_witness(image: np.ndarray, ax: "Axes") -> None:
    """Draw the strongest channel of an input that attains the norm of a layer.

    Parameters
    ----------
    image : array, shape (channels, height, width)
        For example `top_vectors(weight, geometry).input`.
    ax : matplotlib.axes.Axes
        Gets an image and a color bar.
    """
    image = np.real(image)
    energy = np.sum(image**2, axis=(1, 2))
    channel = int(np.argmax(energy))
    most = float(np.abs(image[channel]).max())
    drawn = ax.imshow(image[channel], cmap="RdBu_r", vmin=-most, vmax=most)
    share = energy[channel] / (energy.sum() or 1.0)
    ax.set_title(
        "the input that is stretched most\n"
        f"channel {channel} of {len(image)}, with {share:.0%} of its energy",
        fontsize="medium",
    )
    ax.figure.colorbar(drawn, ax=ax, shrink=0.8)


def draw_trajectories(trajectories: Mapping[str, Any], ax: "Axes") -> None:
    """Draw the certified upper bound of every layer's norm over checkpoints.

    Parameters
    ----------
    trajectories : mapping
        "checkpoints" holds their names in order; "layers" maps each layer's name to
        "lower" and "upper", lists with a number or None per checkpoint.
    ax : matplotlib.axes.Axes
        Gets a line per layer, and a legend if there are few layers.
    """
    layers = trajectories["layers"]
    for (name, bounds), color in zip(layers.items(), _colors(len(layers))):
        upper = np.array(bounds["upper"], dtype=float)
        ax.plot(upper, color=color, marker=".", linewidth=1.4, label=_as_text(name))
    names = [_as_text(name) for name in trajectories["checkpoints"]]
    step = max(1, -(-len(names) // TICKS))
    ax.set_xticks(range(0, len(names), step), names[::step], rotation=30, ha="right")
    ax.set_yscale("log", nonpositive="mask")
    plain = require("matplotlib.ticker", extra="plot").LogFormatter
    ax.yaxis.set_major_formatter(plain())
    ax.yaxis.set_minor_formatter(plain(labelOnlyBase=False, minor_thresholds=(2, 0.4)))
    ax.set_ylabel("certified upper bound of the norm")
    ax.grid(True, color="0.9", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    if 0 < len(layers) <= LEGEND:
        beside = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
        ax.legend(frameon=False, fontsize="small", **beside)


def _as_text(name: str) -> str:
    """A name from a file, for matplotlib: it takes what is between dollars for TeX."""
    return cell(name).replace("$", r"\$")


def _edges(n: int) -> tuple[float, float]:
    """Where the first of n centered frequencies begins, and the last ends."""
    return (-(n // 2) - 0.5) / n, (n - n // 2 - 0.5) / n


def _colors(count: int) -> np.ndarray:
    """Return `count` colors from dark to light, without the palest: (count, 4)."""
    return matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, count))


def _line(
    spectrum: LayerSpectrum, *, ratio: bool = False, normalized: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return ranks, and the values in descending order; of many, evenly spaced ones."""
    values = spectrum.sorted_values()
    count = values.size
    ranks = np.linspace(0, 1, count) if normalized else np.arange(1, count + 1)
    largest = values[0] if ratio and count and values[0] > 0 else 1.0
    if count > POINTS:
        spaced = (
            np.linspace(0, count - 1, POINTS)
            if normalized
            else np.geomspace(1, count, POINTS) - 1
        )
        drawn = np.unique(spaced.round().astype(int))
        ranks, values = ranks[drawn], values[drawn]
    return ranks, values / largest


def _finish(
    ax: "Axes",
    layers: Sequence[LayerSpectrum],
    *,
    ratio: bool = False,
    normalized: bool = False,
) -> None:
    kinds = {layer.exact for layer in layers}
    of = " of the layer or its torus" if len(kinds) > 1 else " of the torus"
    ax.set_xlabel("rank, as a share of all values" if normalized else "rank")
    what = "singular value / largest" if ratio else "singular value"
    ax.set_ylabel(what + of * (False in kinds))
    top = max((float(layer.norm.upper) for layer in layers), default=0.0)
    if top > 0:
        least = [np.quantile(layer.sorted_values(), 0.005) for layer in layers]
        floor = float(min(least)) / (top if ratio else 1.0)
        top = 1.0 if ratio else top
        ax.set_yscale("log", nonpositive="mask")
        ax.set_ylim(max(floor, top / 10**DECADES) / 1.2, 1.2 * top)
    if normalized:
        ax.set_xscale("linear")
        ax.set_xlim(0, 1)
    else:
        ticker = require("matplotlib.ticker", extra="plot")
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        ax.xaxis.set_minor_formatter(ticker.NullFormatter())
    ax.grid(True, which="major", color="0.9", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
