"""The nearest kernel whose norm is certified to be within a bound."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .._arrays.array import Array, is_traced, namespace, normalized, to_double
from .._arrays.host import ROUND_DOWN, ROUND_NEAREST, ROUND_UP, call_on_host
from .._base import fraction, positive
from .._layer.geometry import Geometry
from .._layer.stencil import Stencil, embedding, stencil_of, with_rows
from .._norm.bounds import Bounds
from .._norm.norm_bounds import norm_bounds
from .._norm.operator_norm import NormBounds
from .._route.bound import projects_by_matrix
from .._route.norm import method_of
from .blocks import matrix_blocks, torus_blocks
from .nearest import nearest
from .scale import Certified, Scaled, norm_rtol, scale_down

ROUNDS = 100  # iterations of the solver at most; usual are 5 to 20
# The part of a bound that a layer must have left for the torus around it to get it.
WORTHWHILE = 1e-3
# How the scalars of a `_HostResult` are rounded: both pairs of bounds outward.
ROUNDED_SCALARS = (ROUND_DOWN, ROUND_UP) * 2 + (ROUND_NEAREST,) * 3


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """The nearest kernel within a norm bound, with certificates; see `project`.

    Attributes
    ----------
    weight : array
        Of the shape and dtype of the given kernel; a constant to automatic
        differentiation.
    before, after : NormBounds
        Bounds on the layer's norm; `after.upper` is at most `max_norm`.
    distance : scalar
        Frobenius norm of the change.
    rounds : int
        Iterations of the solver; 0 if the kernel already satisfied the bound.
    gap : scalar
        Relative duality gap: no kernel within the bound has a squared distance below (1
        - gap) * distance^2. For layers bounded by an embedding this refers to kernels
        whose embedding has the norm that was imposed on it: see `project`.
    """

    weight: Array
    before: NormBounds
    after: NormBounds
    distance: Any
    rounds: Any
    gap: Any


def project(
    weight: Array, geometry: Geometry, max_norm: float, rtol: float = 1e-3
) -> Projection:
    """The nearest kernel, with the same support, whose norm is at most `max_norm`.

    Solves the convex problem: minimize |K - weight|_F over kernels K of the same shape
    with operator_norm(K) <= max_norm. The norm of the result is certified.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
        If the layer is not block diagonal in the Fourier basis and its matrix has more
        than 2**18 entries, a bound is imposed on a circular layer that contains it:
        `max_norm`, and then as much more as the layer itself has left of it. The result
        satisfies `max_norm`, and is not further away than the scaled kernel, but `gap`
        refers to the feasible set of that layer. With grid None the bound holds for
        every input size (if the boundary is circular, for every size that the stride
        divides).
    max_norm : float
    rtol : float
        Duality gap to reach, relative to the squared distance.

    Returns
    -------
    Projection
    """
    stencil = stencil_of(weight, geometry)
    max_norm = positive("max_norm", max_norm)
    rtol = fraction("rtol", rtol)
    # Under `jit`, where the numbers are not known yet, the method is that of the route.
    method_before = method_after = method_of(stencil)

    def projected(plain: Array) -> _HostResult:
        nonlocal method_before, method_after
        before, best = _projected(plain, stencil, max_norm, rtol)
        method_before, method_after = before.method, best.norm.method
        return _HostResult(
            best.kernel.weight,
            *(before.lower, before.upper),
            *(best.norm.lower, best.norm.upper),
            *(best.kernel.distance, best.kernel.rounds, best.kernel.gap),
        )

    found = _HostResult(
        *call_on_host(projected, weight, arrays=1, scalars=ROUNDED_SCALARS)
    )
    grid = stencil.grid
    return Projection(
        weight=found.weight,
        before=NormBounds(found.lower_before, found.upper_before, method_before, grid),
        after=NormBounds(found.lower_after, found.upper_after, method_after, grid),
        distance=found.distance,
        rounds=found.rounds if is_traced(weight) else int(found.rounds),
        gap=found.gap,
    )


class _HostResult(NamedTuple):
    """A projection as `call_on_host` returns it: an array, then scalars."""

    weight: Array
    lower_before: Any
    upper_before: Any
    lower_after: Any
    upper_after: Any
    distance: Any
    rounds: Any
    gap: Any


def _projected(
    weight: Array, stencil: Stencil, max_norm: float, rtol: float
) -> "tuple[Bounds, _Candidate]":
    """Bounds of the norm before, and the nearest of these kernels:

    (a) that of the solver, scaled down to the bound;
    (b) that of the solver for a larger bound, by what the layer has left of its own
        after (a), scaled down to the bound;
    (c) the given kernel, scaled down to the bound.

    (b) and (c) are tried only where the solver bounds a torus around the layer, whose
    norm is larger, and (b) only on a grid. A kernel that satisfies the bound stays.
    """
    before = norm_bounds(weight, stencil, norm_rtol(stencil))
    norm = Certified(before.upper, before.method)
    if before.upper <= max_norm:
        return before, _Candidate(NearestKernel(weight, norm, 0.0, 0, 0.0), before)
    solved = _solve(weight, stencil, max_norm, rtol)
    kernel = solved.moved_to(scale_down(solved.weight, [stencil], max_norm))
    found = _candidate(kernel, stencil)
    if stencil.is_torus or projects_by_matrix(stencil):
        return before, found
    # The torus around the layer satisfies the bound: the layer has some of it left.
    after = found.norm.upper
    if stencil.axes is not None and 0 < after < max_norm * (1 - WORTHWHILE):
        less = _solve(weight, stencil, max_norm * max_norm / after, rtol)
        bounds = norm_bounds(less.weight, stencil, norm_rtol(stencil))
        certified = Certified(bounds.upper, bounds.method)
        scaled = scale_down(less.weight, [stencil], max_norm, certified)
        kernel = less.moved_to(scaled)
        if kernel.distance < found.kernel.distance:
            is_same = scaled.weight is less.weight
            found = _candidate(kernel, stencil, bounds if is_same else None)
    # A kernel whose norm is hardly above the bound moves least if it is scaled.
    kernel = solved.moved_to(scale_down(weight, [stencil], max_norm, norm))
    if kernel.distance < found.kernel.distance:
        found = _candidate(kernel, stencil)
    return before, found


@dataclass(frozen=True, slots=True, eq=False)
class NearestKernel:
    """The nearest kernel that satisfies a bound; see `Projection` for the fields."""

    weight: Array
    norm: Certified
    distance: float
    rounds: int
    gap: float


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A kernel that satisfies the bound, and bounds of its norm from both sides."""

    kernel: NearestKernel
    norm: Bounds


