"""Bring a kernel inside a bound and say what that did: what training needs.

Norms here are certified upper ends: those of the layer, or for the method "clip" those
of the torus on which it clips.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .._arrays.array import Array, namespace
from .._arrays.host import call_on_host
from .._layer.geometry import Geometry
from .._layer.stencil import Stencil, embedding, stencil_of
from .._norm.operator_norm import upper_bound
from .clip import circular_surrogate, clip
from .project import nearest_inside, norm_rtol, scaled_inside

METHODS = ("clip", "project", "scale")
PROJECT_RTOL = 1e-3
REPORTED = 1e-2  # how well norms are known that no decision rests on


@dataclass(frozen=True, slots=True, eq=False)
class Within:
    """A kernel brought inside, None if it was, and its norms before and after.

    A clip needs no norms, and has none here.
    """

    weight: Array | None
    before: float | None
    after: float | None


def within(
    weight: Array, geometries: list[Geometry], max_norm: float, method: str
) -> Within:
    """Bring a kernel inside a bound, at every geometry that it is used at.

    After "project" and "scale" it certainly is; after "clip" it is nearer.
    """
    if method == "clip":
        clipped = weight
        for geometry in geometries:
            clipped = clip(clipped, geometry, max_norm)
        same = bool(namespace(weight).all(clipped == weight))
        return Within(None if same else clipped, None, None)
    before = norm_of(weight, geometries, method)
    if before <= max_norm:
        return Within(None, before, before)
    stencils = [stencil_of(weight, geometry) for geometry in geometries]
    move = _nearest if method == "project" else scaled_inside
    for stencil in stencils:
        weight = _moved(weight, move, stencil, max_norm)
    if len(stencils) > 1:  # what is right for one may be too large for another
        for stencil in stencils:
            weight = _moved(weight, scaled_inside, stencil, max_norm)
    return Within(weight, before, norm_of(weight, geometries, method))


def norm_of(weight: Array, geometries: list[Geometry], method: str) -> float:
    """The largest norm at these geometries, certified from above.

    For clips roughly, and that of the tori on which they clip.
    """
    stencils = [stencil_of(weight, geometry) for geometry in geometries]
    if method == "clip":
        stencils = [
            circular_surrogate(s, geometry) for s, geometry in zip(stencils, geometries)
        ]

    def largest(plain: Array) -> tuple[float]:
        rough = REPORTED if method == "clip" else 0.0
        return (max(upper_bound(plain, s, rough or norm_rtol(s)) for s in stencils),)

    return float(call_on_host(largest, weight, arrays=0, scalars=(1,))[0])


def most_of_change(weight: Array, geometry: Geometry) -> float:
    """How much the norm may change per change of the kernel's Frobenius norm.

    Each tap alone is a layer that stretches nothing by more than its matrix does, but
    for what the padding repeats.
    """
    stencil = stencil_of(weight, geometry)
    return embedding(stencil)[1] * stencil.taps**0.5


def _moved(
    weight: Array,
    move: Callable[[Array, Stencil, float], Array],
    stencil: Stencil,
    most: float,
) -> Array:
    found = call_on_host(lambda plain: (move(plain, stencil, most),), weight, arrays=1)
    return found[0]


def _nearest(weight: Array, stencil: Stencil, most: float) -> Array:
    if upper_bound(weight, stencil, norm_rtol(stencil)) <= most:
        return weight
    return nearest_inside(weight, stencil, most, PROJECT_RTOL).weight
