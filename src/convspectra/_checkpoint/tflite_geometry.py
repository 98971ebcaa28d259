"""What the operators of TensorFlow Lite state of their geometry, and their layouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._layer.geometry import Geometry, per_axis
from .flatbuffer import Table
from .records import LINEAR

SAME, VALID = 0, 1


@dataclass(frozen=True, slots=True)
class Axes:
    """How an operator has its weight, and where its options are.

    Attributes
    ----------
    kind : str
    order : tuple of int
        Which axis of the stored weight each axis of the kernel is.
    strides, dilations : tuple of int
        The fields of its options, in the order of the kernel's axes.
    data, weight : int
        Which of its inputs are these.
    """

    kind: str
    order: tuple[int, ...]
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    data: int = 0
    weight: int = 1

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the kernel in the layout of `Layer`."""
        found = tuple(stored[axis] for axis in self.order)
        return (*found, 1) if self.kind == "FULLY_CONNECTED" else found

    def turn(self, stored: np.ndarray) -> np.ndarray:
        """The kernel, from a weight as it is stored."""
        turned = stored.transpose(self.order).reshape(self.shape(stored.shape))
        return np.ascontiguousarray(turned)

    def turn_back(self, kernel: np.ndarray, stored: tuple[int, ...]) -> np.ndarray:
        """A weight as it is stored, from the kernel."""
        turned = kernel.reshape([stored[axis] for axis in self.order])
        return turned.transpose(np.argsort(self.order))


# By the numbers of the operators in TensorFlow Lite's schema.
LAYOUTS = {
    3: Axes("CONV_2D", (0, 3, 1, 2), (2, 1), (5, 4)),
    # Stored as (1, *kernel, out); all outputs of an input come one after another.
    4: Axes("DEPTHWISE_CONV_2D", (3, 0, 1, 2), (2, 1), (6, 5)),
    9: Axes("FULLY_CONNECTED", (0, 1)),
    # Stored as (out, *kernel, in), after the shape of the output.
    67: Axes("TRANSPOSE_CONV", (3, 0, 1, 2), (2, 1), data=2),
    # Stored as (*kernel, in, out).
    132: Axes("CONV_3D", (4, 3, 0, 1, 2), (1, 3, 2), (5, 7, 6)),
    # Stored as (*kernel, out, in), after the shape of the output.
    141: Axes("CONV_3D_TRANSPOSE", (4, 3, 0, 1, 2), (1, 3, 2), (5, 7, 6), data=2),
}
# Layers that are not read.
UNREAD = {
    16: "LSTM",
    24: "RNN",
    27: "SVDF",
    35: "UNIDIRECTIONAL_SEQUENCE_RNN",
    44: "UNIDIRECTIONAL_SEQUENCE_LSTM",
    46: "BIDIRECTIONAL_SEQUENCE_RNN",
    52: "BIDIRECTIONAL_SEQUENCE_LSTM",
    126: "BATCH_MATMUL",
    171: "STABLEHLO_CONVOLUTION",
    197: "STABLEHLO_DOT_GENERAL",
}


