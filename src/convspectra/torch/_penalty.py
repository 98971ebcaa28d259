"""A penalty for norms above a bound, to be added to a loss."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .._arrays.array import is_transformed
from .._layer.geometry import Geometry
from .._layer.stencil import circular_surrogate, stencil_of
from .._spectrum import singular_values
from .._training import Bounds
from ._layers import Layers
from ._modules import check_has_numbers
from ._norm_op import norm_of, text_of
from ._record import Use
from ._targets import bound_of_each, check_not_by_hook, uses_in, without_batch_norms
from ._warm_norm import WarmNorm, can_follow

KINDS = ("norm", "values")


def penalty(
    model: nn.Module,
    max_norm: Bounds = 1.0,
    example: Any = None,
    *,
    kind: str = "norm",
    linear: bool = False,
) -> torch.Tensor:
    """The sum of squares by which a model's layers exceed a bound.

    Parameters
    ----------
    model : torch.nn.Module
    max_norm : float, or mapping of str to float or None
        As for `SpectralClip`.
    example : Any
        What determines the input sizes of the layers: an input of the model, which is
        then called, or an earlier result of `layers`. Without one, the norms are those
        for every input size. For training take the result of `layers`: norms are then
        estimates, by a step of power iteration from a vector that is kept in it from
        one call to the next. All other norms are certified, which takes longer.
    kind : {"norm", "values"}
        Whether to penalize the norm only, or every singular value of the circular
        layer. The latter is the squared distance, per site, to the layer that the
        paper's clip has before it crops.
    linear : bool
        Whether to include Linear layers.

    Returns
    -------
    torch.Tensor
        A scalar, the sum over the layers; 0 if all satisfy the bound. Differentiable
        once.
    """
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}, got {kind!r}.")
    check_has_numbers(model)
    total = torch.zeros(())
    uses = without_batch_norms(uses_in(model, example))
    for use, bound in bound_of_each(uses, max_norm, linear=linear):
        check_not_by_hook(use)
        weight = use.weight  # once: a parametrization computes it
        if kind == "values":
            square = _of_values(weight, use.geometry, bound)
        else:
            norm = _norm(weight, use, example)
            square = (torch.relu(norm - bound) ** 2).to(_wide(weight))
        total = total.to(weight.device) + square
    return total


def _norm(weight: torch.Tensor, use: Use, example: Any) -> torch.Tensor:
    """The norm of a layer: by a warm vector if there is a place to keep one."""
    followed = can_follow(weight) and not is_transformed(weight)
    if not isinstance(example, Layers) or not followed:
        return norm_of(weight, text_of(use.geometry))
    warm = example.warm.get(use.key)
    if warm is None:
        warm = example.warm[use.key] = WarmNorm(weight.detach(), use.geometry)
    return warm.factor * warm(weight).double()


def _of_values(weight: torch.Tensor, geometry: Geometry, bound: float) -> torch.Tensor:
    """The sum of squares by which singular values exceed the bound, per site."""
    torus = _torus(weight, geometry)
    wide = torch.promote_types(weight.dtype, torch.float32)
    values = singular_values(weight.to(wide), torus)
    sites = math.prod(values.shape[:-2])
    return torch.sum(torch.relu(values - bound) ** 2) / sites


def _torus(weight: torch.Tensor, geometry: Geometry) -> Geometry:
    """The geometry of the layer's circular surrogate."""
    stencil = stencil_of(weight, geometry)
    if stencil.is_torus:
        return geometry
    torus = circular_surrogate(stencil, geometry)
    grid = torus.rows if geometry.transposed else torus.columns
    return replace(
        geometry, grid=grid, padding="same", boundary="circular", output_padding=0
    )


def _wide(weight: torch.Tensor) -> torch.dtype:
    """The real numbers of a weight's precision, which is at least single."""
    return torch.promote_types(weight.real.dtype, torch.float32)
