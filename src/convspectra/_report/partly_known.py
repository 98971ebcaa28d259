"""Between which bounds is the norm of a layer whose geometry is only partly known?

Nothing is assumed of what is not known: a bound holds for every geometry that is still
possible, or there is none.
"""

import math
from collections.abc import Collection
from dataclasses import replace

from .._arrays.array import to_numpy
from .._layer.boundary import boundary_of
from .._layer.geometry import Geometry, Padding, per_axis
from .._layer.layer import Layer
from .._layer.stencil import stencil_of
from .._norm.norm_bounds import lower_bound
from .._norm.operator_norm import NormBounds, operator_norm
from .._norm.rounding import UP
from .._route.norm import method_of

WIDEST = 64  # padding and dilation up to which a layer is looked at as it is
NO_LOWER = 0.0  # a lower bound that always holds, and says nothing


def norm_of(
    layer: Layer, unknown: Collection[str], rtol: float, budget: float | None = None
) -> NormBounds:
    """Bound the norm of a layer for every value of the fields that are unknown.

    `unknown` are fields of the layer's geometry, whose values there mean nothing. A
    boundary that is unknown is one of zeros, or a circle that is padded by less than
    the kernel's reach, as one is whose padding is unknown. What repeats inputs as often
    as it pads has no bound unless padding and dilation are known. Where no lower bound
    is known, it is `NO_LOWER`.
    """
    if unknown:
        norm = _bounded_by(_covering(layer, unknown), layer, unknown, rtol, budget)
        return replace(norm, lower=_lower(layer, unknown, rtol, budget))
    norm = operator_norm(layer.weight, layer.geometry, rtol, budget=budget)
    lower, upper = (float(to_numpy(x)) for x in (norm.lower, norm.upper))
    return replace(norm, lower=lower, upper=upper)


def upper_if_depthwise(
    layer: Layer, unknown: Collection[str], rtol: float, budget: float | None = None
) -> float | None:
    """The upper bound of a layer that has as many groups as channels.

    None unless the groups are unknown and there is one input channel in each: then the
    layer is depthwise, or has an input of one channel, or something between.
    """
    channels, inputs = layer.weight.shape[:2]
    if "groups" not in unknown or inputs > 1 or channels == 1:
        return None
    geometry = replace(_covering(layer, unknown), groups=channels)
    return _bounded_by(geometry, layer, unknown, rtol, budget).upper


def _bounded_by(
    covering: Geometry,
    layer: Layer,
    unknown: Collection[str],
    rtol: float,
    budget: float | None,
) -> NormBounds:
    """The bound that a covering geometry gives of the layer, and none from below."""
    norm = operator_norm(layer.weight, covering, rtol, budget=budget)
    upper = float(to_numpy(norm.upper))
    repeats = _repeated_outputs(layer, unknown) if covering.grid is None else 1
    if repeats > 1:
        upper *= math.sqrt(repeats) * UP
    return replace(norm, lower=NO_LOWER, upper=upper)


def _covering(layer: Layer, unknown: Collection[str]) -> Geometry:
    """A geometry whose norm is at least that of each which is still possible.

    But for the outputs that a circle repeats, if it has no grid: `_repeated_outputs`.

    Groups are blocks of the layer in one group. A stride leaves out rows of stride 1,
    other grids and zero padding leave out rows and columns of a large enough torus, and
    a dilation has the same symbol at other frequencies: none exceeds the supremum.
    """
    geometry = layer.geometry
    _check_repeats(geometry, unknown)
    if "transposed" in unknown:  # on a grid of its own size, and with output padding
        unknown = (*unknown, "grid")
    if "grid" in unknown and geometry.boundary == "circular":
        unknown = (*unknown, "stride")  # which need not divide the grid
    widest = max(per_axis(geometry.dilation, 1))
    if "grid" in unknown and widest > WIDEST:  # which would be searched for hours
        geometry = replace(
            geometry,
            stride=1,
            dilation=1,
            padding=_padding(layer, unknown),
            output_padding=0,
        )
    if set(unknown) <= {"grid", "groups", "transposed"}:
        return replace(geometry, grid=None) if "grid" in unknown else geometry
    plain = replace(
        geometry,
        grid=None,
        stride=1,
        padding=_padding(layer, unknown),
        output_padding=0,
    )
    if "dilation" in unknown:
        plain = replace(plain, dilation=1)
    return replace(plain, boundary="zeros") if "boundary" in unknown else plain


