"""What layers exceed a bound by, to be added to a loss."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from .._bound.clip import circular_surrogate
from .._layer.geometry import Geometry
from .._layer.stencil import stencil_of
from .._spectrum import singular_values
from ._modules import check_has_numbers
from ._norm_op import norm_of, text_of
from ._targets import Bounds, bound_of_each, uses_in

KINDS = ("norm", "values")


def penalty(
    model: nn.Module,
    max_norm: Bounds = 1.0,
    example: Any = None,
    *,
    kind: str = "norm",
    linear: bool = False,
) -> torch.Tensor:
    """The squared excess of a model's layers over a bound, differentiable once.

    Parameters
    ----------
    model : torch.nn.Module
    max_norm : float, or mapping of str to float or None
        As for `SpectralClip`.
    example : Any
        What the sizes of the layers are learned from: an input of the model, which is
        then called, or what `layers` has returned before, which costs nothing. Without
        one the norm is that for inputs of every size.
    kind : {"norm", "values"}
        The excess of the norm alone, or of every singular value: then this is the
        squared distance of the layers, per site, from those that the paper's clip has
        before it crops. Values are those of the circular layer.
    linear : bool
        Whether Linear layers count too.

    Returns
    -------
    torch.Tensor
        A scalar, the sum over the layers; 0 if all are inside.
    """
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}, got {kind!r}.")
    check_has_numbers(model)
    excess = _of_norm if kind == "norm" else _of_values
    uses, _ = uses_in(model, example)
    total = torch.zeros(())
    for use, bound in bound_of_each(uses, max_norm, linear=linear):
        plain = use.module._parameters.get("weight") is not None
        if not plain and not is_parametrized(use.module, "weight"):
            raise ValueError(
                f"The weight of layer {use.name!r} must be a parameter or made by a "
                "parametrization, and is set by a hook. Use the functions of "
                "torch.nn.utils.parametrizations instead."
            )
        weight = use.weight  # once: a parametrization computes it
        total = total.to(weight.device) + excess(weight, use.geometry, bound)
    return total


def _of_norm(weight: torch.Tensor, geometry: Geometry, bound: float) -> torch.Tensor:
    excess = torch.relu(norm_of(weight, text_of(geometry)) - bound) ** 2
    return excess.to(_wide(weight))


def _of_values(weight: torch.Tensor, geometry: Geometry, bound: float) -> torch.Tensor:
    torus = _torus(weight, geometry)
    values = singular_values(weight.to(_wide(weight)), torus)
    sites = math.prod(values.shape[:-2])
    return torch.sum(torch.relu(values - bound) ** 2) / sites


def _torus(weight: torch.Tensor, geometry: Geometry) -> Geometry:
    """The geometry of the circular layer that stands in for one."""
    stencil = stencil_of(weight, geometry)
    if stencil.is_torus:
        return geometry
    torus = circular_surrogate(stencil, geometry)
    grid = torus.rows if geometry.transposed else torus.columns
    return replace(
        geometry, grid=grid, padding="same", boundary="circular", output_padding=0
    )


def _wide(weight: torch.Tensor) -> torch.dtype:
    """The precision of a weight, but at least single."""
    return torch.promote_types(weight.real.dtype, torch.float32)
