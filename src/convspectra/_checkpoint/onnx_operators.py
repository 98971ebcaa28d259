"""What does each of ONNX's operators do to the size of its input?"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from .._network import upward
from .._network.gains import (
    AVERAGED,
    NOT_KNOWN,
    NOT_SO,
    OTHERS,
    QUOTIENT,
    SLOPES,
    Effect,
    NoBound,
    batch_norm,
    by_factors,
    by_quotients,
    exponential,
    kinked,
    largest,
    largest_of_windows,
    log_softmax,
    normalization,
    product,
    reduced,
    repeated,
    slope,
)
from .._network.node import Node
from .onnx_scopes import Scope
from .onnx_tensors import attribute, integer, standard
from .onnx_weights import Stored

SIZE_UNKNOWN = "sizes of its arrays are not known: state those of the input"
FLOATS = (1, 10, 11, 16)  # single, half, double and bfloat16, in TensorProto.DataType
PADS = ("reflect", "edge", "wrap")  # as NumPy has them, too
MOST = 2**20  # entries of an axis, where they are counted one by one
POOLS = "auto_pad ceil_mode dilations kernel_shape pads strides"


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

    def sizes(self, name: str) -> list[int | None]:
        """Those of an array; None for one that is open."""
        stored = self.scope.value(name)
        found = stored.shape if isinstance(stored, Stored) else self.scope.sizes(name)
        if found is None:
            raise NoBound(SIZE_UNKNOWN)
        if isinstance(stored, Stored):
            return list(found)
        return [size or None for size in found]

    def has(self, place: int) -> bool:
        """Whether there is an input of this number."""
        return len(self.node.input) > place and bool(self.node.input[place])

    def constant(self, place: int) -> np.ndarray:
        """The stored array that it reads as its input of this number."""
        if not self.has(place):
            raise NoBound(NOT_SO)
        found = self.scope.value(self.node.input[place])
        if isinstance(found, str):
            raise NoBound(f"one of its constants {found}")
        return np.asarray(found.load(), np.float64)

    def number(self, name: str, default: float) -> float:
        """A number that is an attribute, in single precision as all of them are."""
        found = attribute(self.node, name)
        return float(np.float32(default)) if found is None else found.f

    def text(self, name: str, default: str) -> str:
        """A word that is an attribute."""
        found = attribute(self.node, name)
        return default if found is None else found.s.decode("ascii", "replace")

    def numbers(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """Whole numbers that are an attribute."""
        found = attribute(self.node, name)
        return list(default) if found is None else list(found.ints)

    def numbers_or_input(self, name: str, place: int) -> list[int]:
        """Whole numbers that are an attribute, in later versions an input."""
        if self.has(place):
            return [int(each) for each in self.constant(place).ravel()]
        return self.numbers(name)

    def repeats(self, name: str) -> Fraction:
        """How often an array is repeated to the shape of the others."""
        shapes = [self.sizes(each) for each in (name, *self.node.input)]
        axes, count = max(map(len, shapes)), 1
        for own, *others in zip(*([1] * (axes - len(x)) + x for x in shapes)):
            wider = [other for other in others if other != 1]
            if (own is None and len(wider) > 1) or (own == 1 and None in wider):
                raise NoBound(SIZE_UNKNOWN)
            count *= wider[0] or 1 if own == 1 and wider else 1
        return Fraction(count)


@dataclass(frozen=True, slots=True)
class Rule:
    """What an operator does, and what must hold for that to be known.

    Attributes
    ----------
    effect : function
    since : int
        The first version of ONNX's operators that it is right for.
    attributes : str
        The names of those that it knows of; with another nothing is known.
    sources : collection of int, optional
        Which inputs may depend on that of the network; None for any.
    """

    effect: Callable[[Call], Effect]
    since: int = 1
    attributes: str = ""
    sources: Collection[int] | None = field(default=(0,))


def effect(call: Call, otherwise: str = NOT_KNOWN) -> Effect:
    """The attributes of the `Node` that the first output of a node is.

    `otherwise` is why nothing is known of an operator that has no rule.
    """
    sources = tuple((call.known[name], 1.0) for name in call.sources)
    rule = RULES.get(call.node.op_type) if standard(call.node) else None
    try:
        if rule is None:
            raise NoBound(otherwise)
        stated = {each.name for each in call.node.attribute}
        if call.scope.opset < rule.since or not stated <= set(rule.attributes.split()):
            raise NoBound(NOT_SO)
        if rule.sources is not None:
            check_sources(call, rule.sources)
        return {"sources": sources} | rule.effect(call)
    except NoBound as error:
        return {"sources": sources, "gain": None, "why": str(error)}


def check_sources(call: Call, allowed: Collection[int]) -> None:
    """Refuse a node of which other inputs depend on that of the network."""
    if any(
        name in call.known and place not in allowed
        for place, name in enumerate(call.node.input)
    ):
        raise NoBound(OTHERS)


def _entries_moved(_: Call) -> Effect:
    """Some may be left out; none is repeated."""
    return {"gain": 1.0}


def _dropout(call: Call) -> Effect:
    """Which does nothing but in training."""
    if call.has(2) and call.constant(2).any():
        raise NoBound("it is random")
    return {"gain": 1.0}


def _cast(call: Call) -> Effect:
    if integer(call.node, "to", 0) not in FLOATS:
        raise NoBound("it rounds to whole numbers, and jumps")
    return {"gain": 1.0}


def _slope(call: Call) -> Effect:
    return slope(SLOPES[call.node.op_type.lower()])


def _sigmoid(call: Call) -> Effect:
    return _slope(call) | {"is_sigmoid": True}


def _leaky_relu(call: Call) -> Effect:
    return kinked(call.number("alpha", 0.01))


def _elu(call: Call) -> Effect:
    return exponential(call.number("alpha", 1.0))


def _selu(call: Call) -> Effect:
    alpha = call.number("alpha", 1.67326319217681884765625)
    gamma = call.number("gamma", 1.05070102214813232421875)
    return exponential(alpha, gamma)


def _celu(call: Call) -> Effect:
    """Whose slope below zero is exp(x / alpha)."""
    if not call.number("alpha", 1.0) > 0:
        raise NoBound(NOT_SO)
    return {"gain": 1.0}


def _hard_sigmoid(call: Call) -> Effect:
    return slope(largest(call.number("alpha", 0.2)))


def _prelu(call: Call) -> Effect:
    return kinked(call.constant(1))


def _log_softmax(call: Call) -> Effect:
    sizes = call.sizes(call.node.input[0])
    axis = integer(call.node, "axis", -1)
    if not -len(sizes) <= axis < len(sizes):
        raise NoBound(NOT_SO)
    return log_softmax(_known(sizes[axis]))


def _max_pool(call: Call) -> Effect:
    return largest_of_windows(*_window(call))


def _window(call: Call) -> list[list[int]]:
    """Kernel, stride and dilation of a pool."""
    kernel = call.numbers("kernel_shape")
    ones = [1] * len(kernel)
    return [kernel, *(call.numbers(name, ones) for name in ("strides", "dilations"))]


def _average_pool(call: Call) -> Effect:
    """By Schur's test along each axis: the sums of all weights, one by one."""
    kernel, stride, dilation = _window(call)
    largest_of_windows(kernel, stride, dilation)  # refuses what is no window
    pads = call.numbers("pads", [0] * 2 * len(kernel))
    padded = integer(call.node, "count_include_pad", 0)
    if (
        len(pads) != 2 * len(kernel)
        or call.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        or (padded and integer(call.node, "ceil_mode", 0))
    ):
        raise NoBound(NOT_SO)
    before, after = (
        call.sizes(x)[2:] for x in (call.node.input[0], call.node.output[0])
    )
    square = 1.0
    for n, m, k, s, d, p in zip(before, after, kernel, stride, dilation, pads):
        if _known(m) * k > MOST:
            raise NoBound(NOT_SO)
        read = np.add.outer(s * np.arange(m) - p, d * np.arange(k))  # (windows, taps)
        inside = (read >= 0) & (read < _known(n))
        counts = np.full(m, k) if padded else np.maximum(inside.sum(1), 1)
        weights = inside / counts[:, None]
        columns = np.bincount(read[inside], weights[inside], minlength=1)
        square *= weights.sum(1).max(initial=0.0) * columns.max()
    return {"gain": math.sqrt(square) * AVERAGED, "why": "weights"}


