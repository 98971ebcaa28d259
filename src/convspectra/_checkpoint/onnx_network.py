"""A whole ONNX network: what each of its nodes does to the size of its input."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._layer.geometry import Geometry
from .._layer.layer import Layer
from .._network.gains import NOT_KNOWN, NoBound
from .._network.node import Node
from .onnx_file import opened
from .onnx_layers import GraphLayer, layers_of
from .onnx_operators import FLOATS, Call, check_sources, effect
from .onnx_scopes import Scope, short
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


@dataclass(frozen=True, slots=True)
class Computation:
    """What an ONNX model computes.

    Attributes
    ----------
    nodes : list of Node
        Those that depend on its input, in the order of computation.
    outputs : list of Node
        Those of them that are its output.
    inputs : dict of str to list of int
        The sizes of its inputs that the nodes are for, None for one that is open; None
        in place of the list if not even their number is known.
    """

    nodes: list[Node]
    outputs: list[Node]
    inputs: dict[str, list[int | None] | None]


def read_computation(path: Path, sizes: tuple[int, ...] | None = None) -> Computation:
    """Find out what an ONNX model computes, as far as Lipschitz constants go.

    Weights are read when a node's layer is asked for.

    Parameters
    ----------
    path : Path
    sizes : tuple of int, optional
        Of the network's input, instead of those that the file states or leaves open.
        An open first size is 1: one example.
    """
    model, _, (scope, *_) = opened(path, sizes, one_example=True)
    with parsing(".onnx file"):
        _check_order(model.graph)
        found = _Nodes(model, scope)
    if not found.inputs:
        raise Refusal("An .onnx network must have an input, got none.")
    ends = [value.name for value in model.graph.output]
    return Computation(
        found.nodes,
        [found.known[name] for name in ends if name in found.known],
        {name: _open_as_none(scope.sizes(name)) for name in found.inputs},
    )


def _open_as_none(sizes: list[int] | None) -> list[int | None] | None:
    return None if sizes is None else [size or None for size in sizes]


def _check_order(graph: Any) -> None:
    """Refuse a graph that reads what it has not computed by then."""
    given = _given(graph)
    steps = [(_read(node), node.output) for node in graph.node]
    for read, results in [*steps, ([value.name for value in graph.output], [])]:
        if missing := [name for name in read if name not in given]:
            raise Refusal(
                "A graph must read nothing but its inputs, what is stored, and results "
                f"of nodes before, got {short(missing[0])!r}."
            )
        given.update(results)


class _Nodes:
    """The nodes of a graph, and which array each of them gives."""

    def __init__(self, model: Any, scope: Scope) -> None:
        self.scope, self.known, self.nodes = scope, dict[str, Node](), list[Node]()
        self.names: set[str] = set()
        found, others = layers_of(model, [scope])
        layers, reasons = {layer.place[-1]: layer for layer in found}, dict(others)
        self.functions = {(each.domain, each.name): each for each in model.functions}
        self.inputs = [
            value.name for value in model.graph.input if value.name not in scope.values
        ]
        for value in model.graph.input:
            if value.name in self.inputs:
                real = value.type.tensor_type.elem_type in FLOATS
                known = {} if real else {"gain": None, "why": WHOLE}
                self._add(value.name, value.name, "input", **known)
        for index, node in enumerate(model.graph.node):
            call = Call(node, scope, self.known)
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
    """The names of what a node reads of the graph around it, also in its bodies."""
    yield from node.input
    for _, body in bodies(node):
        own = _given(body) | {name for inner in body.node for name in inner.output}
        names = [name for inner in body.node for name in _read(inner)]
        names += [value.name for value in body.output]
        yield from (name for name in names if name not in own)


def _given(graph: Any) -> set[str]:
    """The names that a graph has before its first node."""
    stored = (tensor.name for tensor in graph.initializer)
    sparse = (tensor.values.name for tensor in graph.sparse_initializer)
    return {"", *(value.name for value in graph.input), *stored, *sparse}


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
        return Layer("", weight, Geometry(**stated))

    # Of a product with a matrix the channels may be on any axis.
    axis = 1 if "Conv" in layer.op or (layer.op == "Gemm" and is_left) else None
    gain = abs(float(layer.gain))
    return {"sources": sources, "layer": load, "gain": gain, "axis": axis}
