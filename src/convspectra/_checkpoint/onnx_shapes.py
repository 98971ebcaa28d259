"""The sizes of the arrays in an ONNX graph, inferred in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._base import size
from .onnx_weights import EXTERNAL, embed, external, tensors

SMALL = 2**10  # bytes of a tensor that shapes may be computed from
SECONDS = 60  # that shape inference may take
MEMORY = 2**30  # bytes that it may take, besides 20 times the graph

# A small file can make onnx's shape inference take hours or all memory (the numbers of
# a shape joined to themselves, forty times). So it is a process of its own, within
# limits. It prints the sizes of every array, 0 for those that are open: what follows
# from the sizes of the input, and what the file states where nothing does.
INFERENCE = """
import contextlib, json, sys
import onnx

def shapes(graph):
    values = (*graph.input, *graph.value_info, *graph.output)
    tensors = {value.name: value.type.tensor_type for value in values}
    return {
        name: [max(dim.dim_value, 0) for dim in tensor.shape.dim]
        for name, tensor in tensors.items()
        if tensor.HasField("shape") and len(tensor.shape.dim) < 10
    }

data, memory = sys.stdin.buffer.read(), int(sys.argv[1])
with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (memory + 20 * len(data),) * 2)
model = onnx.ModelProto.FromString(data)
found = shapes(model.graph)
model.graph.ClearField("value_info")
for value in model.graph.output:
    value.ClearField("type")
inferred = shapes(onnx.shape_inference.infer_shapes(model, data_prop=True).graph)
found |= {name: s for name, s in inferred.items() if all(s[2:]) or name not in found}
json.dump(found, sys.stdout)
"""

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
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", INFERENCE, f"{MEMORY}"],
            input=light.SerializeToString(),
            capture_output=True,
            timeout=SECONDS,
            # More threads of NumPy's would count as memory.
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            check=True,
        )
        return json.loads(done.stdout), []
    except (OSError, subprocess.SubprocessError, ValueError):
        why = "failed or went beyond its limits, so that sizes of inputs are not known"
        return {}, [("shape inference", why)]