def _check_repeats(geometry: Geometry, unknown: Collection[str]) -> None:
    """Refuse a boundary that repeats inputs nobody knows how often."""
    if "boundary" in unknown or not _repeats(geometry):
        return
    if missing := [name for name in ("padding", "dilation") if name in unknown]:
        raise ValueError(
            f"The boundary {geometry.boundary!r} repeats inputs as often as they are "
            f"padded: {' and '.join(missing)} must be known. State "
            f"{' and '.join(f'--{name}' for name in missing)}."
        )


def _padding(layer: Layer, unknown: Collection[str]) -> Padding:
    """For any dilation, what repeats inputs as often as the layer's padding does."""
    if "boundary" in unknown or not _repeats(layer.geometry):
        return "same"
    stencil = stencil_of(layer.weight, replace(layer.geometry, grid=None))
    return tuple((0, padded) for padded in stencil.max_padding)


def _repeats(geometry: Geometry) -> bool:
    """Whether the boundary reads an input once more at a site beyond it."""
    return boundary_of(geometry.boundary).repeats(1) > 1


def _repeated_outputs(layer: Layer, unknown: Collection[str]) -> int:
    """How often a known circle has the same output at most, on a grid of any size.

    Padding by the kernel's reach or more gives more outputs than there are sites: with
    one site, all are the same. Less than that, or "same", gives no more.
    """
    geometry, kernel = layer.geometry, layer.weight.shape[2:]
    if (
        {"boundary", "padding"} & set(unknown)
        or not boundary_of(geometry.boundary).is_circular
        or not isinstance(geometry.padding, tuple)
    ):
        return 1
    least = 1 if "dilation" in unknown else geometry.dilation
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, per_axis(least, len(kernel)))]
    return math.prod(
        1 + max(before + after - sites + 1, 0)
        for (before, after), sites in zip(geometry.padding, reach)
    )


def _lower(
    layer: Layer, unknown: Collection[str], rtol: float, budget: float | None
) -> float:
    """An attained lower bound of every geometry that is still possible.

    More groups, as blocks, have smaller norms: the least is that of as many groups as
    rows.
    """
    weight, geometry = layer.weight, layer.geometry
    kernel = tuple(weight.shape[2:])
    grid = geometry.grid
    if math.prod(kernel) == 1:
        # Whichever site is read, it is multiplied by the one matrix. (With padding a
        # stride may step over all of a tiny input; that is no layer anyone has.)
        grid = (1,) * len(kernel)
        geometry = Geometry(grid, groups=geometry.groups, padding="valid")
    elif not set(unknown) <= {"grid", "groups"}:
        return NO_LOWER
    elif "grid" in unknown:
        grid = _smallest_grid(geometry, kernel)
    if grid is None:
        return NO_LOWER
    geometry = replace(geometry, grid=grid)
    if "groups" in unknown:
        geometry = replace(geometry, groups=weight.shape[0])
    stencil = stencil_of(weight, geometry)
    if method_of(stencil) in ("frequencies", "matrix"):
        norm = operator_norm(weight, geometry, rtol, budget=budget)
        return float(to_numpy(norm.lower))
    return lower_bound(to_numpy(weight), stencil, rtol)


def _smallest_grid(
    geometry: Geometry, kernel: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The smallest grid with an output, if each grid has the layer there as a block.

    With zeros beyond the border, and as many of them on every grid, an input on a small
    grid is one on a larger grid, and all of its outputs are among those there.
    """
    axes = len(kernel)
    stride, dilation = (
        per_axis(sizes, axes) for sizes in (geometry.stride, geometry.dilation)
    )
    if geometry.boundary != "zeros":
        return None
    if not isinstance(geometry.padding, tuple):  # "same"
        return (1,) * axes if max(stride) == 1 else None
    extra = per_axis(geometry.output_padding, axes)
    found = []
    for a, (before, after) in enumerate(geometry.padding):
        reach = dilation[a] * (kernel[a] - 1) + 1
        if max(before, after) >= min(reach, WIDEST):
            return None  # too many zeros to apply the layer to, for no better bound
        missing = reach - before - after
        if geometry.transposed:  # (n - 1) * stride + missing + extra >= 1 outputs
            least = 1 - (missing + extra[a] - 1) // stride[a]
        else:
            least = missing
        found.append(max(least, 1))
    return tuple(found)
