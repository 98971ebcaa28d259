"""Which convolutions does PyTorch compute, on what, and with which weights?"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .._layer.geometry import Geometry

_FORWARD = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = (*_FORWARD[:5], "output_padding", "groups", "dilation")
_AXES = {
    F.conv1d: 1,
    F.conv2d: 2,
    F.conv3d: 3,
    F.conv_transpose1d: 1,
    F.conv_transpose2d: 2,
    F.conv_transpose3d: 3,
}
_ARE_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
# Arguments that hide no tensors.
_VALUES = (int, float, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a convolution, or of `linear`, which has no geometry."""

    weight: torch.Tensor
    output: torch.Tensor
    geometry: Callable[[], Geometry] | None


class Calls(TorchFunctionMode):
    """Tells of every convolution that is computed while it is active.

    If there is a `begin`, it is given the arguments of every function before it is
    called, and what it returns, if anything, the result afterwards.
    """

    def __init__(
        self,
        tell: Callable[[Call], None],
        begin: Callable[[Any], Callable[[Any], None] | None] | None = None,
    ) -> None:
        super().__init__()
        self.tell, self.begin = tell, begin

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        end = self.begin and self.begin((args, kwargs))
        output = func(*args, **kwargs)
        if end:
            end(output)
        if func is F.linear:
            given = dict(zip(_FORWARD, args)) | kwargs
            self.tell(Call(given["weight"], output, None))
        elif func in _AXES:
            names = _TRANSPOSED if func in _ARE_TRANSPOSED else _FORWARD
            given = dict(zip(names, args)) | kwargs
            sizes = tuple(map(int, given["input"].shape[-_AXES[func] :]))
            transposed = func in _ARE_TRANSPOSED
            self.tell(
                Call(
                    given["weight"],
                    output,
                    lambda: geometry_of_call(given, sizes, transposed),
                )
            )
        return output

    def leave(self) -> None:
        """Be active no more in this thread, if it was."""
        if self not in torch.overrides._get_current_function_mode_stack():
            return
        above = []  # modes that were entered later, which stay
        while (mode := torch.overrides._pop_mode()) is not self:
            above.append(mode)
        for mode in reversed(above):
            torch.overrides._push_mode(mode)


def modules_in_call() -> Iterator[nn.Module]:
    """The modules that this thread is calling, from the innermost."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is nn.Module._wrapped_call_impl.__code__:
            yield frame.f_locals["self"]
        frame = frame.f_back


def keywords_of_call() -> Mapping[str, Any]:
    """The keywords of a call of a module, for a hook that precedes all calls.

    PyTorch gives such hooks none; they are those of the frame that calls the hook.
    """
    return sys._getframe(2).f_locals.get("kwargs", {})


def key_of_call(
    module: nn.Module, args: Any, keywords: Mapping[str, Any]
) -> int | None:
    """What tells a call from those at other sizes; None if an argument may hide sizes.

    It is a hash to save memory: where the number of targets varies, as in detection,
    almost every call is new. Raises RuntimeError, as PyTorch does, if a tensor has no
    sizes.
    """
    try:
        return hash((module, *keywords, _sizes((*args, *keywords.values()))))
    except TypeError:
        return None


def _sizes(values: Iterable[Any]) -> tuple[Any, ...]:
    """The sizes of tensors, and plain values, which may be sizes too.

    Raises TypeError if there is anything else, which may hide tensors.
    """
    return tuple(
        [x.shape if isinstance(x, torch.Tensor) else _sizes_in(x) for x in values]
    )


def _sizes_in(value: Any) -> Any:
    if isinstance(value, _VALUES):
        return value
    if isinstance(value, dict):
        return _sizes((*value, *value.values()))
    if isinstance(value, (tuple, list)):
        return _sizes(value)
    raise TypeError(f"{type(value).__name__} is not a plain value.")


def geometry_of_call(
    given: Mapping[str, Any], sizes: tuple[int, ...], transposed: bool
) -> Geometry:
    """The geometry of a call with these arguments."""
    count = len(sizes)
    stride, dilation, output_padding = (
        each(given.get(name, default), count)
        for name, default in (("stride", 1), ("dilation", 1), ("output_padding", 0))
    )
    kernel, padding = given["weight"].shape[2:], given.get("padding", 0)
    return Geometry(
        grid=sizes,
        stride=stride,
        dilation=dilation,
        groups=given.get("groups", 1),
        padding=padding_pairs(padding, kernel, dilation),
        boundary="zeros",
        transposed=transposed,
        output_padding=output_padding if transposed else 0,
    )


def padding_pairs(
    padding: Any, kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """What PyTorch pads before and after each axis."""
    if padding == "same":
        reach = [d * (k - 1) for d, k in zip(dilation, kernel)]
        return tuple((r // 2, r - r // 2) for r in reach)
    sides = each(0 if padding == "valid" else padding, len(kernel))
    return tuple((p, p) for p in sides)


def each(value: Any, count: int) -> tuple[int, ...]:
    """One whole number per axis: PyTorch takes one for all of them, too."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return tuple(map(int, values * count if len(values) == 1 else values))
