"""A report as one JSON document: what pages are made of, and what is kept of a run."""

from importlib.metadata import version
from typing import Any

import numpy as np

from .spectra import LayerSpectrum, Report

POINTS = 512  # of a curve that are kept, first and last among them
SIDE = (
    128  # of a map over frequencies, at most; of larger ones blocks keep their largest
)
DIGITS = 5  # of the values that are drawn


def document_of(report: Report, title: str, notes: list[str]) -> dict[str, Any]:
    """Return all that is shown of a report; curves and maps are thinned."""
    return {
        "title": title,
        "version": version("convspectra"),
        "notes": notes,
        "summary": report.summary(),
        "layers": [
            {**layer.row(), "curve": curve(layer), "heat": heat(layer)}
            for layer in report.layers
        ],
        "skipped": [
            {"name": name, "reason": reason} for name, reason in report.skipped.items()
        ],
    }


def curve(layer: LayerSpectrum) -> dict[str, list[float]] | None:
    """The sorted values at some ranks: every one, or `POINTS`, denser at both ends."""
    values = layer.sorted_values()
    if not values.size:
        return None
    ranks = thinned(values.size)
    return {"rank": ranks.tolist(), "values": _short(values[ranks])}


def thinned(count: int) -> np.ndarray:
    """Ranks that show a curve of `count` points: the first, the last, and some between.

    Half of them are evenly spread; the others crowd toward both ends, where curves on a
    logarithmic axis bend.
    """
    if count <= POINTS:
        return np.arange(count)
    even = np.linspace(0, count - 1, POINTS // 2)
    near = np.geomspace(1, count / 2, POINTS // 4) - 1
    return np.unique(np.concatenate([even, near, count - 1 - near]).astype(int))


def heat(layer: LayerSpectrum) -> dict[str, Any] | None:
    """The largest value at each frequency, as rows of an image of one or two axes."""
    if layer.values is None or layer.values.ndim not in (3, 4):
        return None
    image = np.atleast_2d(layer.values[..., 0].max(axis=-1))
    if image.size == 1:
        return None
    rows, columns = (-(-n // SIDE) for n in image.shape)
    starts = (np.arange(0, n, step) for n, step in zip(image.shape, (rows, columns)))
    for axis, start in enumerate(starts):
        image = np.maximum.reduceat(image, start, axis=axis)
    return {
        "top": [_short(row) for row in image],
        "thinned": rows * columns > 1,
    }


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
