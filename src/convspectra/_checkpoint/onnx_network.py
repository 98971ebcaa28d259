"""A whole ONNX network: what each of its nodes does to the size of its input."""

from pathlib import Path
from typing import Any

from .._layer.geometry import Geometry
from .._layer.layer import Layer
from .._network.node import Node
from .._network.slopes import NOT_KNOWN
from .onnx_file import opened
from .onnx_layers import GraphLayer, layers_of
from .onnx_operators import Call, effect
from .stored import Refusal, parsing

SIZES = ("Shape", "Size")  # which follow from sizes, and not from the input's numbers


def read_network(
    path: Path, sizes: tuple[int, ...] | None = None
) -> tuple[list[Node], list[Node]]:
    """The nodes of an ONNX model that depend on its input, and those of its output.

    In the order of computation. Weights are read where they are needed.

    Parameters
    ----------
    path : Path
    sizes : tuple of int, optional
        Of the network's input, instead of those that the file states or leaves open.
    """
    model, _, (scope, *_) = opened(path, sizes)
    with parsing(".onnx file"):
        found, others = layers_of(model, [scope])
        layers, reasons = {layer.place[-1]: layer for layer in found}, dict(others)
        names = [value.name for value in model.graph.input]
        known = {
            name: Node(name, "input") for name in names if name not in scope.values
        }
        nodes = list(known.values())
        for index, node in enumerate(model.graph.node):
            call = Call(node, scope, known)
            if not call.sources or node.op_type in SIZES:
                continue
            name = scope.label(node, index)
            if index in layers:
                attributes = _of_layer(layers[index], call)
            else:
                attributes = effect(call, reasons.get(name, NOT_KNOWN))
            nodes.append(Node(name, node.op_type, **attributes))
            known |= dict.fromkeys(filter(None, node.output), nodes[-1])
        ends = [value.name for value in model.graph.output]
    if not nodes:
        raise Refusal("An .onnx network must have an input, got none.")
    return nodes, [known[name] for name in ends if name in known]


def _of_layer(layer: GraphLayer, call: Call) -> dict[str, Any]:
    """The attributes of a node that is a layer, its weight read."""
    sources = tuple((call.known[name], 1.0) for name in call.sources)
    stated: dict[str, Any] = {"grid": None} | dict(layer.stated)
    # Of a MatMul the channels are on the last axis, whatever its number.
    axis = None if layer.op == "MatMul" else 1
    try:
        gain = Layer(layer.label, layer.load(), Geometry(**stated))
    except (ValueError, TypeError) as error:
        return {"sources": sources, "gain": None, "why": str(error).rstrip(".")}
    return {"sources": sources, "gain": gain, "axis": axis}
