"""Bound a kernel together with the BatchNorm after it, as one map."""

import copy
from dataclasses import replace

import torch

from .._bound.enforce import Enforced, enforce, largest_norm
from .._layer.geometry import Geometry
from .._layer.layer import scale_outputs
from ._modules import gain_of
from ._targets import Target

# By so much, relative, a kernel is scaled down further than a norm above the bound asks
# for, doubled until rounding no longer matters.
MARGIN = 1e-7


def enforce_folded(
    kernel: torch.Tensor, target: Target, method: str, *, in_training: bool
) -> Enforced:
    """As `enforce`, for the kernel with the gains that BatchNorms have now."""
    before, weight, changed = None, kernel, False
    if method != "clip":
        before = folded_norm(kernel, target, method)
    for norm in {view.batch_norm: None for view in target.views}:
        geometries = [v.geometry for v in target.views if v.batch_norm is norm]
        folded = _folded(weight, norm, geometries[0])
        found = enforce(
            folded, geometries, target.max_norm, method, in_training=in_training
        )
        if found.is_changed:
            weight, changed = _unfolded(found.weight, weight, norm, geometries[0]), True
    after, margin, scaled, factor = before, MARGIN, weight, 1.0
    if changed and method != "clip":
        while (after := folded_norm(scaled, target, method)) > target.max_norm:
            factor *= target.max_norm / after * (1 - margin)
            margin = min(2 * margin, 0.5)
            scaled = (weight.double() * factor).to(weight.dtype)
    return Enforced(scaled, changed, before, after)


def folded_norm(kernel: torch.Tensor, target: Target, method: str) -> float:
    """The largest norm of a kernel over the views of a target."""
    if not target.is_folded:
        return largest_norm(kernel, target.geometries, method)
    return max(
        largest_norm(_folded(kernel, v.batch_norm, v.geometry), [v.geometry], method)
        for v in target.views
    )


def frozen_gains(target: Target) -> Target:
    """The same target, whose BatchNorms keep the gains that they have now."""
    norms = {v.batch_norm: copy.deepcopy(v.batch_norm) for v in target.views}
    views = [replace(v, batch_norm=norms[v.batch_norm]) for v in target.views]
    return replace(target, views=views)


def _folded(
    kernel: torch.Tensor, norm: torch.nn.Module | None, geometry: Geometry
) -> torch.Tensor:
    """In double precision, so that rounding a product is no matter."""
    if norm is None:
        return kernel
    return scale_outputs(kernel.double(), gain_of(norm).double(), geometry)


def _unfolded(
    folded: torch.Tensor,
    kernel: torch.Tensor,
    norm: torch.nn.Module | None,
    geometry: Geometry,
) -> torch.Tensor:
    """The kernel that was folded; channels with the gain 0 are those of `kernel`."""
    if norm is None:
        return folded
    gain = gain_of(norm).double()
    is_zero = gain == 0
    inverse = torch.where(is_zero, 0.0, 1 / torch.where(is_zero, 1.0, gain))
    kept = scale_outputs(kernel.double(), is_zero.double(), geometry)
    return (scale_outputs(folded, inverse, geometry) + kept).to(kernel.dtype)
