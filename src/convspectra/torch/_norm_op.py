"""The certified norm as a PyTorch operator, which compiled graphs can contain."""

import json
from dataclasses import asdict
from typing import Any

import torch

from .._arrays.host import ROUND_UP, call_on_host
from .._layer.geometry import Geometry
from .._layer.stencil import stencil_of
from .._norm.norm_bounds import norm_bounds

RTOL = 1e-4  # relative gap of the norms, as `operator_norm` by default


def norm_of(weight: torch.Tensor, geometry: str) -> torch.Tensor:
    """The certified upper bound on the norm, in double precision, differentiable once.

    `geometry` comes from `text_of`: an operator takes only types that PyTorch knows.
    """
    if torch.compiler.is_compiling():
        return _norm(weight, geometry)[0]
    return bound_and_gradient(weight, geometry, has_gradient=True)[1]


def text_of(geometry: Geometry) -> str:
    """A geometry as text."""
    return json.dumps(asdict(geometry))


@torch.library.custom_op("convspectra::norm", mutates_args=())
def _norm(weight: torch.Tensor, geometry: str) -> tuple[torch.Tensor, torch.Tensor]:
    gradient, upper = bound_and_gradient(weight, geometry)
    return upper, gradient.contiguous()


def bound_and_gradient(
    weight: torch.Tensor, geometry: str, *, has_gradient: bool = False
) -> tuple[Any, ...]:
    """The gradient, and the certified upper bound, which may have this derivative."""
    stencil = stencil_of(weight, Geometry(**_tuples(json.loads(geometry))))

    def bound_and_gradient(plain: Any) -> tuple[Any, float]:
        found = norm_bounds(plain, stencil, RTOL, upper_only=True)
        return found.derivative(), found.upper

    return call_on_host(
        bound_and_gradient,
        weight.clone(),  # storage that NumPy has seen cannot be freed, as FSDP does
        arrays=1,
        scalars=(ROUND_UP,),
        has_gradient=has_gradient,
    )


@_norm.register_fake
def _shapes(weight: torch.Tensor, _geometry: str) -> tuple[torch.Tensor, torch.Tensor]:
    upper = weight.new_empty((), dtype=torch.float64)
    return upper, weight.new_empty(weight.shape)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(output[1])


# An operator of its own, without a derivative: the norm has no second one.
@torch.library.custom_op("convspectra::norm_backward", mutates_args=())
def _times(grad: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return grad.to(gradient.dtype) * gradient


@_times.register_fake
def _times_shapes(_grad: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(gradient)


def _backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[torch.Tensor, None]:
    (gradient,) = ctx.saved_tensors
    return _times(grad, gradient), None


_norm.register_autograd(_backward, setup_context=_keep)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where a geometry has tuples."""
    return {key: _tuple(value) for key, value in fields.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
