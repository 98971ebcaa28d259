"""The sizes of every array in each graph of an ONNX model as JSON, 0 if they are open.

A script in a process of its own, with a model as input: a small one can make onnx's
shape inference take hours or all memory (a shape joined to itself, forty times).
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import onnx


def graphs(graph: Any) -> Iterator[Any]:
    """A graph and those inside its nodes, in the order of the package."""
    yield graph
    for found in (found for node in graph.node for found in node.attribute):
        for body in (*([found.g] if found.HasField("g") else []), *found.graphs):
            yield from graphs(body)


def forget(value: Any) -> None:
    """Sizes of what a body gives, so that they are found anew."""
    if value.type.HasField("tensor_type"):
        value.type.tensor_type.ClearField("shape")


def shapes(graph: Any) -> dict[str, list[int]]:
    values = (*graph.input, *graph.value_info, *graph.output)
    tensors = {value.name: value.type.tensor_type for value in values}
    return {
        name: [max(dim.dim_value, 0) for dim in tensor.shape.dim]
        for name, tensor in tensors.items()
        if tensor.HasField("shape") and len(tensor.shape.dim) < 10
    }


if __name__ == "__main__":
    model = onnx.ModelProto.FromString(sys.stdin.buffer.read())
    # For arrays whose sizes do not follow from those of the input.
    stated = [shapes(graph) for graph in graphs(model.graph)]
    for value in model.graph.output:
        value.ClearField("type")
    for graph in graphs(model.graph):
        graph.ClearField("value_info")
        for value in graph.output:
            forget(value)
    full = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for found, graph in zip(stated, graphs(full.graph), strict=True):
        inferred = shapes(graph)
        found |= {n: s for n, s in inferred.items() if all(s[2:]) or n not in found}
    json.dump(stated, sys.stdout)
