"""The geometry that the convolutions of an ONNX graph state, and sizes of inputs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._base import size
from .._layer.geometry import Geometry
from .onnx_tensors import (
    EXTERNAL,
    attribute,
    embed,
    external,
    graphs,
    integer,
    tensors,
)
from .sandbox import Died, onnx_limits, run

SMALL = 2**10  # bytes of a tensor that shapes may be computed from
WORKER = Path(__file__).with_name("onnx_worker.py")

Shapes = Mapping[str, list[int]]
Skipped = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Inferred:
    """The sizes of arrays by name, in each graph of a model.

    `lost` are the nodes that give arrays of unknown sizes to convolutions after them,
    or "the input"; `failed` says that nothing was inferred.
    """

    shapes: list[Shapes]
    lost: tuple[str, ...] = ()
    failed: bool = False


def without_weights(model: Any, path: Path) -> Any:
    """A copy whose tensors have no numbers, but for the few that may state shapes."""
    light = type(model)()
    light.CopyFrom(model)
    for tensor in tensors(light):
        beside = tensor.data_location == EXTERNAL
        if (external(tensor, path)[2] if beside else tensor.ByteSize()) > SMALL:
            for field, _ in tensor.ListFields():
                if field.name not in ("dims", "data_type", "name"):
                    tensor.ClearField(field.name)
        elif beside:
            embed(tensor, path)
    for graph in graphs(light.graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value < 1:  # some exporters write -1 for what is open
                    dim.ClearField("dim_value")
    return light


def resize(graph: Any, sizes: tuple[int, ...]) -> None:
    """State the sizes of the network's input, forget those computed from it.

    A size that has a name in the file is the same wherever it has that name.
    """
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    if not inputs or not inputs[0].type.HasField("tensor_type"):
        raise ValueError("`--input` needs a network whose input is an array, got none.")
    tensor = inputs[0].type.tensor_type
    if tensor.HasField("shape") and len(tensor.shape.dim) != len(sizes):
        raise ValueError(
            f"`--input` must have {len(tensor.shape.dim)} sizes, one for each axis of "
            f"the network's input {inputs[0].name!r}, got {'x'.join(map(str, sizes))}."
        )
    names = [dim.dim_param for dim in tensor.shape.dim]
    tensor.shape.Clear()
    for value in sizes:
        tensor.shape.dim.add().dim_value = size("--input", value, least=1)
    known = {name: value for name, value in zip(names, sizes) if name}
    for other in inputs[1:]:
        for dim in other.type.tensor_type.shape.dim:
            if dim.dim_param in known:
                dim.dim_value = known[dim.dim_param]
    _forget_sizes(graph)


def _forget_sizes(graph: Any) -> None:
    """Forget the sizes that were computed from those of the network's input."""
    entering, *inside = graphs(graph)
    for part in (entering, *inside):
        part.ClearField("value_info")
    computed = [*entering.output, *(v for g in inside for v in (*g.input, *g.output))]
    for value in computed:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def has_convolutions(graph: Any) -> bool:
    """Whether some node needs to know the sizes of its input."""
    nodes = (node for part in graphs(graph) for node in part.node)
    return any("Conv" in node.op_type for node in nodes)


def sizes_in(light: Any, *, one_example: bool = False) -> Inferred:
    """The sizes of arrays by name, in each graph, and where or why there are none.

    With `one_example`, those that follow from the sizes of the inputs alone, the first
    of which is 1 where it is open.
    """
    data, how = light.SerializeToString(), ["one-example"] if one_example else []
    try:
        found = json.loads(run(WORKER, onnx_limits(len(data)), *how, data=data))
        return Inferred(found["shapes"], tuple(found["lost"]))
    except (OSError, Died, ValueError):
        return Inferred([], failed=True)


