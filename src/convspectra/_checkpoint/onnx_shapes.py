"""The sizes of the arrays in an ONNX graph, as far as they can be known."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._base import size
from .onnx_weights import EXTERNAL, embed, external, tensors
from .sandbox import Died, onnx_limits, run

SMALL = 2**10  # bytes of a tensor that shapes may be computed from
WORKER = Path(__file__).with_name("onnx_worker.py")

Shapes = Mapping[str, list[int]]
Skipped = list[tuple[str, str]]


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
    for value in (*light.graph.input, *light.graph.value_info, *light.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 1:  # some exporters write -1 for what is open
                dim.ClearField("dim_value")
    return light


def resize(graph: Any, sizes: tuple[int, ...]) -> None:
    """State the sizes of the network's input, forget those computed from it."""
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
    tensor.shape.Clear()
    for value in sizes:
        tensor.shape.dim.add().dim_value = size("--input", value, least=1)
    graph.ClearField("value_info")
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def shapes_of(light: Any) -> tuple[Shapes, Skipped]:
    """The sizes of arrays by name, and why there are none."""
    if not any(node.op_type.startswith("Conv") for node in light.graph.node):
        return {}, []
    data = light.SerializeToString()
    try:
        return json.loads(run(WORKER, onnx_limits(len(data)), data=data)), []
    except (OSError, Died, ValueError):
        why = "failed or went beyond its limits, so that sizes of inputs are not known"
        return {}, [("shape inference", why)]
