"""Bound a kernel together with the BatchNorms after it, each as one map with it."""

from collections.abc import Sequence
from dataclasses import dataclass

from .._arrays.array import Array, namespace, to_double
from .._layer.geometry import Geometry
from .._layer.layer import scale_outputs
from .enforce import Enforced, enforce, largest_norm

# By so much, relative, a kernel is scaled down further than a norm above the bound asks
# for, doubled until rounding no longer matters.
MARGIN = 1e-7


@dataclass(frozen=True, slots=True, eq=False)
class Folding:
    """What multiplies the outputs of a kernel, at these geometries.

    Attributes
    ----------
    gain : array or None
        Of each output channel, in double precision; None where nothing follows.
    geometries : sequence of Geometry
    """

    gain: Array | None
    geometries: Sequence[Geometry]

    def folded(self, kernel: Array) -> Array:
        """In double precision, so that rounding a product is no matter."""
        if self.gain is None:
            return kernel
        return scale_outputs(to_double(kernel), self.gain, self.geometries[0])

    def unfolded(self, folded: Array, kernel: Array) -> Array:
        """The kernel that was folded; channels of gain 0 are those of `kernel`."""
        if self.gain is None:
            return folded
        xp, geometry = namespace(kernel), self.geometries[0]
        is_zero = xp.astype(self.gain == 0, self.gain.dtype)
        inverse = (1 - is_zero) / (self.gain + is_zero)
        kept = scale_outputs(to_double(kernel), is_zero, geometry)
        return xp.astype(scale_outputs(folded, inverse, geometry) + kept, kernel.dtype)


def enforce_folded(
    kernel: Array,
    foldings: Sequence[Folding],
    max_norm: float,
    method: str,
    *,
    in_training: bool,
) -> Enforced:
    """As `enforce`, for the kernel with the gains after it."""
    before, weight, changed = None, kernel, False
    if method != "clip":
        before = folded_norm(kernel, foldings, method)
    for folding in foldings:
        found = enforce(
            folding.folded(weight),
            folding.geometries,
            max_norm,
            method,
            in_training=in_training,
        )
        if found.is_changed:
            weight, changed = folding.unfolded(found.weight, weight), True
    after, margin, scaled, factor = before, MARGIN, weight, 1.0
    if changed and method != "clip":
        xp = namespace(kernel)
        while (after := folded_norm(scaled, foldings, method)) > max_norm:
            factor *= max_norm / after * (1 - margin)
            margin = min(2 * margin, 0.5)
            scaled = xp.astype(to_double(weight) * factor, weight.dtype)
    return Enforced(scaled, changed, before, after)


def folded_norm(kernel: Array, foldings: Sequence[Folding], method: str) -> float:
    """The largest norm of a kernel with the gains after it."""
    return max(
        largest_norm(each.folded(kernel), each.geometries, method) for each in foldings
    )
