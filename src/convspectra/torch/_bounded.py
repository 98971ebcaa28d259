"""A parametrization that bounds the norm of a layer."""

from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .._base import positive
from .._layer.geometry import Geometry
from ._modules import KNOWN, as_kernel, geometry_of
from ._norm_op import norm_of, text_of

Module = TypeVar("Module", bound=nn.Module)
# Rounding the scaled weight may raise its norm; the bound is lowered by so many eps.
MARGIN = 8


def bounded(
    module: Module, max_norm: float = 1.0, *, grid: tuple[int, ...] | None = None
) -> Module:
    """Parametrize a layer so that its norm is at most `max_norm`.

    This is a PyTorch parametrization: whenever the weight is used, it is computed by
    scaling the parameter, and gradients flow through the norm (first derivatives only).
    There is no state to warm up: it is correct from the first call on, in training and
    evaluation mode.
    `torch.nn.utils.parametrize.remove_parametrizations(module, "weight")` leaves the
    scaled weight as a plain parameter.

    Parameters
    ----------
    module : torch.nn.Module
        A convolution or a Linear layer. In any other module, all convolutions are
        bounded.
    max_norm : float
    grid : tuple of int, optional
        The input size for which the bound holds; by default, every size.

    Returns
    -------
    torch.nn.Module
        The same module.
    """
    max_norm = positive("max_norm", max_norm)
    if isinstance(module, KNOWN):
        if is_lazy(module.weight):
            raise ValueError(
                "`module` must have a weight, but it is lazy. Call it once first."
            )
        scaling = Scaling(geometry_of(module, grid), max_norm)
        parametrize.register_parametrization(module, "weight", scaling)
        return module
    convolutions = [m for m in module.modules() if isinstance(m, _ConvNd)]
    if not convolutions:
        raise ValueError(
            "`module` must be a convolution, a Linear, or hold convolutions, got "
            f"{type(module).__name__}."
        )
    for convolution in convolutions:
        bounded(convolution, max_norm, grid=grid)
    return module


class Scaling(nn.Module):
    """Scale the weight so that its certified norm is at most `max_norm`."""

    def __init__(self, geometry: Geometry, max_norm: float) -> None:
        super().__init__()
        self.geometry, self.max_norm = text_of(geometry), max_norm
        self.grid = geometry.grid

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        norm = norm_of(as_kernel(weight), self.geometry)
        most = self.max_norm * (1 - MARGIN * torch.finfo(weight.dtype).eps)
        scale = torch.clamp(most / norm.clamp(min=torch.finfo(norm.dtype).tiny), max=1)
        wide = torch.promote_types(weight.dtype, torch.float32)
        return (weight.to(wide) * scale.to(wide)).to(weight.dtype)

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """Any weight may be assigned: it is scaled when it is used."""
        return weight

    def extra_repr(self) -> str:
        return f"max_norm={self.max_norm}, grid={self.grid}"
