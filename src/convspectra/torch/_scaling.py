"""A parametrization that scales a weight down to a bound on its norm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .._arrays.array import HALF, dtype_name, is_transformed
from .._arrays.torch_function import HostFunction
from .._bound.enforce import norm_lipschitz
from .._layer.geometry import Geometry
from ._modules import as_kernel
from ._norm_op import bound_and_gradient, norm_of, text_of
from ._warm_norm import LEAST, WarmNorm, can_follow


@dataclass(frozen=True, slots=True, eq=False)
class _Certified:
    """A kernel with its norm as `_norm` has it, certified, and the gradient of that."""

    kernel: torch.Tensor
    gradient: torch.Tensor
    upper: torch.Tensor


class Scaling(nn.Module):
    """Scale the weight so that its norm is at most `max_norm`.

    In training mode, unless `certify` is "always", the norm is that of a warm vector
    times its ratio to the last certified norm. It is certified in evaluation mode, when
    a model is exported, and every `certify` calls in training mode if that is a number.
    """

    ratio: torch.Tensor

    def __init__(
        self,
        weight: torch.Tensor,
        geometries: Sequence[Geometry],
        max_norm: float,
        certify: str | int,
    ) -> None:
        super().__init__()
        self.max_norm, self.certify = max_norm, certify
        self.geometries = [text_of(geometry) for geometry in geometries]
        self.grids = [geometry.grid for geometry in geometries]
        self.calls, self.warm = 0, None
        self._known: _Certified | None = None
        kernel = as_kernel(weight.detach())
        self.lipschitz = max(norm_lipschitz(kernel, g) for g in geometries)
        if certify != "always" and can_follow(kernel):
            largest = max(geometries, key=lambda g: (g.grid is None, g.grid or ()))
            self.warm = WarmNorm(kernel, largest)
            ratio = self.warm.output.new_tensor(self.warm.factor)
            self.register_buffer("ratio", ratio)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return self._scaled(weight, self._norm(as_kernel(weight)))

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """Any weight may be assigned: it is scaled when it is used."""
        return weight

    def extra_repr(self) -> str:
        grid = self.grids[0] if len(self.grids) == 1 else self.grids
        return f"max_norm={self.max_norm}, grid={grid}, certify={self.certify!r}"

    def _scaled(self, weight: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        """The weight over its norm times the bound; as it is if that is within it."""
        least = torch.finfo(norm.dtype).tiny
        scale = torch.clamp(self.max_norm / norm.clamp(min=least), max=1)
        wide = torch.promote_types(weight.dtype, torch.float32)
        return (weight.to(wide) * scale.to(wide)).to(weight.dtype)

    def _norm(self, kernel: torch.Tensor) -> torch.Tensor:
        """The norm, plus what rounding of the scaled kernel adds at most.

        Scaled by max_norm over that, the kernel satisfies the bound. In training mode
        both are estimates.
        """
        exact = not self.training or torch.compiler.is_exporting()
        if self.warm is None or exact:
            return self._certified(kernel)
        if not torch.compiler.is_compiling():
            if is_transformed(kernel):
                return self._certified(kernel)
            self.calls += 1
            if isinstance(self.certify, int) and self.calls % self.certify == 0:
                self._certified(kernel)
            self._update_ratio(self.warm, kernel.detach())
        estimate = self.ratio.double() * self.warm(kernel).double()
        return estimate * (1 + torch.finfo(kernel.dtype).eps)

    def _update_ratio(self, warm: WarmNorm, kernel: torch.Tensor) -> None:
        """Relate the estimate to the certified norm, if that is known."""
        if self._known is not None and torch.equal(self._known.kernel, kernel):
            estimate = warm.settled(kernel).clamp(min=LEAST)
            self.ratio.copy_(self._known.upper / estimate)
        self._known = None

    def _certified(self, kernel: torch.Tensor) -> torch.Tensor:
        """The largest certified norm; the same again while the kernel is the same."""
        if torch.compiler.is_compiling() or is_transformed(kernel):
            norms = [norm_of(kernel, geometry) for geometry in self.geometries]
            norm = torch.stack(norms).max()
            return norm + self._most_by_rounding(kernel, norm)
        if self._known is None or not torch.equal(self._known.kernel, kernel):
            plain = kernel.detach()
            each = [bound_and_gradient(plain, text) for text in self.geometries]
            gradient, upper = max(each, key=lambda found: float(found[1]))
            upper = upper + self._by_rounding(plain, upper)
            self._known = _Certified(plain.clone(), gradient, upper)
        known = self._known.gradient, self._known.upper
        return HostFunction.apply(kernel, lambda _: known, True)[1]

    def _by_rounding(self, kernel: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        """What must be added to the norm: in half precision, what proves to suffice."""
        most = self._most_by_rounding(kernel, norm)
        if dtype_name(kernel) not in HALF:
            return most
        added = norm * torch.finfo(kernel.dtype).eps
        while float(added) < float(most):
            scaled = self._scaled(kernel, norm + added)
            uppers = [bound_and_gradient(scaled, text)[1] for text in self.geometries]
            if max(map(float, uppers)) <= self.max_norm:
                return added
            added = 2 * added
        return most

    def _most_by_rounding(
        self, kernel: torch.Tensor, norm: torch.Tensor
    ) -> torch.Tensor:
        """What suffices, whatever the numbers are; 0 if the kernel stays as it is.

        The scale is rounded by half an eps, relative, and so is each entry of the
        product, or by half the smallest number. This is twice as much, which covers
        the rounding here.
        """
        dtype, norm = torch.finfo(kernel.dtype), norm.detach()
        wide = torch.promote_types(kernel.dtype, torch.float32)
        length = torch.linalg.vector_norm(kernel.detach().to(wide)).to(norm.dtype)
        tiny = dtype.tiny * math.sqrt(kernel.numel()) * norm / self.max_norm
        most = dtype.eps * (norm + self.lipschitz * (length + tiny))
        return torch.where(norm > self.max_norm, most, 0)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": None}

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Checkpoints of weights alone, or of other input sizes, are fine.

        The vectors then go on from what they are.
        """
        state, prefix = args[:2]
        for name, own in self.state_dict().items():
            saved = state.get(prefix + name)
            if saved is None or saved.shape != own.shape:
                state[prefix + name] = own
        super()._load_from_state_dict(*args, **kwargs)
