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
from .onnx_advice import free_sizes, lost_sizes
from .onnx_geometry import (
    Skipped,
    convolution,
    resize,
    sizes_in,
    without_weights,
)
from .onnx_scopes import Scope, scopes, short
from .onnx_tensors import attribute, bodies, graphs, integer, standard
from .onnx_weights import FLOATS, LARGEST, Stored, copy_model
from .records import Kernel, Network
from .stored import Refusal, parsing

READ = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # the operators that are read
# What is stated of a matrix: it is a layer on a grid of one.
LINEAR = {"grid": (1,), "groups": 1, "padding": ((0, 0),), "boundary": "zeros"}
# Parts of the names of operators that are layers, read or not, in any domain.
LAYERS = ("conv", "gemm", "matmul", "einsum", "attention", "lstm", "gru", "rnn")
FAILED = "failed or went beyond its limits, so that sizes of inputs are not known"

# What exporters call a weight that has no name in the program.
NUMBERED = re.compile(r"(onnx::\w+?_|\w+\.)?[0-9]+")


@dataclass(frozen=True, slots=True, eq=False)
class GraphLayer:
    """A layer of the graph that has no name yet."""

    place: tuple[int, ...]  # of its scope, then the number of its node
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
        weight, norm = self.weight, None
        if self.norm:
            gamma, variance, epsilon = self.norm
            norm = gamma.graph, gamma.name, variance.graph, variance.name, epsilon
        tensor = weight.graph, weight.name, weight.axes, weight.not_writable_because
        stated = tuple(sorted(self.stated.items()))
        return (*tensor, self.shape, stated, self.gain, norm)


def read_onnx(path: Path, sizes: tuple[int, ...] | None = None) -> Network:
    """Find the layers of an ONNX model.

    Every Conv, ConvTranspose, Gemm and MatMul whose weight is stored in the file, or in
    one beside it, is a kernel, also in the bodies of If, Loop and Scan. It has the name
    of that weight; if the weight serves layers that differ, with the name of the node
    after it.

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
        light = without_weights(model, path)
    if sizes is not None:
        resize(light.graph, sizes)
    with parsing(".onnx file"):
        inferred = sizes_in(light)
        found, others = _layers(model, scopes(model, inferred.shapes, path))
        failed = [("shape inference", FAILED)] if inferred.failed else []
        taken: set[str] = set()
        named = _named(found, taken)
        skipped = [
            (_distinct(label, index, taken), why)
            for index, (label, why) in enumerate([*failed, *others])
        ]
    kernels = tuple(kernel for kernel, _ in named)
    unsized = [kernel for kernel in kernels if "grid" not in kernel.stated]
    advice = []
    if unsized and sizes is None:
        advice.append(free_sizes(model.graph, _channels(unsized[0])))
    if unsized:
        advice.append(lost_sizes(inferred.lost))
    return Network(
        advice=tuple(filter(None, advice)),
        kernels=kernels,
        skipped=tuple(skipped),
        copy_with=partial(
            copy_model, path, model, {kernel.name: weight for kernel, weight in named}
        ),
    )


def _layers(
    model: Any, found_scopes: Iterable[Scope]
) -> tuple[list[GraphLayer], Skipped]:
    """The layers of a model in their order, and those that cannot be read, with why."""
    found: list[GraphLayer] = []
    skipped: Skipped = []
    functions = {(function.domain, function.name) for function in model.functions}
    for scope in found_scopes:
        readers = _readers(scope.graph)
        for index, node in enumerate(scope.graph.node):
            if not _is_layer(node) or (node.domain, node.op_type) in functions:
                continue
            try:
                found.append(_layer(index, node, scope, readers))
            except Refusal:
                raise
            except (ValueError, TypeError) as error:
                why = f"is of type {node.op_type}: {error}".rstrip(".")
                skipped.append((scope.label(node, index), why))
    for function in model.functions:
        skipped += _hidden(function)
    return sorted(found, key=lambda layer: layer.place), skipped


def _hidden(function: Any) -> Iterator[tuple[str, str]]:
    where = f"in the function {short(function.name)!r}, which is not supported"
    for index, node in enumerate(_inside(function.node)):
        if _is_layer(node):
            label = Scope(function, {}, {}).label(node, index)
            yield label, f"is of type {node.op_type} {where}"


def _inside(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes, and those of the graphs in them, however deep."""
    for node in nodes:
        yield node
        for _, body in bodies(node):
            yield from _inside(body.node)


