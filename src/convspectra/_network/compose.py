"""Bound the Lipschitz constant of a network by those of its operations."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from .._arrays.array import to_numpy
from .._base import fraction, positive
from .._layer.geometry import Geometry
from .._layer.layer import Layer, scale_outputs
from .._norm.operator_norm import operator_norm
from . import upward
from .bounds import LipschitzBounds, LipschitzPart
from .gains import NOT_FINITE
from .node import Node

COMPOSED = "composition of its parts"
OVERFLOW = "the bound of all up to it exceeds 1e308"
UNIT = 2.0**-53  # of rounding
FACTORS = 1 + 8 * UNIT  # covers the rounding of the factors of a BatchNorm
# Kernels whose largest entry is below lose digits when they are multiplied.
SMALL = 1e-200
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
    rtol = fraction("rtol", rtol)
    budget = None if budget is None else positive("budget", budget)
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
        totals[node] = upward.product(norm, _joined(first, totals))
        if math.isinf(norm):
            unknown[name] = method
        elif math.isinf(totals[node]) and not unknown:
            unknown[name] = OVERFLOW
        if norm == 1 and first.layer is None:
            norm, method = None, first.joined
        if norm is not None or len(first.sources) > 1:
            operator = first.operator
            part = LipschitzPart(name, operator, norm, totals[node], method)
            parts.append(part)
    upper = upward.root_of_squares(totals[node] for node in outputs)
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


def _joined(node: Node, totals: dict[Node, float]) -> float:
    """By how much its sources together may differ; 1 for an input of the network."""
    if not node.sources:
        return 1.0
    found = [upward.product(factor, totals[source]) for source, factor in node.sources]
    join = upward.total if node.joined == "sum" else upward.root_of_squares
    return join(found)


def _norm(
    node: Node, before: Node | None, rtol: float, budget: float | None
) -> tuple[float, str]:
    """The Lipschitz constant of a node, after the layer that it is folded into.

    And how it is known; infinite if it is not, and why.
    """
    norm, method = node.gain, node.why
    first = before or node
    try:
        if first.layer is not None:
            factors = norm if isinstance(norm, np.ndarray) else None
            scale = first.gain if isinstance(first.gain, float) else 1.0
            norm, method = _layer_norm(first.layer(), factors, rtol, budget)
            norm = upward.product(norm, scale)
        elif isinstance(norm, np.ndarray):
            norm, method = _largest(norm), "largest factor"
    except (ValueError, TypeError, ArithmeticError) as error:
        norm, method = None, str(error).rstrip(".")  # what is wrong with the layer
    if norm is None:
        return math.inf, method
    return (norm, method) if 0 <= norm < math.inf else (math.inf, NOT_FINITE)


def _layer_norm(
    layer: Layer, factors: np.ndarray | None, rtol: float, budget: float | None
) -> tuple[float, str]:
    """The norm of a layer whose output channels are multiplied by factors."""
    weight, geometry = to_numpy(layer.weight), _bounded(layer)
    rounded = 1.0
    if factors is not None:
        scaled = scale_outputs(np.asarray(weight, np.float64), factors, geometry)
        if np.abs(scaled).max(initial=0.0) < SMALL:
            norm, method = _layer_norm(layer, None, rtol, budget)
            return upward.product(norm, _largest(factors)), method
        # Every tap is a block of the layer's matrix. So entries that are each off by a
        # unit change the norm by at most taps * sqrt(channels) units of it.
        lost = np.prod(weight.shape[2:]) * math.sqrt(max(weight.shape[:2]))
        weight, rounded = scaled, FACTORS * (1 + 2 * UNIT * float(lost))
    found = operator_norm(weight, geometry, rtol, budget=budget)
    return upward.product(float(found.upper), rounded), found.method


def _largest(factors: np.ndarray) -> float:
    return upward.product(float(np.abs(factors).max(initial=0.0)), FACTORS)


def _bounded(layer: Layer) -> Geometry:
    """The geometry of a layer; of every input size, where its own is huge."""
    grid = layer.geometry.grid
    if isinstance(grid, tuple) and math.prod(grid) * len(layer.weight) > LARGE:
        return replace(layer.geometry, grid=None)
    return layer.geometry
