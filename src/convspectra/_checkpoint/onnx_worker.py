"""The sizes of arrays in each graph of an ONNX model, and where they are lost, as JSON.

A script in a process of its own, with a model as input: a small one can make onnx's
shape inference take hours or all memory (a shape joined to itself, forty times). A size
that is open is 0.

First onnx infers the sizes. If those of a convolution's input remain open, the graph is
gone through once more, node by node, with what can be computed from constants and sizes
on the way. There the batch is 1 if it is open. Sizes that do not follow even so are
lost at a node, which is named.

With the argument "one-example", an open batch is 1 from the beginning, and nothing
counts that the file states of other arrays than the inputs.
"""

import json
import math
import sys
import time
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

FEW = 2**10  # numbers of an array that is computed
SECONDS = 30  # of the processor, after which the nodes that are left are not looked at
LONGEST = 80  # characters of a name that is said
# Operators of onnxruntime, each with one of ONNX that gives the same sizes if it reads
# some of the inputs.
ALIKE = {
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), ("Identity", (0,))),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid"), ("Identity", (0,))),
    **{"QLinearAdd": ("Add", (0, 3)), "QLinearMul": ("Mul", (0, 3))},
    **{"FusedConv": ("Conv", (0, 1)), "FusedMatMul": ("MatMul", (0, 1))},
}

