"""What PyTorch's modules say about their kernels and geometries."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.conv import _ConvNd
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from .._layer.geometry import Geometry
from ._calls import padding_pairs

KNOWN = (_ConvNd, nn.Linear)
_PLAIN = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    nn.Linear,
)
# What PyTorch's own classes do when they are called.
_FORWARDS = {
    getattr(kind, name)
    for kind in _PLAIN
    for name in ("forward", "_conv_forward")
    if hasattr(kind, name)
}


def unwrapped(model: nn.Module) -> nn.Module:
    """The model that the user wrote, without what DDP and `torch.compile` put around.

    Its names are those of its own state_dict.
    """
    while True:
        if isinstance(model, (DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(model, torch._dynamo.OptimizedModule):
            model = model._orig_mod
        else:
            return model


def is_compiled(model: nn.Module) -> bool:
    """Whether calls of a model may bypass the hooks on its modules."""
    return any(
        isinstance(module, torch._dynamo.OptimizedModule)
        or module._compiled_call_impl is not None
        for module in model.modules()
    )


def names_of(model: nn.Module) -> dict[nn.Module, str]:
    """The name of each module; the model has that of its class, if no part has it."""
    names = {module: name for name, module in model.named_modules()}
    if (kind := type(model).__name__) not in names.values():
        names[model] = kind
    return names


def has_own_forward(module: nn.Module) -> bool:
    """Whether a known module does something else than PyTorch's own classes."""
    forwards = (
        getattr(type(module), name, None) for name in ("forward", "_conv_forward")
    )
    return any(each is not None and each not in _FORWARDS for each in forwards)


def check_has_numbers(model: nn.Module) -> None:
    """Refuse a model on the meta device."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(
                f"The model must have numbers, but its parameter {name!r} is on the "
                "meta device. Materialize it first, with `model.to_empty(device=...)` "
                "and `load_state_dict`."
            )


def geometry_of(
    module: nn.Module,
    grid: tuple[int, ...] | None,
    out_grid: tuple[int, ...] | None = None,
) -> Geometry:
    """The geometry of a known module on an input of these sizes.

    `out_grid` is the output size: a transposed layer may be given one when called.
    """
    if not isinstance(module, _ConvNd):
        return Geometry(grid=(1,), padding="valid", boundary="zeros")
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    padding = padding_pairs(module.padding, kernel, dilation)
    output_padding = tuple(module.output_padding)
    if module.transposed and grid is not None and out_grid is not None:
        least = [
            (n - 1) * s - before - after + d * (k - 1) + 1
            for n, s, (before, after), d, k in zip(
                grid, stride, padding, dilation, kernel
            )
        ]
        output_padding = tuple(n - m for n, m in zip(out_grid, least))
    return Geometry(
        grid=grid,
        stride=tuple(stride),
        dilation=tuple(dilation),
        groups=module.groups,
        padding=padding,
        boundary=module.padding_mode,
        transposed=module.transposed,
        output_padding=output_padding if module.transposed else 0,
    )


def batch_norm_gain(norm: nn.Module) -> torch.Tensor:
    """What a BatchNorm multiplies each channel by in evaluation mode."""
    statistics: Any = norm
    gain = torch.rsqrt(statistics.running_var + statistics.eps)
    return gain if statistics.weight is None else gain * statistics.weight


def axes_of(module: nn.Module) -> int:
    """How many axes of its input a known module slides over."""
    return len(module.kernel_size) if isinstance(module, _ConvNd) else 1


def as_kernel(weight: torch.Tensor) -> torch.Tensor:
    """A weight as a kernel: that of a Linear has one tap."""
    return weight[..., None] if weight.ndim == 2 else weight


def whole(weight: torch.Tensor) -> torch.Tensor:
    """The whole of a weight; if it is sharded, all processes must call this."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def not_known(model: nn.Module, *, has_run: bool) -> Iterator[tuple[str, str]]:
    """Modules that look like convolutions but are not known, with reasons.

    If the model `has_run`, containers are not among them: what these compute was seen.
    """
    for module, name in names_of(model).items():
        if isinstance(module, (*KNOWN, ParametrizationList)):
            continue
        kind = type(module).__name__
        large = [p for _, p in module.named_parameters(recurse=False) if p.ndim > 2]
        leaf = next(module.children(), None) is None
        if leaf and (large or "conv" in kind.lower()):
            yield name, f"a {kind} is not a layer whose geometry is known"
        elif large and not has_run and not is_parametrized(module):
            yield (
                name,
                (
                    f"a {kind} with weights of its own: give an example of the model's "
                    "input, which shows what it does with them"
                ),
            )
