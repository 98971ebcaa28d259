"""The spectra of the layers of a network: the data, and a plain table of them."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

import numpy as np

from .._arrays.array import Array, to_numpy
from .._base import require
from .._layer.geometry import Geometry
from .._layer.layer import Layer
from .._layer.stencil import stencil_of
from .._norm.operator_norm import NormBounds, operator_norm
from .._spectrum import singular_values, summarize
from .._text import Lower, Upper, aligned, cell, cells, tree
from ..baselines import reshaped_norm

COLUMNS = {
    "layer": "name",
    "kernel": "shape",
    "input": "grid",
    "stride": "stride",
    "norm from": "norm_lower",
    "to": "norm_upper",
    "reshaped": "reshaped",
    "smallest": "smallest",
    "condition": "condition",
    "stable rank": "stable_rank",
    "effective rank": "effective_rank",
    "above 1": "above_one",
    "values of": "values_of",
    "seconds": "seconds",
}
STAND_IN = (
    "Values of a torus are those of the layer's circular surrogate. They approximate\n"
    "the layer's values and do not bound them."
)
NOTE = f"{STAND_IN} Norm bounds hold for the layer itself."
EVERY_SIZE = (
    "Without an input size, the upper bound holds for every size (with a circular\n"
    "boundary, for every size that the stride divides), and there are no values."
)
LARGEST = 3  # layers of largest norm that a summary names
NAMED = 6  # skipped layers that are named per reason


@dataclass(frozen=True, slots=True, eq=False)
class LayerSpectrum:
    """The singular values of one layer and its norm; see `spectra`.

    Attributes
    ----------
    name : str
    shape : tuple of int
        The shape of the weight.
    geometry : Geometry
    values : numpy.ndarray, shape (*frequencies, groups, count), or None
        As returned by `singular_values`, of the layer itself if `exact`, otherwise of
        `geometry.torus()`. None if there is no grid.
    exact : bool
        Whether `values` are the layer's own, because it is block diagonal in the
        Fourier basis. Otherwise they are those of its circular surrogate, an
        approximation.
    norm : NormBounds
        Bounds on the layer's norm; without a grid, for every input size.
    reshaped : float
        The norm of the kernel reshaped to a matrix, often mistaken for the layer's.
    seconds : float
        The time taken to compute all this.
    """

    name: str
    shape: tuple[int, ...]
    geometry: Geometry
    values: np.ndarray | None
    exact: bool
    norm: NormBounds
    reshaped: float
    seconds: float

    def sorted_values(self) -> np.ndarray:
        """Return all values in descending order; an empty array if there is no grid."""
        if self.values is None:
            return np.empty(0)
        return np.sort(self.values, axis=None)[::-1]

    def row(self) -> dict[str, Any]:
        """Return plain numbers for JSON; unknown and infinite ones are None."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            **asdict(self.geometry),
            "values_of": self._values_of(),
            **_statistics(self.values),
            "norm_lower": Lower(self.norm.lower),
            "norm_upper": Upper(self.norm.upper),
            "norm_method": self.norm.method,
            "reshaped": self.reshaped,
            "seconds": self.seconds,
        }

    def _values_of(self) -> str | None:
        if self.values is None:
            return None
        return "layer" if self.exact else "torus"


def _statistics(values: np.ndarray | None) -> dict[str, Any]:
    if values is None:
        return dict.fromkeys(STATISTICS)
    summary = summarize(values)
    quartiles = np.quantile(values.astype(np.float64), [0.75, 0.5, 0.25])
    condition = float(summary.condition)
    numbers = (
        summary.count,
        float(summary.largest),
        *map(float, quartiles),
        float(summary.smallest),
        int(summary.rank),
        float(summary.stable_rank),
        float(summary.effective_rank),
        condition if math.isfinite(condition) else None,
        float(np.mean(values > 1)),
    )
    return dict(zip(STATISTICS, numbers))


