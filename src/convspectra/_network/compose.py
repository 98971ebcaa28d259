"""Bound the Lipschitz constant of a network by those of its operations."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from .._arrays.host import detach_to_numpy
from .._layer.layer import Layer, scale_outputs
from .._norm.operator_norm import operator_norm
from .bounds import LipschitzBounds, LipschitzPart
from .node import Node

COMPOSED = "composition of its parts"
# Covers the rounding of a sum, product, root or `hypot` in double precision.
ROUNDED = 1 + 2.0**-50
# Factors of channels that are rounded multiply the norm by 1 + 2^-51 at most. Entries
# of their products with a kernel that are each off by 2^-53 of themselves change the
# norm by 2^-53 * sqrt(rank) of it at most, rank < 8e7.
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
    folded = _folded(kept, outputs)
    totals: dict[Node, float] = {}
    parts: list[LipschitzPart] = []
    unknown: dict[str, str] = {}
    absorbed = set(folded.values())
    for node in watch([node for node in kept if node not in absorbed]):
        first = folded.get(node, node)
        before = _joined(first, totals)
        try:
            norm, method = _norm(node, folded.get(node), rtol, budget)
        except (ValueError, TypeError) as error:
            norm, method = None, str(error).rstrip(".")
        totals[node] = _product(math.inf if norm is None else norm, before)
        name = node.name if first is node else f"{first.name}+{node.name}"
        if norm is None:
            unknown[name] = method
        is_join = norm == 1
        if not is_join or len(first.sources) > 1:
            shown, how = (None, first.joined) if is_join else (norm, method)
            part = LipschitzPart(name, first.operator, shown, totals[node], how)
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
    return {
        node: node.sources[0][0]
        for node in nodes
        if isinstance(node.gain, np.ndarray)
        and isinstance(node.sources[0][0].gain, Layer)
        and readers[node.sources[0][0]] == 1
        and node.axis == node.sources[0][0].axis
    }


def _joined(node: Node, totals: dict[Node, float]) -> float:
    """By how much its sources together may differ; 1 for an input of the network."""
    if not node.sources:
        return 1.0
    found = [_product(factor, totals[source]) for source, factor in node.sources]
    if node.joined == "stack":
        return _root_of_squares(found)
    total, *others = found
    for other in others:
        total = _up(total + other)
    return total


def _norm(
    node: Node, layer: Node | None, rtol: float, budget: float | None
) -> tuple[float | None, str]:
    """The Lipschitz constant of a node, after the layer that it is folded into."""
    if layer is not None:
        assert isinstance(layer.gain, Layer)
        weight = np.asarray(detach_to_numpy(layer.gain.weight), np.float64)
        weight = scale_outputs(weight, np.asarray(node.gain), layer.gain.geometry)
        norm, method = _layer_norm(weight, layer.gain, rtol, budget)
        return norm * FOLDED, method
    if isinstance(node.gain, Layer):
        return _layer_norm(detach_to_numpy(node.gain.weight), node.gain, rtol, budget)
    if isinstance(node.gain, np.ndarray):
        return float(np.abs(node.gain).max(initial=0.0)), "largest factor"
    return node.gain, node.why


def _layer_norm(
    weight: np.ndarray, layer: Layer, rtol: float, budget: float | None
) -> tuple[float, str]:
    geometry, grid = layer.geometry, layer.geometry.grid
    if isinstance(grid, tuple) and math.prod(grid) * len(weight) > LARGE:
        geometry = replace(geometry, grid=None)
    found = operator_norm(weight, geometry, rtol, budget=budget)
    return float(found.upper), found.method


def _product(norm: float, before: float) -> float:
    """Rounded up. What is multiplied by zero is constant, whatever came before."""
    if norm == 0 or before == 0:
        return 0.0
    return norm if before == 1 else before if norm == 1 else _up(norm * before)


def _root_of_squares(values: Sequence[float]) -> float:
    """The norm of a vector, rounded up."""
    if len(values) == 1:
        return values[0]
    return _up(math.hypot(*values))


def _up(value: float) -> float:
    return math.nextafter(value * ROUNDED, math.inf)
