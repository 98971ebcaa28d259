"""Enforce a norm bound on one kernel, at all geometries that a network uses it with.

Norms here are certified upper bounds: those of the layers, or with the method "clip"
those of the circular surrogates on which it clips.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._arrays.array import Array, is_complex, is_host, namespace, normalized
from .._arrays.host import ROUND_UP, call_on_host
from .._layer.geometry import Geometry
from .._layer.stencil import (
    Stencil,
    circular_surrogate,
    embedding,
    stencil_of,
    with_rows,
)
from .._route.norm import norm_route
from .clip import clip
from .cutting_planes import can_cut, nearly_nearest
from .project import nearest_kernel
from .scale import certified_norm, lipschitz, scale_down

METHODS = ("clip", "project", "scale")
PROJECT_RTOL = 1e-3  # duality gap at which a projection stops, as `project` by default
REPORT_RTOL = 1e-2  # of norms that are only shown: no decision depends on them


@dataclass(frozen=True, slots=True, eq=False)
class Enforced:
    """What `enforce` has found and done.

    Attributes
    ----------
    weight : array
        The kernel that satisfies the bound; the given one if that did.
    is_changed : bool
    before, after : float or None
        Certified upper bounds on the norm; None with "clip", which needs no norms.
    """

    weight: Array
    is_changed: bool
    before: float | None
    after: float | None


def enforce(
    weight: Array,
    geometries: Sequence[Geometry],
    max_norm: float,
    method: str,
    *,
    in_training: bool = False,
) -> Enforced:
    """Bring the norms of a kernel down to `max_norm`, at every geometry.

    With "project" and "scale" the bound is certified. After "clip" the norms are near
    it. `in_training`, "project" may move to a kernel that is a few percent further away
    than the nearest, in much less time, and leaves the norm before unknown.
    """
    if method == "clip":
        clipped = weight
        for geometry in geometries:
            clipped = clip(clipped, geometry, max_norm)
        is_same = bool(namespace(weight).all(clipped == weight))
        return Enforced(clipped, not is_same, None, None)
    stencils = [stencil_of(weight, geometry) for geometry in geometries]
    cuts = in_training and method == "project"

    def bounded(plain: Array) -> tuple[Array, float, float]:
        if cuts and all(_cutting_planes_apply(plain, stencil) for stencil in stencils):
            return _projected_by_cuts(plain, stencils, max_norm)
        before = after = certified_norm(plain, stencils)
        if before.upper > max_norm and method == "scale":
            scaled = scale_down(plain, stencils, max_norm, before)
            plain, after = scaled.weight, scaled.norm
        elif before.upper > max_norm:
            plain = _project_all(plain, stencils, max_norm)
            after = certified_norm(plain, stencils)
        return plain, before.upper, after.upper

    found: tuple[Any, ...] = call_on_host(
        bounded, weight, arrays=1, scalars=(ROUND_UP, ROUND_UP)
    )
    before, after = float(found[1]), float(found[2])
    is_changed = not before <= max_norm
    return Enforced(
        found[0] if is_changed else weight,
        is_changed,
        None if math.isnan(before) else before,
        after,
    )


def largest_norm(weight: Array, geometries: Sequence[Geometry], method: str) -> float:
    """The largest of the norms at these geometries."""
    stencils = [stencil_of(weight, geometry) for geometry in geometries]
    rtol = None
    if method == "clip":
        stencils = [circular_surrogate(s, g) for s, g in zip(stencils, geometries)]
        rtol = REPORT_RTOL
    found = call_on_host(
        lambda plain: (certified_norm(plain, stencils, rtol).upper,),
        weight,
        arrays=0,
        scalars=(ROUND_UP,),
    )
    return float(found[0])


def norm_lipschitz(weight: Array, geometry: Geometry) -> float:
    """The most that the norm changes by, per Frobenius norm of the kernel's change."""
    return lipschitz(stencil_of(weight, geometry))


def _project_all(weight: Array, stencils: Sequence[Stencil], max_norm: float) -> Array:
    """A kernel that satisfies the bound with all stencils, for one that does not."""
    for stencil in stencils:
        if len(stencils) == 1 or certified_norm(weight, [stencil]).upper > max_norm:
            weight = nearest_kernel(weight, stencil, max_norm, PROJECT_RTOL).weight
    # The nearest kernel for one stencil may have a larger norm with another.
    return scale_down(weight, stencils, max_norm).weight


def _cutting_planes_apply(weight: Array, stencil: Stencil) -> bool:
    """Whether cutting planes bound what certifies such a kernel's norm: a torus."""
    real, host = not is_complex(weight), is_host(weight)
    route = norm_route(stencil, real=real, on_host=host, upper_only=True)
    by_torus = route.method in ("frequencies", "embedding", "supremum")
    return by_torus and can_cut(weight, stencil)


def _projected_by_cuts(
    weight: Array, stencils: Sequence[Stencil], max_norm: float
) -> tuple[Array, float, float]:
    """The new kernel, its norm before, NaN if that is not known, and after."""
    moved = weight
    for stencil in stencils:
        double, scale = normalized(moved)
        torus, factor = embedding(stencil)
        found = nearly_nearest(double, with_rows(torus), max_norm / factor / scale)
        if found is not double:
            moved = (found * scale).astype(weight.dtype)
    norm = certified_norm(moved, stencils)
    scaled = scale_down(moved, stencils, max_norm, norm)
    before = norm.upper if moved is weight else math.nan
    return scaled.weight, before, scaled.norm.upper
