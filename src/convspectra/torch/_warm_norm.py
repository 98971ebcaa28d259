"""The norm of a layer while it trains, from an output that is kept between steps."""

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn import grad

from .._arrays.torch_function import HostFunction
from .._layer.geometry import Geometry
from .._layer.stencil import (
    Stencil,
    columns_read,
    embedding,
    stencil_of,
    with_rows,
)

# A layer for every input size is followed on a torus of so many rows per degree of its
# symbol: what that misses, the ratio to the last certificate makes up for.
ROWS = 4
# Most steps of power iteration from a random output, and the relative gain of one at
# which it has settled.
STEPS, SETTLED = 30, 1e-4
LEAST = 1e-30  # of numbers that are divided by
VECTORS = 3  # of the subspace
_FORWARD = (F.conv1d, F.conv2d, F.conv3d)
_GRADIENT: Any = (grad.conv1d_weight, grad.conv2d_weight, grad.conv3d_weight)
_ADJOINT: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


class WarmNorm(nn.Module):
    """An estimate of a layer's norm by one step of subspace iteration per call.

    Its state are a few outputs of the layer, nearly its top left singular vectors: a
    single one would be slow to leave a value that another one overtakes. The estimate
    is the gain of an input, and so at most the norm. For every input size it is that of
    a torus, and `factor` the most that its padding can add.
    """

    output: torch.Tensor

    def __init__(self, kernel: torch.Tensor, geometry: Geometry) -> None:
        super().__init__()
        stencil, self.factor = stencil_of(kernel, geometry), 1.0
        if stencil.taps == 1 and (stencil.is_torus or geometry.boundary == "zeros"):
            one_site = Geometry(1, groups=stencil.groups, padding="valid")
            stencil = stencil_of(kernel, one_site)  # all sites have the same matrix
        if stencil.axes is None:
            torus, self.factor = embedding(stencil)
            stencil = with_rows(torus, ROWS)
        self.stencil = stencil
        generator = torch.Generator().manual_seed(0)
        out = (stencil.groups * stencil.out_channels, *stencil.rows)
        into = (stencil.groups * stencil.in_channels, *stencil.columns)
        count = min(VECTORS, math.prod(out), math.prod(into))
        output = torch.randn((count, *out), generator=generator)
        dtype = torch.promote_types(kernel.dtype, torch.float32)
        self.register_buffer("output", output.to(kernel.device, dtype))
        for axis in range(len(stencil.kernel)):
            read = columns_read(stencil, axis)
            where = torch.from_numpy(np.maximum(read, 0)).to(kernel.device)
            inside = torch.from_numpy(read >= 0).to(self.output)
            self.register_buffer(f"where{axis}", where, persistent=False)
            self.register_buffer(f"inside{axis}", inside, persistent=False)
        self.settled(kernel)

    @torch.no_grad()
    def settled(self, kernel: torch.Tensor) -> torch.Tensor:
        """The estimate after so many steps that one more hardly changes it."""
        estimate, last = self(kernel), 0.0
        for _ in range(STEPS):
            if float(estimate) <= last * (1 + SETTLED):
                break
            estimate, last = self(kernel), float(estimate)
        return estimate

    def forward(self, kernel: torch.Tensor) -> torch.Tensor:
        """The estimate, differentiable once by the kernel."""
        with torch.autocast(kernel.device.type, enabled=False):
            # A model that is cast to half precision casts the output, too.
            single = torch.promote_types(self.output.dtype, torch.float32)
            wide = kernel.to(single).contiguous()
            with torch.no_grad():
                x, y = self._top_pair(wide)
            if torch.compiler.is_compiling():  # where there is no second derivative
                return torch.linalg.vector_norm(self._convolve(wide, x))
            gain = torch.linalg.vector_norm(y)
            if not (kernel.requires_grad and torch.is_grad_enabled()):
                return gain
            weight_gradient = _GRADIENT[len(self.stencil.kernel) - 1]
            unit, how = y / gain.clamp(min=LEAST), _how(self.stencil)
            gradient = weight_gradient(self._extended(x), wide.shape, unit, **how)
        known = gradient.to(kernel.dtype), gain
        return HostFunction.apply(kernel, lambda _: known, True)[1]

    def _top_pair(self, kernel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A unit input with the largest gain in the subspace, and its output.

        The subspace takes a step.
        """
        x = self._convolve_adjoint(kernel, self.output.to(kernel.dtype))
        basis = torch.linalg.qr(x.flatten(1).T)[0].T  # (count, numbers), orthonormal
        y = self._convolve(kernel, basis.reshape(x.shape))
        flat = y.flatten(1)
        squares, turn = torch.linalg.eigh(flat @ flat.T)
        # Of a zero kernel there are no outputs to go on from.
        scale = squares[-1].clamp(min=LEAST).rsqrt()
        self.output.copy_(torch.where(squares[-1] > LEAST, y * scale, self.output))
        top = turn[:, -1]
        return (
            (top @ basis).reshape(1, *x.shape[1:]),
            (top @ flat).reshape(1, *y.shape[1:]),
        )

    def _convolve(self, kernel: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        convolve = _FORWARD[len(self.stencil.kernel) - 1]
        return convolve(self._extended(x), kernel, None, **_how(self.stencil))

    def _extended(self, x: torch.Tensor) -> torch.Tensor:
        """The sites that the layer reads, also beyond the border."""
        for axis, (where, inside) in enumerate(self._reads(), start=2):
            x = x.index_select(axis, where) * _along(inside, axis, x.ndim)
        return x

    def _convolve_adjoint(self, kernel: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        stencil = self.stencil
        x = _ADJOINT[len(stencil.kernel) - 1](y, kernel, None, **_how(stencil))
        for axis, (where, inside) in enumerate(self._reads(), start=2):
            shape = (*x.shape[:axis], stencil.columns[axis - 2], *x.shape[axis + 1 :])
            masked = x * _along(inside, axis, x.ndim)
            x = x.new_zeros(shape).index_add(axis, where, masked)
        return x

    def _reads(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        buffers, axes = self._buffers, range(len(self.stencil.kernel))
        pairs: list[Any] = [(buffers[f"where{i}"], buffers[f"inside{i}"]) for i in axes]
        return pairs


def can_follow(kernel: torch.Tensor) -> bool:
    """Whether PyTorch convolves with such a kernel: up to three axes, real."""
    return kernel.ndim <= 2 + len(_FORWARD) and not kernel.is_complex()


def _how(stencil: Stencil) -> dict[str, Any]:
    return {
        "stride": stencil.stride,
        "dilation": stencil.dilation,
        "groups": stencil.groups,
    }


def _along(values: torch.Tensor, axis: int, ndim: int) -> torch.Tensor:
    return values.reshape((-1,) + (1,) * (ndim - axis - 1))