def _global_average(call: Call) -> Effect:
    sizes = [_known(size) for size in call.sizes(call.node.input[0])[2:]]
    return reduced(math.prod(sizes), is_mean=True)


def _reduced(call: Call) -> Effect:
    """The mean or sum over some axes, all of them by default."""
    sizes = call.sizes(call.node.input[0])
    axes = call.numbers_or_input("axes", 1) or list(range(len(sizes)))
    if integer(call.node, "noop_with_empty_axes", 0):
        raise NoBound(NOT_SO)
    if any(not -len(sizes) <= axis < len(sizes) for axis in axes):
        raise NoBound(NOT_SO)
    count = math.prod(_known(sizes[axis]) for axis in {a % len(sizes) for a in axes})
    return reduced(count, is_mean=call.node.op_type == "ReduceMean")


def _pad(call: Call) -> Effect:
    """Constants are beside the input; other pads repeat its entries."""
    mode = call.text("mode", "constant")
    if mode == "constant":
        return {"gain": 1.0}
    pads, sizes = call.numbers_or_input("pads", 1), call.sizes(call.node.input[0])
    odd = len(pads) != 2 * len(sizes) or min(pads, default=-1) < 0
    if mode not in PADS or odd or call.has(3):
        raise NoBound(NOT_SO)
    count = 1
    for size, *ends in zip(sizes, pads, pads[len(sizes) :]):
        if any(ends):
            if _known(size) + sum(ends) > MOST:
                raise NoBound(NOT_SO)
            read: Any = np.pad(np.arange(size), ends, mode)  # type: ignore[call-overload]
            count *= int(np.bincount(read).max())
    return repeated(count)


