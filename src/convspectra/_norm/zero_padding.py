"""Both bounds of a layer that pads with zeros and is too large for its matrix."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from .._arrays.array import Array, is_complex
from .._layer.stencil import Stencil
from .._maps.matrix_free import operator_of
from .._maps.symbol import Taps, taps_of
from .._route import NormRoute, compression_gap
from .block_compression import block_compression
from .bounds import Bounds
from .compression import (
    Extent,
    can_cut_at_once,
    compression,
    extent_of,
    norms_for,
)
from .part import LIKELY, part_that_attains
from .peak import Peak
from .search import dilation_reduced, norm_on_torus
from .top_vectors import (
    Attained,
    attained_near_peak,
    pair_derivative,
    peak_derivative,
)

# A compression's bounds of norms are steps of 1e-5 apart: to ask for more is no use.
CLOSEST = 1e-5
# The part of the tolerance above which the gap that is expected axis by axis is likely
# to be too wide: then the cut at once comes before Lanczos, which takes longer.
FAR = 0.5


def by_compression(
    weight: Array, stencil: Stencil, rtol: float, route: NormRoute, *, attain: bool
) -> Bounds:
    """The torus alone where that is likely to be close enough, or its compression."""
    stencil = replace(stencil, boundary="zeros")  # which parts read, if not the layer
    taps, real = taps_of(weight, stencil), not is_complex(weight)
    extent = extent_of(stencil, taps)
    if extent is None:  # no row reads a column
        return Bounds(0.0, 0.0, lambda: 0 * weight, route.method)
    reduced, steps = dilation_reduced(taps)
    part = part_that_attains(stencil, taps.degree, rtol)
    lower, attained = 0.0, None

    def attained_near(
        peak: Peak, upper: float, others: Callable[[float], Sequence[int]]
    ) -> Attained:
        peak = replace(peak, cycles=peak.cycles / steps)
        return attained_near_peak(
            weight, part, taps, peak, rtol=rtol, upper=upper, others=others
        )

    if attain and LIKELY * _torus_excess(reduced, extent) <= rtol:
        peak = norm_on_torus(reduced, extent.points, route, real=real, rtol=rtol / 4)
        # No other group is tried: the compression below tells which of them may do.
        attained = attained_near(peak, peak.upper, lambda _: ())
        lower = attained.lower
        if peak.upper <= lower * (1 + rtol):
            return Bounds(
                lower,
                peak.upper,
                lambda: peak_derivative(reduced, peak, weight),
                route.method,
            )
    norms = norms_for(reduced, extent, real=real, is_screened=route.is_screened)
    compress = partial(compression, norms, extent, real=real, rtol=max(rtol, CLOSEST))
    found, can_be_closer = compress(), attain and can_cut_at_once(extent)
    if can_be_closer and compression_gap(stencil) > FAR * rtol:
        found, can_be_closer = compress(at_once=True), False
    if attain and found.upper > lower * (1 + rtol):
        again = attained_near(found.peak(reduced), found.upper, norms.groups_above)
        attained = max(attained or again, again, key=lambda each: each.lower)
        lower = attained.lower
        if can_be_closer and found.upper > lower * (1 + rtol):
            found = compress(at_once=True)
    if (
        attained is not None
        and part == stencil
        and route.closing == "block compression"
        and found.upper > lower * (1 + max(rtol, route.allowed_gap))
    ):
        pair = attained.pair
        upper = block_compression(weight, stencil, pair, rtol, found.upper)
        if upper is not None:
            return Bounds(
                lower,
                upper,
                lambda: pair_derivative(operator_of(weight, stencil), pair, weight),
                route.closing,
            )
    return Bounds(
        lower,
        found.upper,
        lambda: found.derivative(reduced, weight),
        route.method,
    )


def _torus_excess(taps: Taps, extent: Extent) -> float:
    """How far the torus's bound may be above the layer's norm, relatively.

    On n sites the wave of the peak under a half sine has a mean square frequency of
    (pi / n)^2, and the norm falls by at most degree^2 / 8 times that.
    """
    sites = map(min, extent.inputs, extent.outputs)
    return sum((math.pi * int(d) / n) ** 2 / 8 for d, n in zip(taps.degree, sites))
