"""What a call of PyTorch's operators for convolutions states of a layer's geometry."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._layer.geometry import Geometry

# The arguments of operators in their order; those that are left out have defaults.
_FORWARD = ("stride", "padding", "dilation", "groups")
_TRANSPOSED = ("stride", "padding", "output_padding", "groups", "dilation")
_EITHER = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
_ARGUMENTS = (
    (re.compile("conv[123]d|_convolution_mode"), _FORWARD),
    (re.compile("conv_transpose[123]d"), _TRANSPOSED),
    (re.compile("_?convolution"), _EITHER),
)
# What the modes of `pad` put around an input.
BOUNDARIES = {"constant": "zeros", "circular": "circular", "reflect": "reflect"}
BOUNDARIES["replicate"] = "replicate"


@dataclass(frozen=True, slots=True)
class Pad:
    """What is put around an input: pairs for each axis, and the size without them."""

    boundary: str
    pairs: tuple[tuple[int, int], ...]
    sizes: Sequence[int] | None


def arguments_of(operator: str) -> tuple[str, ...] | None:
    """The arguments of a convolution in their order, None for another operator."""
    for pattern, names in _ARGUMENTS:
        if pattern.fullmatch(operator):
            return ("input", "weight", "bias", *names)
    return None


def pad_of(arguments: Mapping[str, Any], sizes: Sequence[int] | None) -> Pad | None:
    """What `torch.nn.functional.pad` does; None if that is no boundary."""
    amounts, mode = arguments.get("pad"), arguments.get("mode", "constant")
    if (
        mode not in BOUNDARIES
        or arguments.get("value")
        or not isinstance(amounts, list)
    ):
        return None
    if len(amounts) % 2 or not all(type(n) is int and n >= 0 for n in amounts):
        return None
    pairs = [*zip(amounts[::2], amounts[1::2])]  # of the last axis first
    return Pad(BOUNDARIES[mode], tuple(reversed(pairs)), sizes)


def convolution(
    operator: str,
    arguments: Mapping[str, Any],
    shape: tuple[int, ...],
    sizes: Sequence[int] | None,
    pad: Pad | None = None,
) -> dict[str, Any]:
    """The geometry of a call, as arguments of `Geometry`.

    `sizes` are those of its input, with 0 for what is open, None if nothing is known;
    `pad` is what was put around that input, if it belongs to the layer. Raises
    ValueError or TypeError for what no layer is.
    """
    axes, kernel = len(shape) - 2, shape[2:]
    if axes < 1:
        raise ValueError(f"its weight has only {len(shape)} axes")
    transposed = "transpose" in operator or arguments.get("transposed", False)
    if not isinstance(transposed, bool):
        raise TypeError("`transposed` is no truth value")
    stated: dict[str, Any] = {
        "stride": _numbers(arguments, "stride", 1, axes),
        "dilation": _numbers(arguments, "dilation", 1, axes),
        "groups": arguments.get("groups", 1),
        "boundary": "zeros",
        "transposed": transposed,
    }
    Geometry(None, **stated)
    if shape[0] % stated["groups"]:
        raise ValueError(f"its {stated['groups']} groups do not divide {shape[0]}")
    stated["padding"] = _padding(arguments, kernel, stated["dilation"])
    if transposed:
        extra = _numbers(arguments, "output_padding", 0, axes)
        stated["output_padding"] = extra
    if pad is not None and not transposed and len(pad.pairs) == axes:
        both = [*zip(pad.pairs, stated["padding"])]
        if pad.boundary != "zeros" and any(map(any, stated["padding"])):
            raise ValueError("it is padded in two ways")
        stated["padding"] = tuple((a + c, b + d) for (a, b), (c, d) in both)
        stated["boundary"], sizes = pad.boundary, pad.sizes
    grid = _grid(sizes, shape, stated)
    if grid is not None:
        stated["grid"] = grid
    whole = Geometry(**{"grid": None, **stated})
    if grid is not None:
        whole.resolve_axes(kernel)
    return stated


def _numbers(
    arguments: Mapping[str, Any], name: str, default: int, axes: int
) -> tuple[int, ...]:
    value = arguments.get(name)
    value = default if value is None else value
    found = value if isinstance(value, list) else [value]
    found = found * axes if len(found) == 1 else found
    if len(found) != axes or not all(type(n) is int for n in found):
        raise ValueError(f"its {name} is not known: {str(value)[:100]}")
    return tuple(found)


def _padding(
    arguments: Mapping[str, Any], kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    value = arguments.get("padding")
    if value == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel)]
        return tuple((n // 2, n - n // 2) for n in total)
    if value == "valid":
        return ((0, 0),) * len(kernel)
    return tuple((n, n) for n in _numbers(arguments, "padding", 0, len(kernel)))


def _grid(
    sizes: Sequence[int] | None, shape: tuple[int, ...], stated: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """The grid in an input of these sizes, None where one of them is not known."""
    if sizes is None:
        return None
    axes = len(shape) - 2
    channels = shape[0] if stated["transposed"] else shape[1] * stated["groups"]
    fits = len(sizes) in (axes + 1, axes + 2)  # with or without a batch
    if not fits or sizes[-axes - 1] not in (0, channels):
        raise ValueError(f"its weight of shape {shape} does not fit its input, {sizes}")
    grid = tuple(sizes[-axes:])
    return grid if all(grid) else None
