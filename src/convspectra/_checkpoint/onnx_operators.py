"""What does each of ONNX's operators do to the size of its input?"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._network.node import Node
from .._network.slopes import (
    NOT_FINITE,
    NOT_KNOWN,
    PRODUCT,
    QUOTIENT,
    SLOPES,
    NoBound,
    largest_of_windows,
    log_softmax,
    normalization,
    product,
)
from .onnx_scopes import Scope
from .onnx_tensors import attribute, integer, standard
from .onnx_weights import Stored

MOVED = """
    DepthToSpace Dropout Flatten GlobalMaxPool Identity ReduceMax ReduceMin Reshape
    Slice SpaceToDepth Split Squeeze Transpose Unsqueeze
"""
SLOPED = """
    Abs Atan Celu Clip Cos Erf Gelu HardSwish Mish Neg Relu Sigmoid Sin Softmax Softplus
    Softsign Tanh
"""
SIZE_UNKNOWN = "sizes of its arrays are not known"
AVERAGED = 1 + 1e-9  # covers the rounding of sums of a million numbers
PADS = ("reflect", "edge", "wrap")  # as NumPy has them, too
MOST = 2**24  # entries of an axis with its pads, which are counted one by one
Effect = dict[str, Any]  # attributes of a `Node`


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One node of the graph, and the arrays that depend on the network's input."""

    node: Any
    scope: Scope
    known: Mapping[str, Node]

    @property
    def sources(self) -> list[str]:
        """The names of what it reads and what depends on the input."""
        return [name for name in self.node.input if name in self.known]

    def only(self) -> str:
        """The name of the first array that it reads, if no other is a source."""
        if len(self.sources) > 1 or self.node.input[0] not in self.known:
            raise NoBound(PRODUCT)
        return self.node.input[0]

    def sizes(self, name: str) -> list[int]:
        """Those of an array; 0 for one that is open."""
        stored = self.scope.value(name)
        found = stored.shape if isinstance(stored, Stored) else self.scope.sizes(name)
        if found is None:
            raise NoBound(SIZE_UNKNOWN)
        return list(found)

    def constant(self, place: int) -> np.ndarray:
        """The stored array that it reads as its input of this number."""
        found = self.scope.value(self.node.input[place])
        if isinstance(found, str):
            raise NoBound(f"one of its constants {found}")
        return np.asarray(found.load(), np.float64)

    def number(self, name: str, default: float) -> float:
        """A number that is an attribute."""
        found = attribute(self.node, name)
        return default if found is None else found.f

    def whole_numbers(self, name: str, place: int | None, default: Any) -> list[int]:
        """What is an attribute, or in later versions an input."""
        found = attribute(self.node, name)
        if found is not None:
            return list(found.ints)
        inputs = self.node.input
        if place is not None and len(inputs) > place and inputs[place]:
            return [int(each) for each in self.constant(place).ravel()]
        return list(default)

    def repeated(self, name: str) -> float:
        """By how much an array grows that is repeated to the shape of the others."""
        shapes = [self.sizes(each) for each in self.node.input]
        axes = max(map(len, shapes))
        shapes = [[1] * (axes - len(shape)) + shape for shape in shapes]
        own = [1] * (axes - len(self.sizes(name))) + self.sizes(name)
        count = 1
        for size, *others in zip(own, *shapes):
            if size == 1 and 0 in others:
                raise NoBound(SIZE_UNKNOWN)
            count *= max(others) if size == 1 else 1
        return math.sqrt(count)


Rule = Callable[[Call], Effect]


def effect(call: Call, otherwise: str = NOT_KNOWN) -> Effect:
    """The attributes of the `Node` that a node of the graph is.

    `otherwise` is why nothing is known of an operator that has no rule.
    """
    sources = tuple((call.known[name], 1.0) for name in call.sources)
    rule = RULES.get(call.node.op_type) if standard(call.node) else None
    try:
        if rule is None:
            raise NoBound(otherwise)
        return {"sources": sources} | rule(call)
    except NoBound as error:
        return {"sources": sources, "gain": None, "why": str(error)}


def _entries_moved(call: Call) -> Effect:
    """Some may be left out; none is repeated."""
    call.only()
    return {"gain": 1.0}


