"""Both bounds of a layer that pads with zeros and is too large for its matrix."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from .._arrays.array import Array, is_complex
from .._layer.stencil import Stencil
from .._maps.matrix_free import operator_of
from .._maps.symbol import Taps, taps_of
from .._price import LIKELY
from .._route.norm import compression_gap
from .._route.records import NormRoute
from .block_compression import block_compression
from .bounds import Bounds
from .compression import (
    Compression,
    Extent,
    can_cut_at_once,
    compression,
    extent_of,
    norms_for,
)
from .part import part_that_attains
from .peak import Peak
from .top_vectors import (
    Attained,
    attained_near_peak,
    pair_derivative,
    peak_derivative,
)
from .torus_norm import dilation_reduced, norm_on_torus

# A compression's bounds of norms are steps of 1e-5 apart: to ask for more is no use.
CLOSEST = 1e-5
# The part of the tolerance above which the gap that is expected axis by axis is likely
# to be too wide: then the cut at once comes before Lanczos, which takes longer.
FAR = 0.5


def by_compression(
    weight: Array, stencil: Stencil, rtol: float, route: NormRoute
) -> Bounds:
    """Bounds by the first of these steps after which they are close enough.

    1. The norm of a torus around the layer, and what the layer attains near its peak:
       only on a grid so large that this is likely to do.
    2. The compression of that torus, and what the layer attains near its peak.
    3. A block compression, if the route has it for closing.
    """
    layer = _padded(weight, stencil, rtol)
    if layer is None:
        return _nothing(weight, route)
    attained = None
    if LIKELY * _torus_excess(layer.reduced, layer.extent) <= rtol:
        # Only the group of the peak: a compression would tell which others may do.
        bounds, attained = _by_torus_alone(layer, route, lambda _: ())
        if layer.is_close(bounds.upper, attained):
            return bounds
    found, attained = _by_closest_cut(layer, route, attained)
    if attained is not None and route.closing == "block compression":
        closed = _by_block(layer, found, attained, route.allowed_gap)
        if closed is not None:
            return closed
    return Bounds(
        attained.lower if attained else 0.0,
        found.upper,
        lambda: found.derivative(layer.reduced, weight),
        route.method,
    )


def by_torus_around(
    weight: Array, stencil: Stencil, rtol: float, route: NormRoute
) -> Bounds:
    """Bounds by the torus alone, on a grid that is too large to be cut."""
    layer = _padded(weight, stencil, rtol)
    return _by_torus_alone(layer, route)[0] if layer else _nothing(weight, route)


def _nothing(weight: Array, route: NormRoute) -> Bounds:
    """Of a layer of which no row reads a column."""
    return Bounds(0.0, 0.0, lambda: 0 * weight, route.method)


Others: TypeAlias = Callable[[float], Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class _Padded:
    """A layer that reads zeros outside of its input, as all steps see it.

    Attributes
    ----------
    reduced : Taps
        The taps with their shifts divided by common steps, one per axis.
    part : Stencil
        Where inputs are looked for: the layer, or a part of it if it is very large.
    """

    weight: Array
    stencil: Stencil
    taps: Taps
    reduced: Taps
    steps: np.ndarray
    extent: Extent
    part: Stencil
    rtol: float

    @property
    def real(self) -> bool:
        return not is_complex(self.weight)

    def is_close(
        self, upper: float, attained: Attained | None, gap: float = 0.0
    ) -> bool:
        """Whether the bounds are within the tolerance, or within this gap."""
        lower = attained.lower if attained else 0.0
        return upper <= lower * (1 + max(self.rtol, gap))

    def attained_near(
        self, peak: Peak, upper: float, others: Others | None
    ) -> Attained:
        """What the layer attains, from the wave of a peak of the reduced taps."""
        peak = replace(peak, cycles=peak.cycles / self.steps)
        return attained_near_peak(
            self.weight,
            self.part,
            self.taps,
            peak,
            rtol=self.rtol,
            upper=upper,
            others=others,
        )


def _padded(weight: Array, stencil: Stencil, rtol: float) -> _Padded | None:
    """None if no row reads a column."""
    stencil = replace(stencil, boundary="zeros")  # which parts read, if not the layer
    taps = taps_of(weight, stencil)
    extent = extent_of(stencil, taps)
    if extent is None:
        return None
    reduced, steps = dilation_reduced(taps)
    part = part_that_attains(stencil, taps.degree, rtol)
    return _Padded(weight, stencil, taps, reduced, steps, extent, part, rtol)


def _by_torus_alone(
    layer: _Padded, route: NormRoute, others: Others | None = None
) -> tuple[Bounds, Attained]:
    """The norm of a torus that holds the layer as a block, closer than the tolerance.

    For `others` see `pair_near_peak`.
    """
    peak = norm_on_torus(
        layer.reduced, layer.extent.points, route, real=layer.real, rtol=layer.rtol / 4
    )
    attained = layer.attained_near(peak, peak.upper, others)
    bounds = Bounds(
        attained.lower,
        peak.upper,
        lambda: peak_derivative(layer.reduced, peak, layer.weight),
        route.method,
    )
    return bounds, attained


def _by_closest_cut(
    layer: _Padded, route: NormRoute, attained: Attained | None
) -> tuple[Compression, Attained | None]:
    """The torus cut to the grid: axis by axis, and on all axes at once if need be.

    `attained` is what is known from before; a larger lower bound takes its place.
    """
    norms = norms_for(
        layer.reduced, layer.extent, real=layer.real, is_screened=route.is_screened
    )
    rtol = max(layer.rtol, CLOSEST)
    compress = partial(compression, norms, layer.extent, real=layer.real, rtol=rtol)
    found, can_be_closer = compress(), can_cut_at_once(layer.extent)
    if can_be_closer and compression_gap(layer.stencil) > FAR * layer.rtol:
        found, can_be_closer = compress(at_once=True), False
    if layer.is_close(found.upper, attained):
        return found, attained
    again = layer.attained_near(
        found.peak(layer.reduced), found.upper, norms.groups_above
    )
    attained = max(attained or again, again, key=lambda each: each.lower)
    if can_be_closer and not layer.is_close(found.upper, attained):
        found = compress(at_once=True)
    return found, attained


def _by_block(
    layer: _Padded, found: Compression, attained: Attained, allowed_gap: float
) -> Bounds | None:
    """A block compression where the bounds are too far apart; None if it is no closer.

    It needs the input that nearly attains the norm on the whole layer.
    """
    if layer.part != layer.stencil:
        return None
    if layer.is_close(found.upper, attained, allowed_gap):
        return None
    weight, stencil, pair = layer.weight, layer.stencil, attained.pair
    upper = block_compression(weight, stencil, pair, layer.rtol, found.upper)
    if upper is None:
        return None
    return Bounds(
        attained.lower,
        upper,
        lambda: pair_derivative(operator_of(weight, stencil), pair, weight),
        "block compression",
    )


def _torus_excess(taps: Taps, extent: Extent) -> float:
    """How far the torus's bound may be above the layer's norm, relatively.

    On n sites the wave of the peak under a half sine has a mean square frequency of
    (pi / n)^2, and the norm falls by at most degree^2 / 8 times that.
    """
    sites = map(min, extent.inputs, extent.outputs)
    return sum((math.pi * int(d) / n) ** 2 / 8 for d, n in zip(taps.degree, sites))