def _candidate(
    kernel: NearestKernel, stencil: Stencil, bounds: Bounds | None = None
) -> _Candidate:
    """A kernel with bounds of its norm, which are computed if they are not known."""
    if bounds is None:
        bounds = norm_bounds(kernel.weight, stencil, norm_rtol(stencil))
    if kernel.norm.upper < bounds.upper:  # certified by another way
        bounds = replace(bounds, upper=kernel.norm.upper, method=kernel.norm.method)
    return _Candidate(kernel, bounds)


def nearest_kernel(
    weight: Array, stencil: Stencil, max_norm: float, rtol: float
) -> NearestKernel:
    """The nearest kernel that satisfies the bound, for one that does not."""
    solved = _solve(weight, stencil, max_norm, rtol)
    return solved.moved_to(scale_down(solved.weight, [stencil], max_norm))


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """The nearest kernel as the solver has found it, from one over a power of two."""

    weight: Array
    start: Array
    scale: float
    rounds: int
    dual: float

    def moved_to(self, scaled: Scaled) -> NearestKernel:
        """Another kernel in its place, which satisfies the bound."""
        xp, kernel = namespace(scaled.weight), scaled.weight
        change = to_double(kernel) * (1 / self.scale) - self.start
        distance = float(xp.linalg.vector_norm(change))
        gap = max(1 - 2 * self.dual / distance**2, 0.0) if distance else 0.0
        distance *= self.scale
        return NearestKernel(kernel, scaled.norm, distance, self.rounds, gap)


def _solve(weight: Array, stencil: Stencil, max_norm: float, rtol: float) -> _Solved:
    """With the bound for a layer's matrix, or for a torus that holds it as a block."""
    double, scale = normalized(weight)
    if projects_by_matrix(stencil):
        blocks, factor = matrix_blocks(double, stencil), 1.0
    else:
        torus, factor = embedding(stencil)
        blocks = torus_blocks(double, with_rows(torus))
    bound = max_norm / factor / scale
    found = nearest(blocks, bound, rtol=rtol, max_rounds=ROUNDS)
    kernel = blocks.kernel(found.kernel, double) * scale
    kernel = namespace(weight).astype(kernel, weight.dtype)
    return _Solved(kernel, double, scale, found.rounds, found.dual)
