"""What the layers of a network do, side by side: data first, then one plain table."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ._array import to_numpy
from ._geometry import Geometry
from ._layer import Layer
from ._norm import NormBounds, operator_norm
from ._spectrum import singular_values, summarize
from ._stencil import stencil_of
from .baselines import reshaped_norm

COLUMNS = {
    "layer": "name",
    "kernel": "shape",
    "input": "grid",
    "values of": "values_of",
    "largest": "largest",
    "median": "median",
    "smallest": "smallest",
    "norm from": "norm_lower",
    "to": "norm_upper",
    "reshaped": "reshaped",
}
STAND_IN = (
    "The values of a torus are those of the circular layer that stands in for the one\n"
    "named, an approximation."
)
NOTE = f"{STAND_IN} Norms are of the layer as it is, between ends that hold."


@dataclass(frozen=True, slots=True, eq=False)
class LayerSpectrum:
    """The singular values of one layer and its norm; see `spectra`.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Of the weight.
    geometry : Geometry
    values : numpy.ndarray, shape (*frequencies, groups, count)
        As `singular_values` gives them on `geometry.torus()`.
    exact : bool
        Whether these are the layer's own values: it is block diagonal in the Fourier
        basis. Else they are those of the torus that stands in for it, and approximate.
    norm : NormBounds
        Of the layer as it is.
    reshaped : float
        The norm of the kernel reshaped to a matrix, often taken for the layer's.
    """

    name: str
    shape: tuple[int, ...]
    geometry: Geometry
    values: np.ndarray
    exact: bool
    norm: NormBounds
    reshaped: float

    def sorted_values(self) -> np.ndarray:
        """Return all values in one descending row."""
        return np.sort(self.values, axis=None)[::-1]

    def row(self) -> dict[str, Any]:
        """Return plain numbers for JSON; an infinite condition number is None."""
        summary = summarize(self.values)
        quartiles = np.quantile(self.values.astype(np.float64), [0.75, 0.5, 0.25])
        upper, median, lower = map(float, quartiles)
        condition = float(summary.condition)
        return {
            "name": self.name,
            "shape": list(self.shape),
            **asdict(self.geometry),
            "values_of": "layer" if self.exact else "torus",
            "count": summary.count,
            "largest": float(summary.largest),
            "upper_quartile": upper,
            "median": median,
            "lower_quartile": lower,
            "smallest": float(summary.smallest),
            "rank": int(summary.rank),
            "stable_rank": float(summary.stable_rank),
            "condition": condition if math.isfinite(condition) else None,
            "norm_lower": float(self.norm.lower),
            "norm_upper": float(self.norm.upper),
            "norm_method": self.norm.method,
            "reshaped": self.reshaped,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """The spectra of several layers; `print` shows them as a table."""

    layers: tuple[LayerSpectrum, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict of plain numbers per layer, ready for JSON."""
        return [layer.row() for layer in self.layers]

    def __str__(self) -> str:
        cells = [
            [cell(row[key], key) for key in COLUMNS.values()] for row in self.rows()
        ]
        table = aligned(list(COLUMNS), cells)
        stand_ins = any(not layer.exact for layer in self.layers)
        return f"{table}\n\n{NOTE}" if stand_ins else table


def spectra(layers: Iterable[Layer], *, rtol: float = 1e-4) -> Report:
    """Compute the singular values and the certified norm of each layer.

    Parameters
    ----------
    layers : iterable of Layer
        Each with a grid. Taken one at a time.
    rtol : float
        How close the ends of each norm are to be, wherever they can be.

    Returns
    -------
    Report

    Examples
    --------
    >>> blur = Layer("blur", np.array([[[0.25, 0.5, 0.25]]]), Geometry(grid=5))
    >>> print(spectra([blur]))
    layer  kernel  input  values of  largest  median  smallest  norm from  to  reshaped
    blur    1x1x3      5      layer        1  0.6545   0.09549          1   1    0.6124
    """
    return Report(tuple(_spectrum(layer, rtol) for layer in layers))


def _spectrum(layer: Layer, rtol: float) -> LayerSpectrum:
    weight, geometry = layer.weight, layer.geometry
    stencil = stencil_of(weight, geometry)
    torus = geometry if stencil.is_torus else geometry.torus(stencil.kernel)
    norm = operator_norm(weight, geometry, rtol)
    lower, upper = (float(to_numpy(end)) for end in (norm.lower, norm.upper))
    return LayerSpectrum(
        name=layer.name,
        shape=tuple(weight.shape),
        geometry=geometry,
        values=to_numpy(singular_values(weight, torus)),
        exact=stencil.is_torus,
        norm=NormBounds(lower, upper, norm.method, norm.grid),
        reshaped=float(reshaped_norm(weight, geometry).value),
    )


def cell(value: Any, key: str = "") -> str:
    """Return a value as a table shows it: four digits, sizes joined by x.

    The ends of an interval, known by their keys, are rounded outward, but for a
    millionth: 1.0000000001 is shown as 1.
    """
    if value is None:
        return "-"
    if isinstance(value, float):
        near = f"{value:.4g}"
        way = {"lower": -1, "upper": 1}.get(key.rpartition("_")[2], 0)
        if way * (float(near) - value) < -1e-6 * abs(value):
            digit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
            near = f"{float(near) + way * digit:.4g}"
        return near
    if isinstance(value, (tuple, list)):
        return "x".join(map(str, value))
    text = str(value)
    # Names come from files: no control characters on a terminal.
    return text if text.isprintable() else ascii(text)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as plain text: first column to the left, others to the right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if i else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )
