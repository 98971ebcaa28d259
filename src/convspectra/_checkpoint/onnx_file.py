"""Kernels of ONNX models, by the nodes of the graph; no runtime is needed."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .._base import require
from .onnx_advice import free_sizes
from .onnx_geometry import (
    Shapes,
    Skipped,
    convolution,
    resize,
    shapes_of,
    without_weights,
)
from .onnx_tensors import attribute, integer, standard
from .onnx_weights import FLOATS, LARGEST, Stored, copy_model, stored_values
from .records import Kernel, Network
from .stored import Refusal, parsing

READ = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # the operators that are read
# What is stated of a matrix: it is a layer on a grid of one.
LINEAR = {"grid": (1,), "groups": 1, "padding": ((0, 0),), "boundary": "zeros"}
# Parts of the names of operators that are layers, read or not, in any domain.
LAYERS = ("conv", "gemm", "matmul", "einsum", "attention", "lstm", "gru", "rnn")

# What exporters call a weight that has no name in the program.
NUMBERED = re.compile(r"(onnx::\w+?_|\w+\.)?[0-9]+")

Known = Mapping[str, Stored | str]


@dataclass(frozen=True, slots=True, eq=False)
class GraphLayer:
    """A layer of the graph that has no name yet."""

    index: int  # of its node
    op: str  # its type
    label: str
    weight: Stored
    shape: tuple[int, ...]
    stated: dict[str, Any]
    gain: float  # Gemm's alpha
    norm: tuple[Stored, Stored, float] | None  # gamma, variance, epsilon

    @property
    def key(self) -> tuple:
        """The same for nodes that are the same layer."""
        weight = self.weight.name, self.weight.axes, self.weight.not_writable_because
        norm = self.norm and (self.norm[0].name, self.norm[1].name, self.norm[2])
        stated = tuple(sorted(self.stated.items()))
        return (*weight, self.shape, stated, self.gain, norm)


def read_onnx(path: Path, sizes: tuple[int, ...] | None = None) -> Network:
    """Find the layers of an ONNX model.

    Every Conv, ConvTranspose, Gemm and MatMul whose weight is stored in the file, or in
    one beside it, is a kernel. It has the name of that weight; if the weight serves
    layers that differ, with the name of the node after it.

    Parameters
    ----------
    path : Path
    sizes : tuple of int, optional
        Of the network's input, mostly (batch, channels, *grid): instead of those that
        the file states or leaves open.
    """
    onnx = require("onnx", extra="onnx")
    if path.stat().st_size > LARGEST:
        raise Refusal(
            f"An .onnx file must have at most {LARGEST} bytes, got "
            f"{path.stat().st_size}. Save its weights as external data."
        )
    with parsing(".onnx file"):
        model = onnx.ModelProto.FromString(path.read_bytes())
        if not model.graph.node or not model.opset_import:
            raise Refusal(
                "An .onnx file must hold a graph and the version of its operators, got "
                "one without. It is cut short, or something else."
            )
        known = stored_values(model, path)
        light = without_weights(model, path)
    if sizes is not None:
        resize(light.graph, sizes)
    with parsing(".onnx file"):
        shapes, skipped = shapes_of(light)
        found, others = _layers(model, known, shapes)
        taken: set[str] = set()
        named = _named(found, taken)
        skipped = [
            (_distinct(label, index, taken), why)
            for index, (label, why) in enumerate(skipped + others)
        ]
    kernels = tuple(kernel for kernel, _ in named)
    unsized = [kernel for kernel in kernels if "grid" not in kernel.stated]
    advice = ""
    if unsized and sizes is None:
        advice = free_sizes(model.graph, _channels(unsized[0]))
    return Network(
        advice=(advice,) if advice else (),
        kernels=kernels,
        skipped=tuple(skipped),
        copy_with=partial(
            copy_model, path, model, {kernel.name: weight for kernel, weight in named}
        ),
    )


def _layers(
    model: Any, known: Known, shapes: Shapes
) -> tuple[list[GraphLayer], Skipped]:
    """The layers of a model in their order, and those that cannot be read, with why."""
    found: list[GraphLayer] = []
    skipped: Skipped = []
    functions = {(function.domain, function.name) for function in model.functions}
    readers = _readers(model.graph)
    for index, node in enumerate(model.graph.node):
        inner = [*_inside([node])][1:]
        skipped += _hidden(inner, f"in a subgraph of {_label(node, index)!r}")
        if not _is_layer(node) or (node.domain, node.op_type) in functions:
            continue
        try:
            found.append(_layer(index, node, known, shapes, readers))
        except Refusal:
            raise
        except (ValueError, TypeError) as error:
            why = f"is of type {node.op_type}: {error}".rstrip(".")
            skipped.append((_label(node, index), why))
    for function in model.functions:
        inner = _inside(function.node)
        skipped += _hidden(inner, f"in the function {_short(function.name)!r}")
    return found, skipped


def _hidden(nodes: Iterable[Any], where: str) -> Iterator[tuple[str, str]]:
    for index, node in enumerate(nodes):
        if _is_layer(node):
            yield (
                _label(node, index),
                f"is of type {node.op_type} {where}, which is not supported",
            )


def _inside(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes, and those of the subgraphs in them, however deep."""
    for node in nodes:
        yield node
        for found in node.attribute:
            for graph in (found.g, *found.graphs):
                yield from _inside(graph.node)