def _slope(call: Call) -> Effect:
    call.only()
    return {"gain": SLOPES[call.node.op_type.lower()], "why": "slope"}


def _sloped(default: float) -> Rule:
    """Below zero by `alpha`, above by 1."""

    def rule(call: Call) -> Effect:
        call.only()
        return {"gain": max(1.0, abs(call.number("alpha", default))), "why": "slope"}

    return rule


def _selu(call: Call) -> Effect:
    call.only()
    alpha = abs(call.number("alpha", 1.6732633))
    return {
        "gain": abs(call.number("gamma", 1.0507010)) * max(1.0, alpha),
        "why": "slope",
    }


def _hard_sigmoid(call: Call) -> Effect:
    call.only()
    return {"gain": abs(call.number("alpha", 0.2)), "why": "slope"}


def _prelu(call: Call) -> Effect:
    call.only()
    return {"gain": max(1.0, _largest(call.constant(1))), "why": "slope"}


def _log_softmax(call: Call) -> Effect:
    sizes = call.sizes(call.only())
    length = sizes[integer(call.node, "axis", -1)]
    return {"gain": log_softmax(_known(length)), "why": "slope"}


def _max_pool(call: Call) -> Effect:
    call.only()
    kernel = call.whole_numbers("kernel_shape", None, ())
    ones = [1] * len(kernel)
    stride = call.whole_numbers("strides", None, ones)
    dilation = call.whole_numbers("dilations", None, ones)
    if not kernel or min(*stride, *dilation) < 1:
        raise NoBound(NOT_KNOWN)
    return {"gain": largest_of_windows(kernel, stride, dilation), "why": "windows"}


def _average_pool(call: Call) -> Effect:
    """By Schur's test: the weights in a window add up to at most 1.

    Those of an entry, to at most the number of windows that contain it, over the
    smallest number of entries in a window.
    """
    call.only()
    kernel = call.whole_numbers("kernel_shape", None, ())
    ones = [1] * len(kernel)
    stride = call.whole_numbers("strides", None, ones)
    dilation = call.whole_numbers("dilations", None, ones)
    if not kernel or min(*stride, *dilation) < 1:
        raise NoBound(NOT_KNOWN)
    overlap = largest_of_windows(kernel, stride, dilation)
    inside = kernel
    if not integer(call.node, "count_include_pad", 0):
        pads = call.whole_numbers("pads", None, [0] * 2 * len(kernel))
        outside = map(max, pads[: len(kernel)], pads[len(kernel) :])
        inside = [max(1, k - p) for k, p in zip(kernel, outside)]
        inside = ones if max(dilation) > 1 and any(pads) else inside
    if integer(call.node, "ceil_mode", 0) or attribute(call.node, "auto_pad"):
        inside = ones
    gain = overlap / math.sqrt(math.prod(inside)) * AVERAGED
    return {"gain": gain, "why": "weights"}


def _global_average(call: Call) -> Effect:
    sizes = call.sizes(call.only())[2:]
    return {"gain": 1 / math.sqrt(_known(math.prod(sizes))), "why": "weights"}


def _reduced(weight: Callable[[int], float]) -> Rule:
    """A sum over some axes, with a weight that depends on their number of entries."""

    def rule(call: Call) -> Effect:
        sizes = call.sizes(call.only())
        axes = call.whole_numbers("axes", 1, range(len(sizes)))
        count = _known(math.prod(sizes[axis] for axis in axes))
        return {"gain": weight(count) * math.sqrt(count), "why": "weights"}

    return rule


def _pad(call: Call) -> Effect:
    """Constants are beside the input; other pads repeat its entries."""
    sizes, mode = call.sizes(call.only()), attribute(call.node, "mode")
    kind = "constant" if mode is None else mode.s.decode("ascii", "replace")
    if kind == "constant":
        return {"gain": 1.0}
    pads = call.whole_numbers("pads", 1, ())
    if kind not in PADS or len(pads) != 2 * len(sizes):  # of some axes only
        raise NoBound(NOT_KNOWN)
    count = 1
    for size, *ends in zip(sizes, pads, pads[len(sizes) :]):
        ends = [max(end, 0) for end in ends]
        if any(ends):
            if not 0 < size + sum(ends) <= MOST:
                raise NoBound(SIZE_UNKNOWN)
            read = np.pad(np.arange(size), ends, kind)
            count *= int(np.bincount(read).max())
    return {"gain": math.sqrt(count), "why": "repeats"}