def convolution(
    node: Any, shape: tuple[int, ...], sizes: list[int] | None
) -> dict[str, Any]:
    """The geometry that a Conv or ConvTranspose states, and its input of these sizes.

    A size that is not known is 0; None if not even their number is.
    """
    axes, kernel = len(shape) - 2, shape[2:]
    if axes < 1:
        raise ValueError(f"its weight has only {len(shape)} axes")
    if _ints(node, "kernel_shape", kernel) != kernel:
        raise ValueError(f"its kernel_shape is not that of its weight, {shape}")
    stated: dict[str, Any] = {
        "stride": _ints(node, "strides", (1,) * axes),
        "dilation": _ints(node, "dilations", (1,) * axes),
        "groups": integer(node, "group", 1),
        "boundary": "zeros",
        "transposed": node.op_type == "ConvTranspose",
    }
    Geometry(None, **stated)  # before anything is divided by a stride
    if shape[0] % stated["groups"]:
        raise ValueError(f"its {stated['groups']} groups do not divide {shape[0]}")
    grid = _grid(sizes, shape, stated)
    if grid is not None:
        stated["grid"] = grid
    padding = _transposed_padding if stated["transposed"] else _padding
    stated |= padding(node, kernel, stated)
    whole = Geometry(**{"grid": None, **stated})
    if grid is not None:
        whole.resolve_axes(kernel)
    return stated


def _ints(node: Any, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    found = attribute(node, name)
    values = default if found is None else tuple(found.ints)
    if len(values) != len(default):
        raise ValueError(f"its {name} must be {len(default)} numbers, got {values}")
    return values


def _grid(
    sizes: list[int] | None, shape: tuple[int, ...], stated: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """The grid in an input of these sizes, None where one of them is not known."""
    if sizes is None:
        return None
    channels = shape[0] if stated["transposed"] else shape[1] * stated["groups"]
    if len(sizes) != len(shape) or sizes[1] not in (0, channels):
        raise ValueError(f"its weight of shape {shape} does not fit its input, {sizes}")
    return tuple(sizes[2:]) if all(sizes[2:]) else None


def _auto_pad(node: Any) -> str:
    found = attribute(node, "auto_pad")
    kind = "NOTSET" if found is None else found.s.decode("ascii", "replace")
    if kind not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"its auto_pad is unknown, {kind!r}")
    pads = attribute(node, "pads")
    if kind != "NOTSET" and pads is not None and any(pads.ints):
        raise ValueError(f"it has both pads and auto_pad {kind}")
    return kind


def _padding(
    node: Any, kernel: tuple[int, ...], stated: Mapping[str, Any]
) -> dict[str, Any]:
    kind, axes = _auto_pad(node), len(kernel)
    if kind == "SAME_UPPER":
        return {"padding": "same"}
    if kind != "SAME_LOWER":
        pads = _ints(node, "pads", (0,) * 2 * axes)
        return {"padding": tuple(zip(pads[:axes], pads[axes:]))}
    pairs, reach = [], _reach(kernel, stated)
    for n, s, r in zip(stated.get("grid", (1,) * axes), stated["stride"], reach):
        if s > 1 and "grid" not in stated:
            raise ValueError("its SAME_LOWER padding depends on an unknown input size")
        total = max((-(-n // s) - 1) * s + r - n, 0)
        pairs.append((total - total // 2, total // 2))
    return {"padding": tuple(pairs)}


def _transposed_padding(
    node: Any, kernel: tuple[int, ...], stated: Mapping[str, Any]
) -> dict[str, Any]:
    kind, axes = _auto_pad(node), len(kernel)
    extra = _ints(node, "output_padding", (0,) * axes)
    pads = _ints(node, "pads", (0,) * 2 * axes)
    pairs = tuple(zip(pads[:axes], pads[axes:]))
    wanted = attribute(node, "output_shape")
    if wanted is None and not kind.startswith("SAME"):
        return {"padding": pairs, "output_padding": extra}
    if wanted is not None and "grid" not in stated:
        raise ValueError("its output_shape depends on an input size that is not known")
    grid, stride = stated.get("grid", (1,) * axes), stated["stride"]
    sizes = tuple(n * s for n, s in zip(grid, stride))
    if wanted is not None:
        sizes = _ints(node, "output_shape", sizes)
    pairs, more = [], []
    for n, s, r, e, out in zip(grid, stride, _reach(kernel, stated), extra, sizes):
        total = (n - 1) * s + r + e - out
        more.append(e + max(-total, 0))  # outputs that the kernel does not reach
        half = max(total, 0) // 2
        rest = max(total, 0) - half
        pairs.append((half, rest) if kind == "SAME_UPPER" else (rest, half))
    return {"padding": tuple(pairs), "output_padding": tuple(more)}


def _reach(kernel: tuple[int, ...], stated: Mapping[str, Any]) -> list[int]:
    return [d * (k - 1) + 1 for k, d in zip(kernel, stated["dilation"])]