def _readers(graph: Any) -> Mapping[str, list[Any]]:
    """The nodes that read each array, also in their bodies; None for an output."""
    readers = defaultdict(list)
    for value in graph.output:
        readers[value.name].append(None)
    for node in graph.node:
        for reader in _inside([node]):
            for name in reader.input:
                readers[name].append(node)
        for _, body in bodies(node):
            for part in graphs(body):
                for value in part.output:
                    readers[value.name].append(node)
    return readers


def _is_layer(node: Any) -> bool:
    return any(part in node.op_type.lower() for part in LAYERS)


def _layer(
    index: int, node: Any, scope: Scope, readers: Mapping[str, list[Any]]
) -> GraphLayer:
    if not standard(node) or node.op_type not in READ:
        raise ValueError("this operator is not read")
    if len(node.input) < 2:
        raise ValueError("it has no weight")
    label, alpha = scope.label(node, index), attribute(node, "alpha")
    if node.op_type in ("Gemm", "MatMul"):
        weight, by_column = _matrix(node, scope)
        shape = (1,) * (2 - len(weight.shape)) + weight.shape + (1,)
        stated, channels = LINEAR, shape[0] if by_column else 0
    else:
        weight, alpha = _weight(node.input[1], scope), None
        shape = weight.shape
        stated = convolution(node, shape, scope.sizes(node.input[0]))
        channels = shape[1] * stated["groups"] if stated["transposed"] else shape[0]
    norm = _norm(node, scope, readers, channels) if channels else None
    gain, place = 1.0 if alpha is None else alpha.f, (*scope.place, index)
    return GraphLayer(place, node.op_type, label, weight, shape, stated, gain, norm)


def _weight(name: str, scope: Scope) -> Stored:
    found = scope.value(name)
    if isinstance(found, str):
        raise ValueError(f"its weight {found}")
    if found.dtype not in FLOATS:
        raise ValueError(f"its weight holds {found.dtype}")
    if 0 in found.shape:
        raise ValueError(f"its weight is empty, of shape {found.shape}")
    return found


def _matrix(node: Any, scope: Scope) -> tuple[Stored, bool]:
    """The matrix (out, in) of a Gemm or MatMul, and whether columns are its outputs."""
    stored = [isinstance(scope.value(name), Stored) for name in node.input[:2]]
    if stored[0] == stored[1]:
        both = "both of its factors are" if stored[0] else "none of its factors is"
        raise ValueError(f"{both} stored")
    second = stored[1]
    weight = _weight(node.input[second], scope)
    if len(weight.shape) not in (1, 2):
        raise ValueError(f"its weight must be one matrix, got shape {weight.shape}")
    turned = integer(node, "transB" if second else "transA", 0)
    if len(weight.shape) == 2 and second != bool(turned):
        weight = weight.transposed((1, 0))  # a row of inputs times (in, out)
    return weight, second and node.op_type == "Gemm"


def _norm(
    node: Any, scope: Scope, readers: Mapping[str, list[Any]], channels: int
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
    gamma, variance = scope.value(norm.input[1]), scope.value(norm.input[4])
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
            name = f"{short(weight.name)}@{layer.label}"
        reason = "is multiplied by alpha" if layer.gain != 1 else ""
        kernel = Kernel(
            name=_distinct(name, layer.place[-1], taken),
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
