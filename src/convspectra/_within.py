"""Bring a kernel inside a bound and say what that did: what training needs.

Norms here are certified upper ends: those of the layer, or for the method "clip" those
of the torus on which it clips.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ._array import Array, looking_at_numbers
from ._geometry import Geometry
from ._norm import upper_end
from ._project import clip, closeness, nearest_inside, scaled_inside, stand_in
from ._stencil import Stencil, embedding, stencil_of

METHODS = ("clip", "project", "scale")
PROJECT_RTOL = 1e-3
REPORTED = 1e-2  # how well norms are known that no decision rests on


@dataclass(frozen=True, slots=True, eq=False)
class Within:
    """A kernel brought inside, None if it was, and its norms before and after."""

    weight: Array | None
    before: float
    after: float


def within(
    weight: Array, geometries: list[Geometry], max_norm: float, method: str
) -> Within:
    """Bring a kernel inside a bound, at every geometry that it is used at.

    After "project" and "scale" it certainly is; after "clip" it is nearer.
    """
    stencils = [_stencil(weight, geometry, method) for geometry in geometries]
    rtol = REPORTED if method == "clip" else 0.0
    before = _largest(weight, stencils, rtol)
    if before <= max_norm:
        return Within(None, before, before)
    if method == "clip":
        for geometry in geometries:
            weight = clip(weight, geometry, max_norm)
    else:
        move = _nearest if method == "project" else _scaled
        for stencil in stencils:
            weight = _on_numbers(partial(move, stencil=stencil, most=max_norm), weight)
        if len(stencils) > 1:  # what is right for one may be too large for another
            for stencil in stencils:
                scale = partial(_scaled, stencil=stencil, most=max_norm)
                weight = _on_numbers(scale, weight)
    return Within(weight, before, _largest(weight, stencils, rtol))


def most_of_change(weight: Array, geometry: Geometry) -> float:
    """How much the norm may change per change of the kernel's Frobenius norm.

    Each tap alone is a layer that stretches nothing by more than its matrix does, but
    for what the padding repeats.
    """
    stencil = stencil_of(weight, geometry)
    return embedding(stencil)[1] * stencil.taps**0.5


def _stencil(weight: Array, geometry: Geometry, method: str) -> Stencil:
    stencil = stencil_of(weight, geometry)
    return stand_in(stencil, geometry) if method == "clip" else stencil


def _largest(weight: Array, stencils: list[Stencil], rtol: float) -> float:
    def largest(plain: Array) -> tuple[float]:
        return (max(upper_end(plain, s, rtol or closeness(s)) for s in stencils),)

    return float(looking_at_numbers(largest, weight, arrays=0, scalars=(1,))[0])


def _on_numbers(move: Callable[[Array], Array], weight: Array) -> Array:
    return looking_at_numbers(lambda plain: (move(plain),), weight, arrays=1)[0]


def _nearest(weight: Array, stencil: Stencil, most: float) -> Array:
    if upper_end(weight, stencil, closeness(stencil)) <= most:
        return weight
    return nearest_inside(weight, stencil, most, PROJECT_RTOL)[0]


def _scaled(weight: Array, stencil: Stencil, most: float) -> Array:
    return scaled_inside(weight, stencil, most)
