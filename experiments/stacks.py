"""How gradients go through stacks of convolutions at their first weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import convspectra as cs

from .signals_figure import FIRST, name_of

BOUND = 1.0  # of singular values, where they are clipped
KINDS = ("linear", "ReLU")
STACK = {"depth": 32, "channels": 16, "grid": 16, "images": 16, "seeds": 2}


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of convolutions at its first weights."""

    first: str
    clipped: bool
    seed: int


def stacks() -> dict[str, Stack]:
    """Every stack, by its name."""
    arms = [(first, clipped) for first in FIRST[:3] for clipped in (False, True)]
    return {
        f"{name_of(*arm)}, seed {seed}": Stack(*arm, seed)
        for arm in (*arms, ("orthogonal", False))
        for seed in range(STACK["seeds"])
    }


def look(stack: Stack) -> dict[str, Any]:
    """The norms of the gradient from the last layer of a stack to its input.

    Without and with ReLUs, and the smallest and largest singular value of its layers.
    """
    torch.manual_seed(stack.seed)
    channels, grid = STACK["channels"], STACK["grid"]
    geometry = cs.Geometry((grid, grid))
    x = torch.randn(STACK["images"], channels, grid, grid, requires_grad=True)
    kernels = [
        first_kernel(stack.first, channels, channels) for _ in range(STACK["depth"])
    ]
    if stack.clipped:
        kernels = [cs.project(k, geometry, BOUND).weight for k in kernels]
    values = [cs.singular_values(kernel, geometry) for kernel in kernels]
    return {
        **{kind: _gradient_norms(x, kernels, relu=kind == "ReLU") for kind in KINDS},
        "smallest": min(float(v.min()) for v in values),
        "largest": max(float(v.max()) for v in values),
    }


def _gradient_norms(x: Tensor, kernels: Sequence[Tensor], *, relu: bool) -> list[float]:
    y, inputs = x, []
    for kernel in kernels:
        inputs.append(y)
        y = nn.functional.pad(y, (1, 1, 1, 1), mode="circular")
        y = nn.functional.conv2d(y, kernel)
        y = y.relu() if relu else y
    end = torch.randn_like(y)
    gradients = torch.autograd.grad(y, inputs, end)
    return [float(g.norm()) for g in (end, *reversed(gradients))]


def first_kernel(first: str, inputs: int, outputs: int) -> Tensor:
    """A 3x3 kernel: normal as He et al. have it, or with all singular values 1.

    The orthogonal one has an orthogonal matrix at its center and zeros elsewhere (Xiao
    et al. 2018): as a layer it has the values of that matrix at every frequency.
    """
    kernel = torch.zeros(outputs, inputs, 3, 3)
    if first == "orthogonal":
        nn.init.orthogonal_(kernel[:, :, 1, 1])
        return kernel
    nn.init.kaiming_normal_(kernel, mode="fan_out")
    return kernel * {"normal / 2": 0.5, "normal": 1.0, "2 x normal": 2.0}[first]