def _readers(graph: Any) -> Mapping[str, list[Any]]:
    """The nodes that read each array, also in their subgraphs; None for an output."""
    readers = defaultdict(list)
    for value in graph.output:
        readers[value.name].append(None)
    for node in graph.node:
        for reader in _inside([node]):
            for name in reader.input:
                readers[name].append(node)
    return readers


def _is_layer(node: Any) -> bool:
    return any(part in node.op_type.lower() for part in LAYERS)


def _label(node: Any, index: int) -> str:
    return _short(node.name or "".join(node.output[:1]) or f"node {index}")


def _short(name: Any) -> str:
    """A name as text, not so long that a file can exhaust the memory by its repeats."""
    return f"{name}"[:200]


def _layer(
    index: int,
    node: Any,
    known: Known,
    shapes: Shapes,
    readers: Mapping[str, list[Any]],
) -> GraphLayer:
    if not standard(node) or node.op_type not in READ:
        raise ValueError("this operator is not read")
    if len(node.input) < 2:
        raise ValueError("it has no weight")
    label, alpha = _label(node, index), attribute(node, "alpha")
    if node.op_type in ("Gemm", "MatMul"):
        weight, by_column = _matrix(node, known)
        shape = (1,) * (2 - len(weight.shape)) + weight.shape + (1,)
        stated, channels = LINEAR, shape[0] if by_column else 0
    else:
        weight, alpha = _weight(node.input[1], known), None
        shape, stated = weight.shape, convolution(node, weight.shape, shapes)
        channels = shape[1] * stated["groups"] if stated["transposed"] else shape[0]
    norm = _norm(node, known, readers, channels) if channels else None
    gain = 1.0 if alpha is None else alpha.f
    return GraphLayer(index, node.op_type, label, weight, shape, stated, gain, norm)


def _weight(name: str, known: Known) -> Stored:
    found = known.get(name, "is an input of the network")
    if isinstance(found, str):
        raise ValueError(f"its weight {found}")
    if found.dtype not in FLOATS:
        raise ValueError(f"its weight holds {found.dtype}")
    if 0 in found.shape:
        raise ValueError(f"its weight is empty, of shape {found.shape}")
    return found


