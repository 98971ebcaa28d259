"""The graph of a SavedModel: which variable does each convolution read?

A SavedModel computes in functions that call each other, and hands them variables. These
are followed from the graph into the functions, each of which is gone through once for
each set of variables. In a frozen graph constants are in the place of variables.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .protobuf_wire import Message, first, integers, message, signed, text
from .records import names_layer
from .tensor_bundle import Constant, tensor_constant, tensor_integers, tensor_texts
from .tflite_geometry import Blocks, pairs

MOST_NODES = 10**6  # and inputs of nodes that are looked at
LONGEST = 80  # characters of a name that is said
MOST_STEPS = 20  # from the use of a variable to where it comes from
VARIABLES = ("VarHandleOp", "VariableV2")  # the latter before TensorFlow 2
# Which give what they get, with another axis of size 1 at most.
PASSED = ("ReadVariableOp", "Identity", "ExpandDims")
# Convolutions: which inputs are the weight and the data.
LAYERS = {
    "Conv2D": (1, 0),
    "Conv3D": (1, 0),
    "DepthwiseConv2dNative": (1, 0),
    "Conv2DBackpropInput": (1, 2),
    "Conv3DBackpropInputV2": (1, 2),
    "MatMul": (1, 0),
}


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node of a graph or a function."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Message]  # as they are stored

    def integers(self, name: str) -> list[int]:
        return [*integers(message(first(self._attribute(name), 1)).get(3, []))]

    def text(self, name: str) -> str:
        return text(first(self._attribute(name), 2))

    def is_true(self, name: str) -> bool:
        return bool(first(self._attribute(name), 5))

    @property
    def function(self) -> str:
        """The name of the function that it calls, empty if it calls none."""
        return text(first(message(first(self._attribute("f"), 10)), 1))

    def sizes(self, output: int = 0) -> list[int] | None:
        """The sizes of what it gives, 0 for those that are open."""
        return _sizes(self._attribute("_output_shapes"), output)

    @property
    def texts(self) -> list[str]:
        return tensor_texts(first(self._attribute("value"), 8))

    def constant(self) -> Constant | str:
        """What a Const holds, or why that cannot be read."""
        return tensor_constant(self.name, first(self._attribute("value"), 8))

    def sizes_stated(self) -> tuple[int, ...]:
        """The numbers of a Const that states sizes."""
        return tensor_integers(first(self._attribute("value"), 8))

    def _attribute(self, name: str) -> Message:
        return self.attributes.get(name, {})


@dataclass(frozen=True, eq=False)
class Function:
    """A function, or the graph itself, which has no arguments and no name."""

    name: str
    nodes: Mapping[str, Node]
    arguments: tuple[str, ...] = ()
    sizes: Mapping[str, list[int] | None] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)  # of constants

    @cached_property
    def joins(self) -> dict[str, Node]:
        """The nodes that put sub-grids together, by the nodes that they read."""
        joins = (node for node in self.nodes.values() if node.op == "BatchToSpaceND")
        return {node.inputs[0].partition(":")[0]: node for node in joins if node.inputs}

    @property
    def cost(self) -> int:
        return 1 + sum(1 + len(node.inputs) for node in self.nodes.values())


@dataclass(frozen=True, slots=True)
class Cut:
    """How the grid of a layer is cut into sub-grids, or why that is not known."""

    blocks: Blocks | str
    sizes: list[int] | None  # of the whole input


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A convolution, and the variable or constant that is its weight."""

    variable: str  # the name of its node; of a constant, after that of its function
    node: Node
    sizes: list[int] | None  # of the input
    cut: Cut | None = None  # if it is one of sub-grids


@dataclass(slots=True, eq=False)
class Found:
    """What is found in a graph."""

    uses: list[Use] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)  # of variables in the shards
    names: dict[str, str] = field(default_factory=dict)  # of variables, for people
    constants: dict[str, Node] = field(default_factory=dict)  # that layers read
    unread: dict[str, str] = field(default_factory=dict)  # why other layers are not
    unread_by: dict[str, str] = field(default_factory=dict)  # these, by variable


def look_through(graph_def: memoryview | int | None) -> Found:
    """Find the convolutions of a graph, and the keys of the variables."""
    graph = message(graph_def)
    functions = dict(map(_function, message(first(graph, 2)).get(1, [])))
    functions[""] = Function("", _nodes(graph.get(1, [])))
    found, seen, left = Found(), set(), MOST_NODES
    waiting: list[tuple[str, tuple[str | None, ...]]] = [("", ())]
    while waiting:
        name, given = waiting.pop()
        if (name, given) in seen or name not in functions:
            continue
        seen.add((name, given))
        function = functions[name]
        left -= function.cost
        if left < 0:
            raise ValueError(f"there are more than {MOST_NODES} nodes")
        variables = dict(zip(function.arguments, given))
        for node in function.nodes.values():
            waiting += _visit(node, function, variables, found)
    return found