def _resize(call: Call) -> Effect:
    """To the nearest entry: how often an entry is repeated at most."""
    mode = attribute(call.node, "mode")
    if mode is not None and mode.s != b"nearest":
        raise NoBound(f"its mode {mode.s.decode('ascii', 'replace')!r} is not known")
    before, after = call.sizes(call.only()), call.sizes(call.node.output[0])
    counts = [
        1 if old == new else new // _known(old) + bool(new % old)
        for old, new in zip(before, after)
    ]
    if any(new % old for old, new in zip(before, after) if old != new):
        counts = [count + 1 for count in counts]  # where rounding may go either way
    return {"gain": math.sqrt(math.prod(counts)), "why": "repeats"}


def _batch_norm(call: Call) -> Effect:
    call.only()
    if integer(call.node, "training_mode", 0):
        raise NoBound("it takes statistics of the batch, which have no bound")
    gamma, variance = call.constant(1), call.constant(4)
    with np.errstate(all="ignore"):
        factors = gamma / np.sqrt(variance + call.number("epsilon", 1e-5))
    if not np.isfinite(factors).all():
        raise NoBound(NOT_FINITE)
    return {"gain": factors, "axis": 1}


def _normalization(call: Call) -> Effect:
    """By statistics of the input itself."""
    call.only()
    gain = normalization(_largest(call.constant(1)), call.number("epsilon", 1e-5))
    return {"gain": gain, "why": "1 / sqrt(eps)"}


def _sum(call: Call) -> Effect:
    sources = [(call.known[name], call.repeated(name)) for name in call.sources]
    return {"sources": tuple(sources)}


def _larger(call: Call) -> Effect:
    return _sum(call) | {"joined": "stack"}


def _beside_each_other(_: Call) -> Effect:
    return {"joined": "stack"}


def _multiplied(call: Call) -> Effect:
    if len(call.sources) > 1:
        return product(*(call.known[name] for name in call.sources))
    first = call.node.input[0] in call.known
    return _by_factors(call, call.constant(1 if first else 0))


def _divided(call: Call) -> Effect:
    if call.node.input[1] in call.known:
        raise NoBound(QUOTIENT)
    with np.errstate(divide="ignore"):
        return _by_factors(call, 1 / call.constant(1))


def _by_factors(call: Call, factors: np.ndarray) -> Effect:
    (name,) = call.sources
    if not np.isfinite(factors).all():
        raise NoBound(NOT_FINITE)
    axes = [i for i, size in enumerate(factors.shape) if size > 1]
    repeated = call.repeated(name)
    if len(axes) == 1 and repeated == 1:
        axis = axes[0] + len(call.sizes(name)) - factors.ndim
        return {"gain": factors.ravel(), "axis": axis}
    return {"gain": _largest(factors) * repeated, "why": "factor"}


def _largest(factors: np.ndarray) -> float:
    return float(np.abs(factors).max(initial=0.0))


def _known(size: int) -> int:
    if size < 1:
        raise NoBound(SIZE_UNKNOWN)
    return size


# By the names of ONNX's operators. What is not here is unknown.
RULES: dict[str, Rule] = {
    **dict.fromkeys(MOVED.split(), _entries_moved),
    **dict.fromkeys(SLOPED.split(), _slope),
    "Add": _sum,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Concat": _beside_each_other,
    "Div": _divided,
    "Elu": _sloped(1.0),
    "GlobalAveragePool": _global_average,
    "GroupNormalization": _normalization,
    "HardSigmoid": _hard_sigmoid,
    "InstanceNormalization": _normalization,
    "LayerNormalization": _normalization,
    "LeakyRelu": _sloped(0.01),
    "LogSoftmax": _log_softmax,
    "Max": _larger,
    "MaxPool": _max_pool,
    "Min": _larger,
    "Mul": _multiplied,
    "PRelu": _prelu,
    "Pad": _pad,
    "ReduceMean": _reduced(lambda count: 1 / count),
    "ReduceSum": _reduced(lambda _: 1.0),
    "Resize": _resize,
    "Selu": _selu,
    "Sub": _sum,
    "Sum": _sum,
}
