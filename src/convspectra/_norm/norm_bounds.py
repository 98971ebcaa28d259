"""Bounds of the norm of plain numbers, along a route."""

import math
from dataclasses import replace
from functools import partial

import numpy as np

from .._arrays.array import Array, is_complex, is_host, namespace, normalized
from .._arrays.threads import one_blas_thread
from .._layer.stencil import Stencil, embedding
from .._maps.banded import banded_gram
from .._maps.matrix_free import operator_of
from .._maps.symbol import taps_of
from .._route.norm import norm_route
from .._route.records import NormRoute
from .banded_norm import banded_norm
from .bounds import Bounds
from .groups import by_groups, distinct_groups, groups_that_count
from .live_channels import by_live_channels
from .matrix_norm import by_matrix
from .part import part_inside
from .reshaped import by_reshaping
from .rounding import UP
from .top_vectors import (
    attained_by,
    attained_near_peak,
    pair_derivative,
    pair_from_noise,
    peak_derivative,
)
from .torus_norm import norm_on_torus
from .zero_padding import by_compression, by_torus_around

# Numbers below SMALLEST_NORMAL have fewer digits than others; none is above LARGEST.
SMALLEST_NORMAL = float(np.finfo(np.float64).smallest_normal)
LARGEST = float(np.finfo(np.float64).max)
# The route of what closes the gap of a compression.
BANDED = NormRoute("banded", "banded")
CROSSED = (
    "The lower bound of a norm must not exceed the upper one, got {lower!r} and "
    "{upper!r}: one of our methods has failed. Please report the layer that does this."
)


def lower_bound(weight: np.ndarray, stencil: Stencil, rtol: float) -> float:
    """The attained bound alone, by Lanczos: for a small grid, if no other is wanted."""
    double, scale = normalized(weight)
    with one_blas_thread():
        pair, _ = pair_from_noise(double, stencil, rtol=rtol / 10)
    lower = attained_by(pair, double, stencil)
    return _scaled(lower, lower, scale)[0]


def upper_bound(weight: Array, stencil: Stencil, rtol: float) -> Bounds:
    """The certified bound alone: for an embedding the lower one takes longer."""
    return norm_bounds(weight, stencil, rtol, upper_only=True)


def norm_bounds(
    weight: Array,
    stencil: Stencil,
    rtol: float,
    *,
    budget: float | None = None,
    upper_only: bool = False,
    route: NormRoute | None = None,
) -> Bounds:
    """Bounds of the norm for plain numbers.

    If no route is stated, by that of the layer's live channels, within the budget. With
    `upper_only` the lower bound of an embedding is 0: nothing is computed for it.
    """
    double, scale = normalized(weight)

    def bound(weight: Array, stencil: Stencil) -> Bounds:
        real, host = not is_complex(weight), is_host(weight)
        own = route or norm_route(
            stencil,
            real=real,
            on_host=host,
            rtol=rtol,
            budget=budget,
            upper_only=upper_only,
        )
        follow = partial(_follow, own, rtol=rtol, upper_only=upper_only)
        if stencil.groups == 1 or stencil.is_torus:
            return follow(weight, stencil)
        chosen = distinct_groups(weight, stencil)
        return by_groups(follow, weight, stencil, chosen)

    if route is None:
        bounds = by_live_channels(bound, double, stencil)
    else:
        bounds = bound(double, stencil)
    if bounds.lower > bounds.upper:
        raise ArithmeticError(CROSSED.format(lower=bounds.lower, upper=bounds.upper))
    lower, upper = _scaled(bounds.lower, bounds.upper, scale)
    xp = namespace(weight)
    return Bounds(
        lower,
        upper,
        lambda: xp.astype(bounds.derivative(), weight.dtype),
        bounds.method,
    )


def _scaled(lower: float, upper: float, scale: float) -> tuple[float, float]:
    """Both bounds times a power of two, rounded outward."""
    lower, upper = min(lower * scale, LARGEST), upper * scale
    if 0 < upper < SMALLEST_NORMAL:  # the products above were rounded
        lower, upper = math.nextafter(lower, 0.0), math.nextafter(upper, math.inf)
    return lower, upper


def _follow(
    route: NormRoute, weight: Array, stencil: Stencil, *, rtol: float, upper_only: bool
) -> Bounds:
    """Bounds by one route, of numbers near 1."""
    if route.method == "matrix":
        return _by_matrix(weight, stencil, rtol)
    if route.algorithm == "banded":
        return _by_band(weight, stencil, rtol, route)
    if route.method == "compression":
        bounds = by_compression(weight, stencil, rtol, route)
        if route.closing == "banded" and bounds.upper > bounds.lower * (1 + rtol):
            bounds = _by_band(weight, stencil, rtol, BANDED)
        return bounds
    if route.method == "reshaped":
        return by_reshaping(weight, stencil, rtol)
    is_around = route.method == "embedding" and stencil.reads_zeros_outside
    if is_around and not upper_only:
        return by_torus_around(weight, stencil, rtol, route)
    return _by_torus(weight, stencil, rtol, route, upper_only=upper_only)


def _by_torus(
    weight: Array, stencil: Stencil, rtol: float, route: NormRoute, *, upper_only: bool
) -> Bounds:
    """The norm of the torus that is the layer, or holds it as a block."""
    torus, factor = embedding(stencil)
    taps, real = taps_of(weight, torus), not is_complex(weight)
    rows = None if torus.axes is None else torus.rows
    peak = norm_on_torus(taps, rows, route, real=real, rtol=rtol)
    lower, upper = peak.lower, peak.upper
    if route.method == "embedding" and upper_only:
        lower = 0.0
    elif route.method == "embedding":
        most = factor * upper
        part = part_inside(stencil)
        lower = attained_near_peak(
            weight, part, taps, peak, rtol=rtol, upper=most
        ).lower
    if factor > 1:
        upper *= factor * UP
    return Bounds(
        lower,
        upper,
        lambda: factor * peak_derivative(taps, peak, weight),
        route.method,
    )


def _by_matrix(weight: Array, stencil: Stencil, rtol: float) -> Bounds:
    """The groups that may have the largest norm, each by its matrix."""

    def bound(weight: Array, stencil: Stencil) -> Bounds:
        return by_matrix(weight, operator_of(weight, stencil), rtol)

    chosen = groups_that_count(weight, stencil, "matrix")
    return by_groups(bound, weight, stencil, chosen)


def _by_band(weight: Array, stencil: Stencil, rtol: float, route: NormRoute) -> Bounds:
    """Lanczos for the lower bound, a banded Cholesky factor for the upper one.

    In the groups that may have the largest norm.
    """
    gram = banded_gram(stencil)
    if gram is None:
        raise ValueError("The reads of an axis are too many for a banded Gram matrix.")

    def bound(weight: Array, stencil: Stencil) -> Bounds:
        own = replace(gram, stencil=stencil)  # which groups share
        found = banded_norm(weight, stencil, own, rtol, route)
        return Bounds(
            found.lower,
            found.upper,
            lambda: pair_derivative(found.operator, found.pair, weight),
            found.method,
        )

    chosen = groups_that_count(weight, stencil, "banded")
    return by_groups(bound, weight, stencil, chosen)
