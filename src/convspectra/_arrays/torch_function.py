"""What is computed on the host as one function of torch, under every transformation."""

from collections.abc import Callable
from typing import Any

import torch

from .array import Array, check_weight

ONCE = (
    "The norm of a layer is differentiable once: no second derivative is known. Take "
    "`singular_values`, whose derivatives are PyTorch's own, or detach the norm."
)


class HostFunction(torch.autograd.Function):
    """The outputs of `f(weight)`; the last has the first one as its gradient.

    Unless `has_gradient`, all outputs are constants to differentiation.
    """

    @staticmethod
    def forward(
        weight: torch.Tensor,
        f: Callable[[Array], tuple[torch.Tensor, ...]],
        has_gradient: bool,  # noqa: ARG004
    ) -> tuple[torch.Tensor, ...]:
        check_weight(weight)  # which could not be looked at before
        # New tensors, as autograd makes what is returned part of its graph.
        return tuple(output.detach() for output in f(weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[torch.Tensor, ...]) -> None:
        weight, _, has_gradient = inputs
        constants = output[:-1] if has_gradient else output
        ctx.mark_non_differentiable(*constants)
        ctx.set_materialize_grads(False)
        ctx.constants = len(constants)
        ctx.save_for_backward(weight, output[0])
        ctx.save_for_forward(weight, output[0])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        grad = grads[-1] if ctx.constants < len(grads) else None
        if grad is None:
            return None, None, None
        gradient = _Once.apply(*ctx.saved_tensors)
        return grad.to(gradient.dtype) * gradient, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (weight, gradient), tangent = ctx.saved_tensors, tangents[0]
        change = None
        if tangent is not None:
            along = _Once.apply(weight, gradient).conj() * tangent
            change = torch.sum(along.real if along.is_complex() else along).double()
        return *([None] * ctx.constants), change

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:  # noqa: ARG004
        weight, f, has_gradient = args
        each = weight.movedim(in_dims[0], 0).unbind()
        found = [HostFunction.apply(one, f, has_gradient) for one in each]
        together = tuple(torch.stack(outputs) for outputs in zip(*found))
        return together, (0,) * len(together)


class _Once(torch.autograd.Function):
    """A gradient that is known at one weight, and refuses to be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:  # noqa: ARG004
        raise RuntimeError(ONCE)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:  # noqa: ARG004
        raise RuntimeError(ONCE)
