"""Kernels that are scaled down until their norm is certified to be within a bound."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .._arrays.array import (
    Array,
    frobenius_norm,
    namespace,
    normalized,
    spacing,
    to_double,
)
from .._arrays.host import call_on_host
from .._base import positive
from .._layer.geometry import Geometry
from .._layer.stencil import Stencil, embedding, stencil_of
from .._norm.norm_bounds import upper_bound
from .._norm.rounding import TIGHT, UNIT_DOUBLE, UP
from .._route.norm import method_of
from .._route.records import Method

# Relative gaps of norms that hold on every grid, and of those that a banded factor
# certifies: see `norm_rtol`.
SUPREMUM_RTOL, BANDED_RTOL = 3e-4, 1e-6
# A scaled kernel may lie so far inside of the bound, relative to it, to make up for its
# rounding. Half precision needs more, and has its norm certified again.
MOST_SPARED = 1e-4
# Covers the rounding of a Frobenius norm of up to 2^32 numbers in double precision.
ROUNDED = 1 + 1e-6
# More than what an entry below it is off by.
SMALLEST_NORMAL = 2.0**-1022


def scale_to(weight: Array, geometry: Geometry, max_norm: float) -> Array:
    """Scale the kernel down until its certified norm is at most `max_norm`.

    A kernel that already satisfies the bound is returned unchanged.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
    max_norm : float

    Returns
    -------
    array
        Of the shape and dtype of `weight`; a constant to automatic differentiation.
    """
    stencil = stencil_of(weight, geometry)
    max_norm = positive("max_norm", max_norm)
    return call_on_host(
        lambda plain: (scale_down(plain, [stencil], max_norm).weight,), weight, arrays=1
    )[0]


@dataclass(frozen=True, slots=True)
class Certified:
    """A certified bound of a norm, and what has certified it."""

    upper: float
    method: Method


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A kernel whose norm is certified."""

    weight: Array
    norm: Certified


def scale_down(
    weight: Array,
    stencils: Sequence[Stencil],
    max_norm: float,
    norm: Certified | None = None,
) -> Scaled:
    """Scale `weight` until its norm, rounded to its own precision, is certified.

    `norm` is a bound of the norms with all stencils, if that is known.
    """
    xp = namespace(weight)
    norm = certified_norm(weight, stencils) if norm is None else norm
    if norm.upper <= max_norm:
        return Scaled(weight, norm)
    scaled = _scale_by_rounding(weight, stencils, max_norm, norm)
    if scaled is not None:
        return scaled
    found, factor, margin = weight, 1.0, spacing(weight)
    while norm.upper > max_norm:
        factor *= max_norm / norm.upper * (1 - margin)
        margin = min(2 * margin, 0.5)
        found = xp.astype(to_double(weight) * factor, weight.dtype)
        norm = certified_norm(found, stencils)
    return Scaled(found, norm)


def _scale_by_rounding(
    weight: Array, stencils: Sequence[Stencil], max_norm: float, norm: Certified
) -> Scaled | None:
    """Scale once, by a little more than asked for; None if that is not enough.

    With E = scaled - factor * weight, which is rounding alone,

        norm(scaled) <= factor * upper + norm(E).

    E is computed with two roundings per entry, of numbers that are not above 1.5
    |factor * weight|: so it is off by at most 3 u of that, and by SMALLEST_NORMAL where
    a product is below the normal numbers. All is over a power of two, without rounding.
    """
    xp, (double, scale) = namespace(weight), normalized(weight)
    slope, size = max(map(lipschitz, stencils)), frobenius_norm(double)
    smallest = SMALLEST_NORMAL * math.sqrt(math.prod(weight.shape))
    upper, spared = norm.upper, 0.0
    while spared <= MOST_SPARED:
        factor = max_norm / upper * (1 - spared)
        scaled = xp.astype(to_double(weight) * factor, weight.dtype)
        error = frobenius_norm(to_double(scaled) * (1 / scale) - double * factor)
        error = (error + 3 * UNIT_DOUBLE * factor * size + smallest) * ROUNDED
        new = (factor * (upper / scale) + slope * error) * UP * scale
        new = math.nextafter(new, math.inf)
        if new <= max_norm:
            return Scaled(scaled, Certified(new, norm.method))
        # At least twice as much each time: nearly all of it may go to the rounding.
        spared = 2 * (spared + new / max_norm - 1)
    return None


def lipschitz(stencil: Stencil) -> float:
    """The most that the norm changes by, per Frobenius norm of a change of the kernel.

    A kernel of one tap has at most the norm of that tap's matrix, times the factor by
    which its padding repeats inputs. The norms of all taps add up to at most sqrt(taps)
    times the Frobenius norm.
    """
    return embedding(stencil)[1] * stencil.taps**0.5 * UP


def certified_norm(
    weight: Array, stencils: Sequence[Stencil], rtol: float | None = None
) -> Certified:
    """The largest of the certified norms with these stencils."""
    found = (upper_bound(weight, s, rtol or norm_rtol(s)) for s in stencils)
    largest = max(found, key=lambda bounds: bounds.upper)
    return Certified(largest.upper, largest.method)


def norm_rtol(stencil: Stencil) -> float:
    """The relative gap of norms that decide about a projected kernel.

    Such a kernel attains its norm at many frequencies. On a grid the search then goes
    through all of them, at worst; without a grid, through ever more the smaller the
    gap. So does Lanczos, before a banded factor.
    """
    if stencil.axes is None:
        return SUPREMUM_RTOL
    return BANDED_RTOL if method_of(stencil) == "banded" else TIGHT
