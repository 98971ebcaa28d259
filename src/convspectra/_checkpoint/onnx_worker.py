"""The sizes of every array in an ONNX graph as JSON, 0 for those that are open.

A script in a process of its own, with a model as input: a small one can make onnx's
shape inference take hours or all memory (a shape joined to itself, forty times).
"""

import json
import sys
from typing import Any

import onnx


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
    found = shapes(model.graph)  # for arrays whose sizes do not follow from the input's
    model.graph.ClearField("value_info")
    for value in model.graph.output:
        value.ClearField("type")
    inferred = shapes(onnx.shape_inference.infer_shapes(model, data_prop=True).graph)
    found |= {n: s for n, s in inferred.items() if all(s[2:]) or n not in found}
    json.dump(found, sys.stdout)
