"""Bound the Lipschitz constant of a network by those of its operations."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from .._arrays.host import detach_to_numpy
from .._layer.geometry import Geometry
from .._layer.layer import scale_outputs
from .._norm.operator_norm import operator_norm
from .bounds import LipschitzBounds, LipschitzPart
from .gains import NOT_FINITE
from .node import Node

COMPOSED = "composition of its parts"
# Covers the rounding of a few operations in double precision.
ROUNDED = 1 + 2.0**-49
# Factors of channels that are rounded multiply the norm by 1 + 2^-50 at most. Entries
# of their products with a kernel that are each off by 2^-53 of themselves change the
# norm by 2^-53 * sqrt(rank) of it at most, rank < 7e7.
FOLDED = 1 + 1e-12
# Entries of an array beyond which the norm of a layer is that of every input size.
LARGE = 2**27

Watch = Callable[[list[Node]], Iterable[Node]]


def compose(
    nodes: Sequence[Node],
    outputs: Sequence[Node],
    rtol: float,
    budget: float | None = None,
    watch: Watch = iter,
) -> LipschitzBounds:
    """The upper bound of a network, from its nodes in the order of computation.

    Its outputs are taken as one array. What none of them needs is left out. The norms
    of layers are close to `rtol`, within `budget`, as `operator_norm` has them. `watch`
    is shown the nodes, and passes them on one by one.
    """
    needed = _needed(outputs)
    kept = [node for node in nodes if node in needed]
    layers = _folded(kept, outputs)
    absorbed = set(layers.values())
    totals: dict[Node, float] = {}
    parts: list[LipschitzPart] = []
    unknown: dict[str, str] = {}
    for node in watch([node for node in kept if node not in absorbed]):
        first = layers.get(node, node)
        name = node.name if first is node else f"{first.name}+{node.name}"
        norm, method = _norm(node, layers.get(node), rtol, budget)
        totals[node] = _product(norm, _joined(first, totals))
        if math.isinf(norm):
            unknown[name] = method
        if norm == 1 and first.layer is None:
            norm, method = None, first.joined
        if norm is not None or len(first.sources) > 1:
            operator = first.operator
            part = LipschitzPart(name, operator, norm, totals[node], method)
            parts.append(part)
    upper = _root_of_squares([totals[node] for node in outputs])
    return LipschitzBounds(0.0, upper, COMPOSED, tuple(parts), unknown)


def _needed(outputs: Sequence[Node]) -> set[Node]:
    """The nodes that the outputs depend on, themselves included."""
    found, left = set(outputs), list(outputs)
    while left:
        for source, _ in left.pop().sources:
            if source not in found:
                found.add(source)
                left.append(source)
    return found


def _folded(nodes: Sequence[Node], outputs: Sequence[Node]) -> dict[Node, Node]:
    """Which factors of channels belong to which layer: to the one they alone read."""
    readers = Counter(outputs)
    readers.update(source for node in nodes for source, _ in node.sources)
    found = {}
    for node in nodes:
        if isinstance(node.gain, np.ndarray):
            ((layer, _),) = node.sources
            if layer.layer and readers[layer] == 1 and node.axis == layer.axis:
                found[node] = layer
    return found


def _norm(
    node: Node, before: Node | None, rtol: float, budget: float | None
) -> tuple[float, str]:
    """The Lipschitz constant of a node, after the layer that it is folded into.

    And how it is known; infinite if it is not, and why.
    """
    norm, method = node.gain, node.why
    layer_of = node.layer if before is None else before.layer
    try:
        if layer_of is not None:
            layer = layer_of()
            weight = detach_to_numpy(layer.weight)
            if before is not None:
                weight = np.asarray(weight, np.float64)
                weight = scale_outputs(weight, np.asarray(node.gain), layer.geometry)
            norm, method = _layer_norm(weight, layer.geometry, rtol, budget)
            norm *= 1 if before is None else FOLDED
        elif isinstance(norm, np.ndarray):
            norm = float(np.abs(norm).max(initial=0.0)) * FOLDED
            method = "largest factor"
    except (ValueError, TypeError) as error:  # what is wrong with the layer
        norm, method = None, str(error).rstrip(".")
    if norm is None:
        return math.inf, method
    return (_up(norm), method) if 0 <= norm < math.inf else (math.inf, NOT_FINITE)


def _layer_norm(
    weight: np.ndarray, geometry: Geometry, rtol: float, budget: float | None
) -> tuple[float, str]:
    grid = geometry.grid
    if isinstance(grid, tuple) and math.prod(grid) * len(weight) > LARGE:
        geometry = replace(geometry, grid=None)
    found = operator_norm(weight, geometry, rtol, budget=budget)
    return float(found.upper), found.method


def _joined(node: Node, totals: dict[Node, float]) -> float:
    """By how much its sources together may differ; 1 for an input of the network."""
    if not node.sources:
        return 1.0
    found = [_product(_up(factor), totals[source]) for source, factor in node.sources]
    if node.joined == "stack":
        return _root_of_squares(found)
    total, *others = found
    for other in others:
        total = _up(total + other)
    return total


def _product(norm: float, before: float) -> float:
    """Rounded up; infinite if one of them is."""
    if math.isinf(norm) or math.isinf(before):
        return math.inf
    return norm if before == 1 else before if norm == 1 else _up(norm * before)


def _root_of_squares(values: Sequence[float]) -> float:
    """The norm of a vector, rounded up."""
    return _up(math.hypot(*values)) if len(values) > 1 else sum(values)


def _up(value: float) -> float:
    """Rounded up, but for what is exact."""
    exact = value in (0, 1)
    return value if exact else math.nextafter(value * ROUNDED, math.inf)