STATISTICS = (
    "count",
    "largest",
    "upper_quartile",
    "median",
    "lower_quartile",
    "smallest",
    "rank",
    "stable_rank",
    "effective_rank",
    "condition",
    "above_one",
)


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """The spectra of several layers; `print` shows a table.

    Attributes
    ----------
    layers : tuple of LayerSpectrum
    skipped : dict of str to str
        The names of layers that were left out, and the reasons.
    """

    layers: tuple[LayerSpectrum, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict of plain numbers per layer, ready for JSON."""
        return [layer.row() for layer in self.layers]

    def to_dataframe(self) -> Any:
        """Return the rows as a pandas.DataFrame, indexed by layer name."""
        pandas = require("pandas", extra="report")
        return pandas.DataFrame(self.rows()).set_index("name")

    def summary(self) -> dict[str, Any]:
        """Return the layers of largest norm, and the log10 of the product of all norms.

        The product lies between 10**log10_product_lower and 10**log10_product_upper. It
        bounds the norm of a plain chain of these layers. A logarithm is None if the
        corresponding bound of some layer is zero.
        """
        lower = _log10_product([float(layer.norm.lower) for layer in self.layers])
        upper = _log10_product([float(layer.norm.upper) for layer in self.layers])
        descending = sorted(self.layers, key=lambda layer: -float(layer.norm.upper))
        return {
            "layers": len(self.layers),
            "skipped": len(self.skipped),
            "largest": [layer.name for layer in descending[:LARGEST]],
            "log10_product_lower": None if lower is None else Lower(lower),
            "log10_product_upper": None if upper is None else Upper(upper),
        }

    def notes(self) -> list[str]:
        """Return sentences that explain how to read the numbers."""
        found = []
        if any(x.values is not None and not x.exact for x in self.layers):
            found.append(NOTE)
        if any(x.values is None for x in self.layers):
            found.append(EVERY_SIZE)
        return found

    def __str__(self) -> str:
        table = aligned(list(COLUMNS), tree(cells(COLUMNS, self.rows())))
        return "\n\n".join([table, *summary_lines(self), *self.notes()])

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in line) + "</tr>"
            for line in cells(COLUMNS, self.rows())
        )
        notes = "".join(
            f"<p>{escape(text)}</p>" for text in [*summary_lines(self), *self.notes()]
        )
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"
        )


def summary_lines(report: Report) -> list[str]:
    """The summary of a report, and what was skipped and why, in sentences."""
    if not report.layers:
        return reasons(report.skipped)
    found = report.summary()
    by_name = {layer.name: Upper(layer.norm.upper) for layer in report.layers}
    largest = ", ".join(
        f"{cell(name)} {cell(by_name[name])}" for name in found["largest"]
    )
    lower, upper = (
        "0" if log is None else f"10^{cell(log)}"
        for log in (found["log10_product_lower"], found["log10_product_upper"])
    )
    return [
        f"Largest norms: {largest}. Product of all norms: {lower} to {upper}.",
        *reasons(report.skipped),
    ]


def reasons(skipped: Mapping[str, str]) -> list[str]:
    """What was skipped, a sentence per reason, which names some."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        by_reason.setdefault(reason, []).append(ascii(name))
    for alike in by_reason.values():
        if len(alike) > NAMED:
            alike[NAMED:] = [f"and {len(alike) - NAMED} more"]
    return [
        f"Skipped ({reason}): {', '.join(alike)}."
        for reason, alike in by_reason.items()
    ]


def spectra(
    layers: Iterable[Layer], *, rtol: float = 1e-4, budget: float | None = None
) -> Report:
    """Compute the singular values and the certified norm of each layer.

    Parameters
    ----------
    layers : iterable of Layer
        A list, or the result of `convspectra.torch.layers(model, example)`, whose
        `skipped` the report keeps. A layer without a grid gets norm bounds for every
        input size, and no values.
    rtol : float
        Relative gap between the bounds of each norm; see `operator_norm`.
    budget : float, optional
        Seconds that each norm may take; see `operator_norm`.

    Returns
    -------
    Report

    Examples
    --------
    >>> blur = Layer("blur", np.array([[[0.25, 0.5, 0.25]]]), Geometry(grid=5))
    >>> (found,) = spectra([blur]).layers
    >>> found.sorted_values().round(3)
    array([1.   , 0.655, 0.655, 0.095, 0.095])
    """
    found = tuple(layer_spectrum(layer, rtol, budget) for layer in layers)
    return Report(found, dict(getattr(layers, "skipped", {})))


def layer_spectrum(
    layer: Layer, rtol: float, budget: float | None = None
) -> LayerSpectrum:
    """The values and the norm of one layer."""
    start = time.perf_counter()
    weight, geometry = layer.weight, layer.geometry
    stencil = stencil_of(weight, geometry)
    norm = operator_norm(weight, geometry, rtol, budget=budget)
    lower, upper = (float(to_numpy(x)) for x in (norm.lower, norm.upper))
    values = None
    if geometry.grid is not None:
        torus = geometry if stencil.is_torus else geometry.torus(stencil.kernel)
        values = to_numpy(singular_values(weight, torus))
    return LayerSpectrum(
        name=layer.name,
        shape=tuple(weight.shape),
        geometry=geometry,
        values=values,
        exact=stencil.is_torus,
        norm=NormBounds(lower, upper, norm.method, norm.grid),
        reshaped=_reshaped(weight, geometry, values),
        seconds=time.perf_counter() - start,
    )


def _reshaped(weight: Array, geometry: Geometry, values: np.ndarray | None) -> float:
    """The norm of the kernel as one matrix: with one tap it is the layer's own."""
    if values is not None and math.prod(weight.shape[2:]) == 1:
        return float(values.max())
    return float(reshaped_norm(weight, geometry).value)


def _log10_product(norms: list[float]) -> float | None:
    return math.fsum(map(math.log10, norms)) if norms and all(norms) else None