def geometry(
    axes: Axes,
    options: Table | None,
    stored: tuple[int, ...],
    sizes: Sequence[int] | None,
    out_sizes: Sequence[int] | None,
) -> dict[str, Any]:
    """The geometry that an operator states, as arguments of `Geometry`.

    `sizes` and `out_sizes` are those of its input and output, channels last, with 0 for
    what is open. Raises ValueError or TypeError for what no layer is.
    """
    if len(stored) != len(axes.order):
        raise ValueError(f"its weight has {len(stored)} axes")
    if axes.kind == "FULLY_CONNECTED":
        if options is not None and options.integer(1, "<b"):
            raise ValueError("its weight is shuffled")
        return dict(LINEAR)
    if options is None:
        raise ValueError("it has no options")
    padding = options.integer(0, "<b")
    if padding not in (SAME, VALID):
        raise ValueError(f"its padding is of kind {padding}")
    shape = axes.shape(stored)
    transposed = "TRANSPOSE" in axes.kind
    stated: dict[str, Any] = {
        "stride": tuple(options.integer(field, "<i") for field in axes.strides),
        "dilation": tuple(options.integer(field, "<i", 1) for field in axes.dilations)
        or 1,
        "groups": _groups(axes, shape, sizes),
        "boundary": "zeros",
        "transposed": transposed,
    }
    Geometry(None, **stated)  # before anything is divided by a stride
    if shape[0] % stated["groups"]:
        raise ValueError(f"its {stated['groups']} groups do not divide {shape[0]}")
    grid = grid_of(sizes, len(shape) - 2)
    if grid is not None:
        stated["grid"] = grid
    if transposed:
        out = grid_of(out_sizes, len(shape) - 2)
        stated |= transposed_padding(padding, shape[2:], stated, out)
    else:
        stated["padding"] = "same" if padding == SAME else "valid"
    whole = Geometry(**{"grid": None, **stated})
    if grid is not None:
        whole.resolve_axes(shape[2:])
    return stated


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a grid is cut into sub-grids for a convolution, and put together again.

    SpaceToBatchND pads a grid, and makes a batch of its sites that are a block apart. A
    convolution of these, whose results BatchToSpaceND puts back in their places and
    crops, is one with as much dilation.
    """

    block: tuple[int, ...]
    paddings: tuple[tuple[int, int], ...]
    crops: tuple[tuple[int, int], ...]

    def whole(
        self,
        kernel: tuple[int, ...],
        stated: Mapping[str, Any],
        grid: tuple[int, ...] | None,
    ) -> dict[str, Any]:
        """The geometry on the whole grid, from that on the sub-grids."""
        axes, around = range(len(kernel)), stated["padding"]
        steps = per_axis(stated["dilation"], len(kernel))
        lengths = {len(x) for x in (self.block, self.paddings, self.crops)}
        plain = max(per_axis(stated["stride"], len(kernel))) == 1
        if lengths != {len(kernel)} or not plain or stated["transposed"]:
            raise ValueError("it is cut into sub-grids in an unknown way")
        dilation = tuple(d * block for d, block in zip(steps, self.block))
        padding = []
        for a in axes:
            own = (0, 0)
            if isinstance(around, tuple):
                own = around[a]
            elif around == "same":  # on each sub-grid
                total = steps[a] * (kernel[a] - 1)
                own = total // 2, total - total // 2
            sides = zip(own, self.paddings[a], self.crops[a])
            padding.append(tuple(self.block[a] * x + p - c for x, p, c in sides))
        if min(map(min, padding)) < 0:
            raise ValueError("more is cropped from it than was padded")
        found = {**stated, "dilation": dilation, "padding": tuple(padding)}
        found.pop("grid", None)
        if grid is not None:
            found["grid"] = grid
        whole = Geometry(**{"grid": None, **found})
        if grid is not None:
            whole.resolve_axes(kernel)
        return found


def pairs(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Numbers for both sides of each axis, from a list of them."""
    whole = [int(n) for n in numbers]
    return tuple(zip(whole[::2], whole[1::2]))


def grid_of(sizes: Sequence[int] | None, axes: int) -> tuple[int, ...] | None:
    """The grid in an array of these sizes, None where one of them is not known."""
    if sizes is None or len(sizes) != axes + 2 or not all(sizes[1:-1]):
        return None
    return tuple(sizes[1:-1])


def _groups(axes: Axes, shape: tuple[int, ...], sizes: Sequence[int] | None) -> int:
    """How many groups: as many as the kernel fits into the channels of the input."""
    if "TRANSPOSE" in axes.kind:
        return 1
    channels = sizes[-1] if sizes else 0
    if not channels:
        raise ValueError("how many channels it reads is not known")
    if channels % shape[1]:
        raise ValueError(
            f"its weight of shape {shape} does not fit {channels} channels"
        )
    return channels // shape[1]


def transposed_padding(
    padding: int,
    kernel: tuple[int, ...],
    stated: Mapping[str, Any],
    out: tuple[int, ...] | None,
) -> dict[str, Any]:
    """The padding with which a transposed layer gives an output of this size."""
    if max(per_axis(stated["dilation"], len(kernel))) > 1:
        raise ValueError("it is dilated")
    if out is None or "grid" not in stated:
        if padding == SAME:
            return {"padding": "same"}
        raise ValueError("the size of its output is not known")
    pairs, extra = [], []
    for n, s, k, wanted in zip(stated["grid"], stated["stride"], kernel, out):
        # As for the convolution from the output to the input, which is its transpose.
        total = max((-(-wanted // s) - 1) * s + k - wanted, 0)
        before = total // 2 if padding == SAME else 0
        after = (n - 1) * s + k - wanted - before
        pairs.append((before, max(after, 0)))
        extra.append(max(-after, 0))
    return {"padding": tuple(pairs), "output_padding": tuple(extra)}
