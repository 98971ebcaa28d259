"""The singular values and the norm of one layer, and what a table says of them."""

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .._arrays.array import Array, to_double, to_numpy, widen
from .._layer.geometry import Geometry
from .._layer.layer import Layer
from .._layer.stencil import stencil_of
from .._norm.operator_norm import NormBounds
from .._spectrum import summarize, values_of
from .._text import Lower, Upper
from ..baselines import reshaped_norm
from .partly_known import NO_LOWER, norm_of, upper_if_depthwise

SINGLE_LIMIT = 1e37  # sums of entries up to which no value exceeds single precision


@dataclass(frozen=True, slots=True, eq=False)
class LayerSpectrum:
    """The singular values of one layer and its norm; see `spectra`.

    Attributes
    ----------
    name : str
    shape : tuple of int
        The shape of the weight.
    geometry : Geometry
        With defaults for what is unknown.
    values : numpy.ndarray, shape (*frequencies, groups, count), or None
        As returned by `singular_values`, of the layer itself if `exact`, otherwise of
        `geometry.torus()`. None if there is no grid.
    exact : bool
        Whether `values` are the layer's own, because it is block diagonal in the
        Fourier basis. Otherwise they are those of its circular surrogate, an
        approximation.
    norm : NormBounds
        Bounds on the layer's norm; without a grid, for every input size. They hold for
        whatever the unknown fields are; where no lower bound does, it is zero.
    reshaped : float
        The norm of the kernel reshaped to a matrix, often mistaken for the layer's.
    seconds : float
        The time taken to compute all this.
    unknown : tuple of str
        The fields of the geometry that neither the layer's file nor its user states.
    left_out : str
        Why values, or bounds for this very size, are not computed.
    has_lower : bool
        Whether there is a lower bound for all that the layer may be.
    upper_if_depthwise : float, optional
        The upper bound of the norm in case the layer is depthwise, where the shape of
        the kernel leaves that open.
    """

    name: str
    shape: tuple[int, ...]
    geometry: Geometry
    values: np.ndarray | None
    exact: bool
    norm: NormBounds
    reshaped: float
    seconds: float
    unknown: tuple[str, ...] = ()
    upper_if_depthwise: float | None = None
    has_lower: bool = True
    left_out: str = ""

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
            **dict.fromkeys(self.unknown),
            "unknown": list(self.unknown),
            "values_of": self._values_of(),
            "left_out": self.left_out or None,
            **_statistics(self.values),
            "norm_lower": Lower(self.norm.lower) if self.has_lower else None,
            "norm_upper": Upper(self.norm.upper),
            "norm_upper_if_depthwise": self.upper_if_depthwise,
            "norm_method": self.norm.method,
            "reshaped": self.reshaped,
            "seconds": self.seconds,
        }

    def _values_of(self) -> str | None:
        if self.values is None:
            return None
        if self.unknown:
            return "assumption"
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
        int(np.count_nonzero(values > 1)),
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
    "count_above_one",
)


def layer_spectrum(
    layer: Layer,
    rtol: float,
    unknown: tuple[str, ...] = (),
    *,
    budget: float | None = None,
    every_size: bool = False,
    with_values: bool = True,
    left_out: str = "",
    total_seconds: float = math.inf,
) -> LayerSpectrum:
    """The values and the norm of one layer, some of whose geometry may be unknown.

    Values are of a layer with defaults for what is unknown, and the norm is bounded for
    its own input size, or for every one. `left_out` says why less is asked for than
    could be, and `total_seconds` how long the values of all layers are predicted to
    take.
    """
    start = time.perf_counter()
    weight, geometry = layer.weight, layer.geometry
    stencil = stencil_of(weight, geometry)
    free = tuple({"grid", *unknown}) if every_size else unknown
    norm = norm_of(layer, free, rtol, budget)
    if not math.isfinite(norm.upper):
        raise ValueError(
            "its norm must be a number of double precision, and exceeds the largest of "
            "them, 1.8e308. Scale the kernel down."
        )
    values = None
    if geometry.grid is not None and with_values:
        torus = geometry if stencil.is_torus else geometry.torus(stencil.kernel)
        plain = to_double(to_numpy(widen(weight)))  # JAX may have no double precision
        fits = float(np.abs(plain).sum()) <= SINGLE_LIMIT
        found = values_of(
            weight if fits else plain,
            stencil_of(weight, torus),
            total_seconds=total_seconds,
        )
        values = to_numpy(found)
    return LayerSpectrum(
        name=layer.name,
        shape=tuple(weight.shape),
        geometry=geometry,
        values=values,
        exact=stencil.is_torus and not unknown,
        norm=norm,
        reshaped=_reshaped(weight, geometry, values),
        unknown=unknown,
        left_out=left_out,
        has_lower=not free or norm.lower != NO_LOWER,
        upper_if_depthwise=upper_if_depthwise(layer, unknown, rtol, budget),
        seconds=time.perf_counter() - start,
    )


def _reshaped(weight: Array, geometry: Geometry, values: np.ndarray | None) -> float:
    """The norm of the kernel as one matrix: with one tap it is the layer's own."""
    if values is not None and math.prod(weight.shape[2:]) == 1:
        return float(values.max())
    return float(reshaped_norm(weight, geometry).value)
