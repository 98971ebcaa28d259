"""Enforce a norm bound on one kernel, at all geometries that a network uses it with.

Norms here are certified upper bounds: those of the layers, or with the method "clip"
those of the circular surrogates on which it clips.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._arrays.array import Array, namespace
from .._arrays.host import call_on_host
from .._layer.geometry import Geometry
from .._layer.stencil import Stencil, embedding, stencil_of
from .._norm.operator_norm import upper_bound
from .clip import circular_surrogate, clip
from .project import nearest_kernel, norm_rtol, scale_down

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
    weight: Array, geometries: Sequence[Geometry], max_norm: float, method: str
) -> Enforced:
    """Bring the norms of a kernel down to `max_norm`, at every geometry.

    With "project" and "scale" the bound is certified. After "clip" the norms are near
    it.
    """
    if method == "clip":
        clipped = weight
        for geometry in geometries:
            clipped = clip(clipped, geometry, max_norm)
        is_same = bool(namespace(weight).all(clipped == weight))
        return Enforced(clipped, not is_same, None, None)
    stencils = [stencil_of(weight, geometry) for geometry in geometries]

    def bounded(plain: Array) -> tuple[Array, float, float]:
        before = after = _largest(plain, stencils)
        if before > max_norm:
            plain = _moved(plain, stencils, max_norm, method)
            after = _largest(plain, stencils)
        return plain, before, after

    found: tuple[Any, ...] = call_on_host(bounded, weight, arrays=1, scalars=(1, 1))
    before, after = float(found[1]), float(found[2])
    is_changed = before > max_norm
    return Enforced(found[0] if is_changed else weight, is_changed, before, after)


def largest_norm(weight: Array, geometries: Sequence[Geometry], method: str) -> float:
    """The largest of the norms at these geometries."""
    stencils = [stencil_of(weight, geometry) for geometry in geometries]
    rtol = None
    if method == "clip":
        stencils = [circular_surrogate(s, g) for s, g in zip(stencils, geometries)]
        rtol = REPORT_RTOL
    found = call_on_host(
        lambda plain: (_largest(plain, stencils, rtol),), weight, arrays=0, scalars=(1,)
    )
    return float(found[0])


def norm_lipschitz(weight: Array, geometry: Geometry) -> float:
    """The most that the norm changes by, per Frobenius norm of a change of the kernel.

    A kernel of one tap has at most the norm of that tap's matrix, times the factor by
    which its padding repeats inputs. The norms of all taps add up to at most sqrt(taps)
    times the Frobenius norm.
    """
    stencil = stencil_of(weight, geometry)
    return embedding(stencil)[1] * stencil.taps**0.5


def _largest(
    weight: Array, stencils: Sequence[Stencil], rtol: float | None = None
) -> float:
    return max(upper_bound(weight, s, rtol or norm_rtol(s)) for s in stencils)


def _moved(
    weight: Array, stencils: Sequence[Stencil], max_norm: float, method: str
) -> Array:
    """A kernel that satisfies the bound with all stencils, for one that does not."""
    if method == "project":
        for stencil in stencils:
            if len(stencils) == 1 or _largest(weight, [stencil]) > max_norm:
                nearest = nearest_kernel(weight, stencil, max_norm, PROJECT_RTOL)
                weight = nearest.weight
    # The nearest kernel for one stencil may have a larger norm with another.
    if method == "scale" or len(stencils) > 1:
        for stencil in stencils:
            weight = scale_down(weight, stencil, max_norm)
    return weight