Sizes = dict[str, list[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Fact:
    """What is known of an array."""

    kind: Any  # its type
    value: np.ndarray | None = None  # its numbers, if they are few
    lost: str = ""  # where its sizes were lost: a node, or the input

    @property
    def sizes(self) -> list[int] | None:
        """Each size, 0 for what is open; None if not even their number is known."""
        tensor = self.kind.tensor_type
        if not tensor.HasField("shape") or len(tensor.shape.dim) > 9:
            return None
        return [max(dim.dim_value, 0) for dim in tensor.shape.dim]

    @property
    def is_open(self) -> bool:
        return self.value is None and (self.sizes is None or not all(self.sizes))


Facts = ChainMap[str, Fact]  # by name; those of the graphs around come after its own


def graphs(graph: Any) -> Iterator[Any]:
    """A graph and those inside its nodes, in the order of the package."""
    yield graph
    for node in graph.node:
        for _, body in bodies(node):
            yield from graphs(body)


def bodies(node: Any) -> Iterator[tuple[str, Any]]:
    """The graphs of a node with the names of their attributes."""
    for found in node.attribute:
        for body in (*([found.g] if found.HasField("g") else []), *found.graphs):
            yield found.name, body


def shapes(facts: Mapping[str, Fact]) -> Sizes:
    found = {name: fact.sizes for name, fact in facts.items()}
    return {name: sizes for name, sizes in found.items() if sizes is not None}


def stated(graph: Any) -> dict[str, Fact]:
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: Fact(value.type) for value in values}


def infer(model: Any) -> Any:
    """The model with the sizes that follow from those of the input, and no others."""
    for value in model.graph.output:
        value.ClearField("type")
    for graph in graphs(model.graph):
        graph.ClearField("value_info")
        for value in graph.output:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def update(found: Sizes, new: Sizes) -> None:
    found |= {n: s for n, s in new.items() if all(s[2:]) or n not in found}


def convolutions(graph: Any) -> list[Any]:
    """Those in a graph and in the bodies of its nodes."""
    nodes = (node for part in graphs(graph) for node in part.node)
    return [node for node in nodes if "Conv" in node.op_type and len(node.input) > 1]


def are_open(found: list[Sizes], names: Iterable[str]) -> bool:
    """Whether the size of a grid among these arrays is not known."""
    everywhere = ChainMap(*found)
    return not all(all(everywhere.get(name, [0, 0, 0])[2:]) for name in names)


class Walk:
    """Through the nodes of all graphs in their order."""

    def __init__(self, model: Any) -> None:
        self.opsets = list(model.opset_import)
        self.versions = {opset.domain: opset.version for opset in self.opsets}
        self.found: list[Sizes] = []  # graph by graph
        self.lost: list[tuple[str, str]] = []  # what a convolution reads, and where
        self.go(model.graph, ChainMap())

    def go(self, graph: Any, facts: Facts) -> None:
        """Find the facts of a graph; `facts` are those around, its own to be added."""
        own = facts.maps[0]
        for name, fact in stated(graph).items():
            own.setdefault(name, fact)
        for value in graph.input:
            if own[value.name].is_open:
                own[value.name] = Fact(value.type, lost="the input")
        for tensor in graph.initializer:
            kind = tensor_type(tensor.data_type, tensor.dims)
            own[tensor.name] = Fact(kind, small_array(tensor))
        number = len(self.found)
        self.found.append({})
        for node in graph.node:
            name = node.name or "".join(node.output[:1])
            label = f"{node.op_type[:LONGEST]} {name[:LONGEST]!a}"
            self.bodies(node, label, facts)
            if time.process_time() < SECONDS:
                self.step(node, label, facts)
        self.found[number] = shapes(own)

    def bodies(self, node: Any, label: str, facts: Facts) -> None:
        """Go through those of a node, and take what an If or a Loop gives from them."""
        loop, ends = node.op_type == "Loop", []
        taken = branch_taken(node, facts)
        for name, body in bodies(node):
            graph, read, inner = len(self.found), len(self.lost), facts.new_child()
            if loop:
                inner.update(loop_states(node, body, facts))
            self.go(body, inner)
            if loop and not is_lasting(body, inner):
                self.found[graph:] = [{} for _ in self.found[graph:]]
                self.lost[read:] = [(x.input[0], label) for x in convolutions(body)]
                return
            if taken in ("", name):  # the condition is no output of the Loop
                ends.append([inner.get(value.name) for value in body.output[loop:]])
        states = len(node.input) - 2 if loop else len(node.output)
        if loop or node.op_type == "If":
            for name, *found in list(zip(node.output, *ends))[:states]:
                if all(found) and len({str(fact.sizes) for fact in found}) == 1:
                    facts[name] = Fact(found[0].kind, lost=found[0].lost)

    def step(self, node: Any, label: str, facts: Facts) -> None:
        """Add the facts on what a node gives."""
        try:
            kinds = self.kinds(node, facts)
        except Exception:  # whatever onnx makes of it: the sizes are not known
            kinds = {}
        read = [facts[name] for name in node.input if name in facts]
        before = next((fact.lost for fact in read if fact.lost), "")
        for name in filter(None, node.output):
            kind = kinds.get(name)
            fact = facts.maps[0].get(name) or Fact(kind or onnx.TypeProto())
            if kind is not None and Fact(kind).sizes is not None:
                fact = Fact(kind)
            if fact.is_open:
                fact = Fact(fact.kind, lost=before or label)
            facts[name] = fact
        with suppress(Exception):  # an operator that the evaluator lacks, for instance
            self.evaluate(node, facts)
        if "Conv" in node.op_type and node.input and node.input[0] in facts:
            self.lost.append((node.input[0], facts[node.input[0]].lost))

    def kinds(self, node: Any, facts: Facts) -> dict[str, Any]:
        """The types of what a node gives."""
        if [*bodies(node)]:
            return {}
        domain = node.domain.removeprefix("ai.onnx")
        if domain == "com.microsoft" and node.op_type in ALIKE:
            node, domain = alike(node, self.versions[""]), ""
        read = {name: facts[name] for name in node.input if name in facts}
        return onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, self.versions[domain], domain),
            node,
            {name: fact.kind for name, fact in read.items()},
            {
                name: onnx.numpy_helper.from_array(fact.value, name)
                for name, fact in read.items()
                if fact.value is not None
            },
            opset_imports=self.opsets,
        )

    def evaluate(self, node: Any, facts: Facts) -> None:
        """Compute what a node gives, if that is little and follows from constants."""
        if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
            return
        (name,), kind = node.output, facts[node.output[0]].kind
        if node.op_type == "Shape":
            sizes = facts[node.input[0]].sizes
            if sizes is not None and all(sizes):
                start, end = (number(node, key) for key in ("start", "end"))
                facts[name] = Fact(kind, np.array(sizes[start:end], np.int64))
            return
        sizes, is_constant = facts[name].sizes, node.op_type == "Constant"
        if sizes is None or math.prod(sizes) > FEW or not (all(sizes) or is_constant):
            return
        given = {key: facts[key].value for key in node.input if key}
        few = all(value is not None for value in given.values())
        if few and (given or is_constant):  # what has no input may be random
            facts[name] = Fact(kind, compute(node, given, self.opsets))


