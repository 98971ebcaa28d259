"""A whole ONNX network: what each of its nodes does to the size of its input."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .._layer.geometry import Geometry
from .._layer.layer import Layer
from .._network.gains import NOT_KNOWN, NoBound
from .._network.node import Node
from .onnx_file import opened
from .onnx_layers import GraphLayer, layers_of
from .onnx_operators import FLOATS, Call, check_sources, effect
from .onnx_scopes import Scope
from .onnx_tensors import bodies, graphs, standard
from .stored import Refusal, parsing

SIZES = ("Shape", "Size")
RANDOM = """
    Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike
"""
LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
WHOLE = "it holds no real numbers, and cannot change smoothly"
BODY = "what its body does is not known"
SECOND = "only its first result is known"
DRAWN = "it is random, or may be"
DEEPEST = 16  # bodies and functions in each other that are looked into


def read_network(
    path: Path, sizes: tuple[int, ...] | None = None
) -> tuple[list[Node], list[Node]]:
    """The nodes of an ONNX model that depend on its input, and those of its output.

    In the order of computation. Weights are read when a node's layer is asked for.

    Parameters
    ----------
    path : Path
    sizes : tuple of int, optional
        Of the network's input, instead of those that the file states or leaves open.
        An open first size is 1: one example.
    """
    model, _, (scope, *_) = opened(path, sizes, batch=1)
    with parsing(".onnx file"):
        network = _Network(model, scope)
    if not network.nodes:
        raise Refusal("An .onnx network must have an input, got none.")
    ends = [value.name for value in model.graph.output]
    return network.nodes, [
        network.known[name] for name in ends if name in network.known
    ]


class _Network:
    """The nodes of a graph, and which array each of them gives."""

    def __init__(self, model: Any, scope: Scope) -> None:
        self.scope, self.known, self.nodes = scope, dict[str, Node](), list[Node]()
        self.names: set[str] = set()
        found, others = layers_of(model, [scope])
        layers, reasons = {layer.place[-1]: layer for layer in found}, dict(others)
        self.functions = {(each.domain, each.name): each for each in model.functions}
        versions = {each.domain: each.version for each in model.opset_import}
        opset = max(versions.get("", 0), versions.get("ai.onnx", 0))
        for value in model.graph.input:
            if value.name not in scope.values:
                real = value.type.tensor_type.elem_type in FLOATS
                known = {} if real else {"gain": None, "why": WHOLE}
                self._add(value.name, value.name, "input", **known)
        later = {name for node in model.graph.node for name in node.output}
        for index, node in enumerate(model.graph.node):
            if not later.isdisjoint(filter(None, _read(node))):
                raise Refusal(
                    "Nodes must come in the order of computation, and do not."
                )
            later -= set(node.output)
            call = Call(node, scope, self.known, opset)
            read = [name for name in _read(node) if name in self.known]
            label = scope.label(node, index)
            if self._may_draw(node):
                attributes = self._unknown(read, DRAWN)
            elif not read or self._has_size_only(node):
                continue
            elif len(read) > len(call.sources):
                attributes = self._unknown(read, BODY)
            elif (node.domain, node.op_type) in self.functions:
                attributes = self._unknown(read, NOT_KNOWN)
            elif index in layers and node.op_type in LAYERS and standard(node):
                attributes = _of_layer(layers[index], call)
            else:
                attributes = effect(call, reasons.get(label, NOT_KNOWN))
            for place, name in enumerate(node.output):
                if place and node.op_type != "Split":
                    attributes = self._unknown(read, SECOND)
                if name:
                    self._add(name, label, node.op_type, **attributes)

    def _has_size_only(self, node: Any) -> bool:
        """Whether a node's result follows from sizes, not from the input's numbers."""
        if node.op_type not in SIZES or not standard(node) or not node.input:
            return False
        sizes = self.scope.sizes(node.input[0])
        is_function = (node.domain, node.op_type) in self.functions
        return not is_function and sizes is not None and all(sizes)

    def _may_draw(self, node: Any, depth: int = 0) -> bool:
        """Whether a node may draw random numbers, in a body or a function, too."""
        if standard(node) and node.op_type in RANDOM.split():
            return True
        if node.op_type == "Dropout":  # of constants: with a third input it may train
            return len(node.input) > 2 and node.input[0] not in self.known
        function = self.functions.get((node.domain, node.op_type))
        inner = [] if function is None else list(function.node)
        inner += [x for _, body in bodies(node) for g in graphs(body) for x in g.node]
        if inner and depth > DEEPEST:
            return True
        return any(self._may_draw(each, depth + 1) for each in inner)

    def _add(self, array: str, label: str, operator: str, **attributes: Any) -> None:
        name, count = label, 1
        while name in self.names:
            name, count = f"{label}@{count}", count + 1
        self.names.add(name)
        self.known[array] = Node(name, operator, **attributes)
        self.nodes.append(self.known[array])

    def _unknown(self, read: list[str], why: str) -> dict[str, Any]:
        sources = tuple((self.known[name], 1.0) for name in read)
        return {"sources": sources, "gain": None, "why": why}


def _read(node: Any) -> Iterator[str]:
    """The names that a node reads, also in its bodies."""
    yield from node.input
    for _, body in bodies(node):
        for graph in graphs(body):
            for inner in graph.node:
                yield from inner.input
            for value in graph.output:
                yield value.name


def _of_layer(layer: GraphLayer, call: Call) -> dict[str, Any]:
    """The attributes of a node that is a layer."""
    is_left = call.node.input[0] in call.known  # rows, before a stored matrix
    sources = tuple((call.known[name], 1.0) for name in call.sources)
    try:
        check_sources(call, (0,) if is_left or "Conv" in layer.op else (1,))
    except NoBound as error:
        return {"sources": sources, "gain": None, "why": str(error)}
    stated: dict[str, Any] = {"grid": None} | dict(layer.stated)

    def load() -> Layer:
        weight = layer.weight.load().reshape(layer.shape)
        if layer.gain != 1:
            weight = np.asarray(weight, np.float64) * layer.gain
        return Layer("", weight, Geometry(**stated))

    # Of a product with a matrix the channels may be on any axis.
    axis = 1 if "Conv" in layer.op or (layer.op == "Gemm" and is_left) else None
    return {"sources": sources, "layer": load, "axis": axis}