def _visit(
    node: Node, function: Function, variables: Mapping[str, str | None], found: Found
) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    """Note what a node is; gives the call, if it is one."""
    if node.op in VARIABLES:
        found.names[node.name] = node.text("shared_name") or node.name
    elif node.op in LAYERS and len(node.inputs) > max(LAYERS[node.op]):
        weight, data = (node.inputs[i] for i in LAYERS[node.op])
        variable = _variable(weight, function, variables)
        source = function.nodes.get(_plain(weight, function))
        if source is not None and source.op == "Const":
            variable = f"{function.name}/{source.name}".lstrip("/")
            found.constants[variable] = source
            found.names[variable] = source.name
        if variable is not None:
            sizes, cut = _sizes_of(data, function), _cut(node, data, function)
            found.uses.append(Use(variable, node, sizes, cut))
        elif source is not None and node.op != "MatMul":
            why = f"is {node.op}: its weight is computed by {source.op[:LONGEST]}"
            found.unread[node.name] = why
    elif node.op in ("AssignVariableOp", "Assign") and len(node.inputs) > 1:
        variable = _variable(node.inputs[0], function, variables)
        key = _restored(node.inputs[1], function)
        if variable is not None and key:
            found.keys[variable] = key
    elif node.function:
        given = (x for x in node.inputs if not x.startswith("^"))
        yield node.function, tuple(_variable(x, function, variables) for x in given)
    elif names_layer(node.op):
        why = f"is {node.op[:LONGEST]}: this operator is not read"
        found.unread[node.name] = why
        read = (_variable(name, function, variables) for name in node.inputs)
        found.unread_by |= dict.fromkeys(filter(None, read), node.name)


def _cut(node: Node, data: str, function: Function) -> Cut | None:
    """How the grid of a layer is cut into sub-grids; None if it is not."""
    cuts, join = function.nodes.get(_plain(data, function)), None
    if cuts is not None and cuts.op == "SpaceToBatchND" and node.op != "MatMul":
        join = function.joins.get(node.name)
    if cuts is None or join is None or min(len(cuts.inputs), len(join.inputs)) < 3:
        return None
    sizes = _sizes_of(cuts.inputs[0], function)
    stated = [
        function.nodes.get(_plain(name, function))
        for name in (*cuts.inputs[1:3], *join.inputs[1:3])
    ]
    try:
        block, padded, again, cropped = (
            () if each is None else each.sizes_stated() for each in stated
        )
    except ValueError as error:
        return Cut(str(error), sizes)
    if block != again:
        return Cut("it is cut into sub-grids that are not put together", sizes)
    return Cut(Blocks(block, pairs(padded), pairs(cropped)), sizes)


def _source(name: str, function: Function) -> str:
    """What an input comes from, through what gives just what it gets."""
    for _ in range(MOST_STEPS):
        node = function.nodes.get(name.partition(":")[0])
        if node is None or node.op not in PASSED or not node.inputs:
            return name
        name = node.inputs[0]
    return ""


def _variable(
    name: str, function: Function, variables: Mapping[str, str | None]
) -> str | None:
    plain = _plain(name, function)
    node = function.nodes.get(plain)
    if node is not None:
        return node.name if node.op in VARIABLES else None
    return variables.get(plain)


def _plain(name: str, function: Function) -> str:
    """The name of the node or argument that an input comes from."""
    return _source(name, function).partition(":")[0]


def _restored(name: str, function: Function) -> str:
    """The key by which a value is restored: RestoreV2 gives one for each name."""
    source = _source(name, function)
    node = function.nodes.get(source.partition(":")[0])
    if node is None or node.op != "RestoreV2" or len(node.inputs) < 2:
        return ""
    names = node.inputs[1].partition(":")[0]
    if names not in function.texts:
        listed = function.nodes.get(names)
        function.texts[names] = [] if listed is None else listed.texts
    return "".join(function.texts[names][_output(source) :][:1])


def _output(name: str) -> int:
    """Which of the outputs of a node an input is, as in `node:output:1` or `node:1`."""
    number = name.rpartition(":")[2]
    return int(number) if number.isdecimal() and len(number) < 10 else 0


def _sizes_of(name: str, function: Function) -> list[int] | None:
    plain = name.partition(":")[0]
    node = function.nodes.get(plain)
    return function.sizes.get(plain) if node is None else node.sizes(_output(name))


def _nodes(stored: list[int | memoryview]) -> dict[str, Node]:
    return {node.name: node for node in map(_node, stored)}


def _node(data: int | memoryview) -> Node:
    found = message(data)
    return Node(
        name=text(first(found, 1)),
        op=text(first(found, 2)),
        inputs=tuple(text(name) for name in found.get(3, [])),
        attributes=_map(found.get(5, [])),
    )


def _map(entries: list[int | memoryview]) -> dict[str, Message]:
    pairs = (message(entry) for entry in entries)
    return {text(first(pair, 1)): message(first(pair, 2)) for pair in pairs}


def _function(data: int | memoryview) -> tuple[str, Function]:
    found = message(data)
    signature = message(first(found, 1))
    names = tuple(text(first(message(x), 1)) for x in signature.get(2, []))
    sizes: dict[str, Any] = {}
    for entry in map(message, found.get(7, [])):
        index = signed(first(entry, 1))
        stated = _map(message(first(entry, 2)).get(1, []))
        if 0 <= index < len(names):
            sizes[names[index]] = _sizes(stated.get("_output_shapes", {}))
    name = text(first(signature, 1))
    return name, Function(name, _nodes(found.get(3, [])), names, sizes)


def _sizes(attribute: Message, output: int = 0) -> list[int] | None:
    """The sizes of one of several outputs."""
    shapes = message(first(attribute, 1)).get(7, [])
    if output >= len(shapes):
        return None
    shape = message(shapes[output])
    if first(shape, 3) or len(shape.get(2, [])) > 10:
        return None
    return [max(signed(first(message(dim), 1)), 0) for dim in shape.get(2, [])]