def _resize(call: Call) -> Effect:
    """To the nearest entry, by whole factors: how often an entry is read."""
    if call.text("mode", "nearest") != "nearest":
        raise NoBound(NOT_SO)
    before, after = (call.sizes(x) for x in (call.node.input[0], call.node.output[0]))
    scales = call.constant(2).ravel().tolist() if call.has(2) else []
    if len(scales) not in (0, len(before)):
        raise NoBound(NOT_SO)
    where = call.text("coordinate_transformation_mode", "half_pixel")
    rounding = call.text("nearest_mode", "round_prefer_floor")
    if where not in ("asymmetric", "half_pixel") or rounding not in ROUNDINGS:
        raise NoBound(NOT_SO)
    count = 1
    for axis, (old, new) in enumerate(zip(before, after)):
        factor, rest = divmod(_known(new), _known(old))
        if rest or (scales and scales[axis] != factor) or _known(new) > MOST:
            raise NoBound(NOT_SO)
        shift = Fraction(0 if where == "asymmetric" else 1 - factor, 2 * factor)
        places = (Fraction(i, factor) + shift for i in range(_known(new)))
        read = [ROUNDINGS[rounding](place) for place in places]
        clipped = np.clip(read, 0, _known(old) - 1)
        count *= int(np.bincount(clipped).max())
    return repeated(count)


def _batch_norm(call: Call) -> Effect:
    trained = integer(call.node, "training_mode", 0) or any(call.node.output[1:])
    if trained or not integer(call.node, "spatial", 1):
        raise NoBound("it takes statistics of the batch, which have no bound")
    gamma, variance = call.constant(1), call.constant(4)
    factors = batch_norm(gamma, variance, call.number("epsilon", 1e-5))
    return {"gain": factors, "axis": 1}


def _normalization(call: Call) -> Effect:
    """By statistics of the input itself."""
    return normalization(call.constant(1), call.number("epsilon", 1e-5))


def _sum(call: Call) -> Effect:
    sources = ((x, upward.root(call.repeats(x))) for x in call.sources)
    return {"sources": tuple((call.known[x], factor) for x, factor in sources)}


