"""The nearest kernel whose norm is certified to be within a bound."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .._arrays.array import Array, is_traced, namespace, normalized, to_double
from .._arrays.host import call_on_host
from .._base import fraction, positive
from .._layer.geometry import Geometry
from .._layer.stencil import Stencil, embedding, stencil_of
from .._norm.bounds import Bounds
from .._norm.norm_bounds import norm_bounds
from .._norm.operator_norm import NormBounds
from .._route import method_of, projects_by_matrix
from .blocks import matrix_blocks, torus_blocks
from .clip import with_rows
from .nearest import nearest
from .scale import Certified, Scaled, norm_rtol, scale_down

ROUNDS = 100  # iterations of the solver at most; usual are 5 to 20
# The part of a bound that a layer must have left for the torus around it to get it.
WORTHWHILE = 1e-3


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
        satisfies `max_norm`, but `gap` refers to the feasible set of that layer. With
        grid None the bound holds for every input size (if the boundary is
        circular, for every size that the stride divides).
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
    before = after = method_of(stencil)

    def projected(plain: Array) -> _Projected:
        nonlocal before, after
        found = _projected(plain, stencil, max_norm, rtol)
        before, after = found.before.method, found.after.method
        return _Projected(
            found.moved.weight,
            *(found.before.lower, found.before.upper),
            *(found.after.lower, found.after.upper),
            *(found.moved.distance, found.moved.rounds, found.moved.gap),
        )

    found = _Projected(
        *call_on_host(projected, weight, arrays=1, scalars=(-1, 1, -1, 1, 0, 0, 0))
    )
    grid = stencil.grid
    return Projection(
        weight=found.weight,
        before=NormBounds(found.lower_before, found.upper_before, before, grid),
        after=NormBounds(found.lower_after, found.upper_after, after, grid),
        distance=found.distance,
        rounds=found.rounds if is_traced(weight) else int(found.rounds),
        gap=found.gap,
    )


class _Projected(NamedTuple):
    """A projection as `call_on_host` returns it: an array, then scalars."""

    weight: Array
    lower_before: Any
    upper_before: Any
    lower_after: Any
    upper_after: Any
    distance: Any
    rounds: Any
    gap: Any


@dataclass(frozen=True, slots=True, eq=False)
class _Moved:
    """A kernel and the bounds of its norm, before and after it was moved."""

    moved: "NearestKernel"
    before: Bounds
    after: Bounds


def _projected(weight: Array, stencil: Stencil, max_norm: float, rtol: float) -> _Moved:
    before = after = norm_bounds(weight, stencil, norm_rtol(stencil))
    norm = Certified(before.upper, before.method)
    if before.upper <= max_norm:
        return _Moved(NearestKernel(weight, norm, 0.0, 0, 0.0), before, after)
    moved = nearest_kernel(weight, stencil, max_norm, rtol)
    after = norm_bounds(moved.weight, stencil, norm_rtol(stencil))
    if after.upper < max_norm * (1 - WORTHWHILE) and _has_torus_around(stencil):
        solved = _solve(weight, stencil, max_norm * max_norm / after.upper, rtol)
        bounds = norm_bounds(solved.weight, stencil, norm_rtol(stencil))
        norm = Certified(bounds.upper, bounds.method)
        scaled = scale_down(solved.weight, [stencil], max_norm, norm)
        wider = solved.moved_to(scaled)
        if wider.distance < moved.distance:
            moved, after = wider, bounds
            if scaled.weight is not solved.weight:
                after = norm_bounds(moved.weight, stencil, norm_rtol(stencil))
    if moved.norm.upper < after.upper:  # certified by another way
        after = replace(after, upper=moved.norm.upper, method=moved.norm.method)
    return _Moved(moved, before, after)


@dataclass(frozen=True, slots=True, eq=False)
class NearestKernel:
    """The nearest kernel that satisfies a bound; see `Projection` for the fields."""

    weight: Array
    norm: Certified
    distance: float
    rounds: int
    gap: float


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
        gap = max(1 - 2 * self.dual / distance**2, 0.0)
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


def _has_torus_around(stencil: Stencil) -> bool:
    """Whether a torus that is larger than the layer was given the bound."""
    known = stencil.axes is not None and not stencil.is_torus
    return known and not projects_by_matrix(stencil)