def _matrix(node: Any, known: Known) -> tuple[Stored, bool]:
    """The matrix (out, in) of a Gemm or MatMul, and whether columns are its outputs."""
    stored = [isinstance(known.get(name), Stored) for name in node.input[:2]]
    if stored[0] == stored[1]:
        both = "both of its factors are" if stored[0] else "none of its factors is"
        raise ValueError(f"{both} stored")
    second = stored[1]
    weight = _weight(node.input[second], known)
    if len(weight.shape) not in (1, 2):
        raise ValueError(f"its weight must be one matrix, got shape {weight.shape}")
    turned = integer(node, "transB" if second else "transA", 0)
    if len(weight.shape) == 2 and second != bool(turned):
        weight = weight.transposed((1, 0))  # a row of inputs times (in, out)
    return weight, second and node.op_type == "Gemm"


def _norm(
    node: Any, known: Known, readers: Mapping[str, list[Any]], channels: int
) -> tuple[Stored, Stored, float] | None:
    """Gamma, variance and epsilon of a BatchNorm that alone reads a node's output."""
    after = readers.get(node.output[0], [None])
    norm = after[0] if len(after) == 1 else None
    if (
        norm is None
        or norm.op_type != "BatchNormalization"
        or not standard(norm)
        or len(norm.input) != 5
        or norm.input[0] != node.output[0]
        or any(norm.output[1:])
        or integer(norm, "training_mode", 0)
        or not integer(norm, "spatial", 1)
        or not integer(norm, "is_test", 1)
    ):
        return None
    gamma, variance = known.get(norm.input[1]), known.get(norm.input[4])
    if not isinstance(gamma, Stored) or not isinstance(variance, Stored):
        return None
    if {gamma.shape, variance.shape} != {(channels,)}:
        return None
    epsilon = attribute(norm, "epsilon")
    return gamma, variance, 1e-5 if epsilon is None else epsilon.f


def _factors(gamma: Stored, variance: Stored, epsilon: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        spread = np.sqrt(variance.load().astype(np.float64) + epsilon)
        factors = gamma.load().astype(np.float64) / spread
    if not np.isfinite(factors).all():
        raise Refusal(
            f"A BatchNorm must have a positive variance and finite numbers, got others "
            f"in {gamma.name!r} or {variance.name!r}."
        )
    return factors


def _load(layer: GraphLayer) -> np.ndarray:
    array = layer.weight.load().reshape(layer.shape)
    with np.errstate(all="ignore"):
        return array if layer.gain == 1 else array * array.dtype.type(layer.gain)


def _channels(kernel: Kernel) -> int:
    """How many channels a layer reads."""
    if kernel.stated["transposed"]:
        return kernel.shape[0]
    return kernel.shape[1] * kernel.stated["groups"]


def _person_name(layer: GraphLayer) -> str:
    """The weight's name; the path of its node where the weight has only a number."""
    name = f"{layer.weight.name}"
    if not NUMBERED.fullmatch(name) or layer.label == name:
        return name
    path = layer.label.strip("/").removesuffix(f"/{layer.op}")
    return path or name


def _named(layers: list[GraphLayer], taken: set[str]) -> list[tuple[Kernel, Stored]]:
    """The kernels of layers that differ, each with its weight."""
    distinct: dict[tuple, GraphLayer] = {}
    for layer in layers:
        distinct.setdefault(layer.key, layer)
    uses = Counter(layer.weight.name for layer in distinct.values())
    named = []
    for layer in distinct.values():
        weight = layer.weight
        name = _person_name(layer)
        if uses[weight.name] > 1:
            name = f"{_short(weight.name)}@{layer.label}"
        reason = "is multiplied by alpha" if layer.gain != 1 else ""
        kernel = Kernel(
            name=_distinct(name, layer.index, taken),
            shape=layer.shape,
            dtype=weight.dtype,
            stated=layer.stated,
            load=partial(_load, layer),
            factors=None if layer.norm is None else partial(_factors, *layer.norm),
            linear=layer.stated is LINEAR,
            not_writable_because=weight.not_writable_because or reason,
        )
        named.append((kernel, weight))
    return named


def _distinct(name: str, index: int, taken: set[str]) -> str:
    while name in taken:
        name = f"{name}@{index}"
    taken.add(name)
    return name
