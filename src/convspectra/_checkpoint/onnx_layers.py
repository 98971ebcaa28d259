"""Which nodes of an ONNX model are layers, and what numbers does each have?"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .onnx_geometry import Skipped, convolution
from .onnx_quantized import QUANTIZED, quantized_weight
from .onnx_scopes import Scope, short
from .onnx_tensors import attribute, bodies, graphs, integer, standard
from .onnx_weights import FLOATS, Stored
from .records import LINEAR, names_layer
from .stored import Refusal

# The operators that are read: ONNX's own, and onnxruntime's convolution with something
# done after it.
READ = ("Conv", "ConvTranspose", "Gemm", "MatMul", *QUANTIZED)
MICROSOFT = ("FusedConv",)


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
        tensor = weight.graph, weight.name, weight.scale, weight.axes
        stated = tuple(sorted(self.stated.items()))
        reason = weight.not_writable_because
        return (*tensor, reason, self.shape, stated, self.gain, norm)

    def load(self) -> np.ndarray:
        array = self.weight.load().reshape(self.shape)
        with np.errstate(all="ignore"):
            return array if self.gain == 1 else array * array.dtype.type(self.gain)

    def factors(self) -> np.ndarray:
        """What the BatchNorm multiplies each output channel with."""
        assert self.norm is not None
        gamma, variance, epsilon = self.norm
        with np.errstate(all="ignore"):
            spread = np.sqrt(variance.load().astype(np.float64) + epsilon)
            factors = gamma.load().astype(np.float64) / spread
        if not np.isfinite(factors).all():
            raise Refusal(
                f"A BatchNorm must have a positive variance and finite numbers, got "
                f"others in {gamma.name!r} or {variance.name!r}."
            )
        return factors


def layers_of(
    model: Any, found_scopes: Iterable[Scope]
) -> tuple[list[GraphLayer], Skipped]:
    """The layers of a model in their order, and those that cannot be read, with why."""
    found: list[GraphLayer] = []
    skipped: Skipped = []
    functions = {(function.domain, function.name) for function in model.functions}
    for scope in found_scopes:
        readers = _readers(scope.graph)
        makers = {name: node for node in scope.graph.node for name in node.output}
        for index, node in enumerate(scope.graph.node):
            if (
                not names_layer(node.op_type)
                or (node.domain, node.op_type) in functions
            ):
                continue
            try:
                place = (*scope.place, index)
                label = scope.label(node, index)
                weight = _weight(node, scope, readers, makers)
                found.append(_layer(place, label, node, weight, scope, readers))
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
        if names_layer(node.op_type):
            label = Scope(function, {}, {}, opset=0).label(node, index)
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


def _layer(
    place: tuple[int, ...],
    label: str,
    node: Any,
    weight: Stored,
    scope: Scope,
    readers: Mapping[str, list[Any]],
) -> GraphLayer:
    alpha, op = attribute(node, "alpha"), node.op_type
    if "Conv" in op:
        shape, alpha = weight.shape, None
        stated = convolution(node, shape, scope.sizes(node.input[0]))
        channels = shape[1] * stated["groups"] if stated["transposed"] else shape[0]
    else:
        second = op in QUANTIZED or isinstance(scope.value(node.input[1]), Stored)
        weight = _matrix(node, weight, second)
        shape = (1,) * (2 - len(weight.shape)) + weight.shape + (1,)
        stated, channels = LINEAR, shape[0] if second and op == "Gemm" else 0
    norm = _norm(node, scope, readers, channels) if channels else None
    gain = 1.0 if alpha is None else alpha.f
    return GraphLayer(place, op, label, weight, shape, stated, gain, norm)


def _weight(
    node: Any,
    scope: Scope,
    readers: Mapping[str, list[Any]],
    makers: Mapping[str, Any],
) -> Stored:
    """The numbers of a layer, as they are stored."""
    op, fused = node.op_type, node.domain == "com.microsoft"
    if op not in MICROSOFT if fused else op not in READ or not standard(node):
        raise ValueError("this operator is not read")
    if len(node.input) < 2:
        raise ValueError("it has no weight")
    if op in QUANTIZED:
        found = quantized_weight(node, scope, readers, makers)
    elif op in ("Gemm", "MatMul"):
        first, second = (scope.value(name) for name in node.input[:2])
        stored = isinstance(first, Stored), isinstance(second, Stored)
        if stored[0] == stored[1]:
            both = "both of its factors are" if stored[0] else "none of its factors is"
            raise ValueError(f"{both} stored")
        found = first if stored[0] else second
    else:
        found = scope.value(node.input[1])
    if isinstance(found, str):
        raise ValueError(f"its weight {found}")
    if found.dtype not in FLOATS:
        raise ValueError(f"its weight holds {found.dtype}")
    if 0 in found.shape:
        raise ValueError(f"its weight is empty, of shape {found.shape}")
    return found


def _matrix(node: Any, weight: Stored, second: bool) -> Stored:
    """The weight as (out, in); `second` says that inputs are rows before it."""
    if len(weight.shape) not in (1, 2):
        raise ValueError(f"its weight must be one matrix, got shape {weight.shape}")
    turned = integer(node, "transB" if second else "transA", 0)
    if len(weight.shape) == 2 and second != bool(turned):
        return weight.transposed((1, 0))
    return weight


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
        # Before version 7 it trains unless it says otherwise.
        or not integer(norm, "is_test", int(scope.opset >= 7))
    ):
        return None
    gamma, variance = scope.value(norm.input[1]), scope.value(norm.input[4])
    if not isinstance(gamma, Stored) or not isinstance(variance, Stored):
        return None
    if {gamma.shape, variance.shape} != {(channels,)}:
        return None
    epsilon = attribute(norm, "epsilon")
    return gamma, variance, 1e-5 if epsilon is None else epsilon.f