def number(node: Any, name: str) -> int | None:
    return next((found.i for found in node.attribute if found.name == name), None)


def alike(node: Any, version: int) -> Any:
    """A node of ONNX that gives arrays of the same sizes."""
    op, read = ALIKE[node.op_type]
    known = onnx.defs.get_schema(op, version, "").attributes
    found = onnx.helper.make_node(op, [node.input[i] for i in read], node.output)
    found.attribute.extend(one for one in node.attribute if one.name in known)
    return found


def compute(node: Any, given: dict[str, Any], opsets: list[Any]) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    helper = onnx.helper
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in given.items()
    ]
    output = onnx.ValueInfoProto(name=node.output[0])
    graph = helper.make_graph([node], "one", inputs, [output])
    model = helper.make_model(graph, opset_imports=opsets)
    (result,) = ReferenceEvaluator(model).run(None, given)
    return np.asarray(result)


def tensor_type(kind: int, shape: Any) -> Any:
    return onnx.helper.make_tensor_type_proto(kind, [int(size) for size in shape])


def small_array(tensor: Any) -> np.ndarray | None:
    """The numbers of a tensor; None where they were left out or are many."""
    if math.prod(tensor.dims) > FEW:
        return None
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception:  # left out, or of a type that NumPy has not
        return None


def branch_taken(node: Any, facts: Facts) -> str:
    """The attribute of an If whose condition is known; empty for all other nodes."""
    if node.op_type != "If" or not node.input or node.input[0] not in facts:
        return ""
    condition = facts[node.input[0]].value
    if condition is None or condition.size != 1:
        return ""
    return "then_branch" if condition.item() else "else_branch"


def loop_states(node: Any, body: Any, facts: Facts) -> dict[str, Fact]:
    """The states of a Loop with the sizes that they begin with."""
    pairs = zip(body.input[2:], node.input[2:])
    return {
        value.name: Fact(facts[name].kind, lost=facts[name].lost)
        for value, name in pairs
        if name in facts
    }


def is_lasting(body: Any, facts: Facts) -> bool:
    """Whether each state of a Loop has the same sizes after a step."""
    pairs = zip(body.input[2:], body.output[1:])
    return all(
        after.name in facts and facts[before.name].sizes == facts[after.name].sizes
        for before, after in pairs
    )


def with_batch_of_one(model: Any) -> Any:
    """Open first sizes become 1, and so do others that have the name of one.

    Unless the name is also that of a later size, where the first may be the batch.
    """
    every = [list(value.type.tensor_type.shape.dim) for value in model.graph.input]
    firsts = [dim for dims in every for dim in dims[:1] if dim.dim_value < 1]
    rows = [dims[1:] for dims in every if dims and dims[0].dim_value < 2]
    lengths = {dim.dim_param for dims in rows for dim in dims} - {""}
    batches = [dim for dim in firsts if dim.dim_param not in lengths]
    names = {dim.dim_param for dim in batches if dim.dim_param}
    batches += [dim for dims in every for dim in dims[1:] if dim.dim_param in names]
    for dim in batches:
        dim.dim_value = 1
    return model


if __name__ == "__main__":
    model = onnx.ModelProto.FromString(sys.stdin.buffer.read())
    if one_example := "one-example" in sys.argv:
        model = with_batch_of_one(model)
    # What the file states, for arrays whose sizes do not follow from the input's.
    found = [
        {} if one_example else shapes(stated(graph)) for graph in graphs(model.graph)
    ]
    for sizes, graph in zip(found, graphs(infer(model).graph), strict=True):
        update(sizes, shapes(stated(graph)))
    lost: dict[str, str] = {}
    if are_open(found, [node.input[0] for node in convolutions(model.graph)]):
        walk = Walk(infer(with_batch_of_one(model)))
        for sizes, more in zip(found, walk.found, strict=True):
            update(sizes, more)
        lost = {where: name for name, where in walk.lost if are_open(found, [name])}
    json.dump({"shapes": found, "lost": [*lost]}, sys.stdout)