def _larger(call: Call) -> Effect:
    return _sum(call) | {"joined": "stack"}


def _beside_each_other(_: Call) -> Effect:
    return {"joined": "stack"}


def _multiplied(call: Call) -> Effect:
    if len(call.sources) > 1:
        return product(*(call.known[name] for name in call.sources))
    is_first = call.node.input[0] in call.known
    (name,) = call.sources
    factors = call.constant(1 if is_first else 0)
    return by_factors(factors, len(call.sizes(name)), call.repeats(name))


def _divided(call: Call) -> Effect:
    if call.node.input[1] in call.known:
        raise NoBound(QUOTIENT)
    (name,) = call.sources
    return by_quotients(call.constant(1), len(call.sizes(name)), call.repeats(name))


def _known(size: int | None) -> int:
    if size is None:
        raise NoBound(SIZE_UNKNOWN)
    return size


ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda place: math.ceil(place - Fraction(1, 2)),
    "round_prefer_ceil": lambda place: math.floor(place + Fraction(1, 2)),
}
MOVED = """
    DepthToSpace Flatten GlobalMaxPool Identity ReduceMax ReduceMin Reshape Slice
    SpaceToDepth Split Squeeze Transpose Unsqueeze
"""
MOVING = """
    allowzero axes axis blocksize ends keepdims mode noop_with_empty_axes num_outputs
    perm shape split starts
"""
SLOPED = """
    Abs Atan Clip Cos Erf Gelu HardSwish Mish Neg Relu Sin Softmax Softplus Softsign
    Tanh
"""
# By the names of ONNX's operators. What is not here is unknown.
RULES: dict[str, Rule] = {
    **dict.fromkeys(MOVED.split(), Rule(_entries_moved, attributes=MOVING)),
    **dict.fromkeys(SLOPED.split(), Rule(_slope, 6, "approximate axis max min")),
    "Add": Rule(_sum, 7, sources=None),
    "AveragePool": Rule(_average_pool, 1, f"{POOLS} count_include_pad"),
    "BatchNormalization": Rule(
        _batch_norm, 7, "epsilon momentum spatial training_mode"
    ),
    "Cast": Rule(_cast, 6, "to saturate"),
    "Celu": Rule(_celu, 12, "alpha"),
    "Concat": Rule(_beside_each_other, 4, "axis", sources=None),
    "Div": Rule(_divided, 7, sources=None),
    "Dropout": Rule(_dropout, 7, "ratio seed"),
    "Elu": Rule(_elu, 6, "alpha"),
    "GlobalAveragePool": Rule(_global_average),
    "GroupNormalization": Rule(_normalization, 18, "epsilon num_groups stash_type"),
    "HardSigmoid": Rule(_hard_sigmoid, 6, "alpha beta"),
    "InstanceNormalization": Rule(_normalization, 6, "epsilon"),
    "LayerNormalization": Rule(_normalization, 17, "axis epsilon stash_type"),
    "LeakyRelu": Rule(_leaky_relu, 6, "alpha"),
    "LogSoftmax": Rule(_log_softmax, 13, "axis"),
    "Max": Rule(_larger, 8, sources=None),
    "MaxPool": Rule(_max_pool, 1, f"{POOLS} storage_order"),
    "Min": Rule(_larger, 8, sources=None),
    "Mul": Rule(_multiplied, 7, sources=None),
    "PRelu": Rule(_prelu, 7),
    "Pad": Rule(_pad, 2, "mode pads value"),
    "ReduceMean": Rule(_reduced, 1, "axes keepdims noop_with_empty_axes"),
    "ReduceSum": Rule(_reduced, 1, "axes keepdims noop_with_empty_axes"),
    "Resize": Rule(
        _resize,
        11,
        "coordinate_transformation_mode cubic_coeff_a mode nearest_mode",
    ),
    "Selu": Rule(_selu, 6, "alpha gamma"),
    "Sigmoid": Rule(_sigmoid, 6),
    "Sub": Rule(_sum, 7, sources=None),
    "Sum": Rule(_sum, 8, sources=None),
}
