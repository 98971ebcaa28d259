"""What does each operator of an exported model do to the size of its input?"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from .._layer.geometry import Geometry
from .._layer.layer import Layer
from .._network import upward
from .._network.gains import (
    AVERAGED,
    NOT_KNOWN,
    NOT_SO,
    OTHERS,
    PRODUCT,
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
from ._calls import each, geometry_of_call
from ._modules import as_kernel


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An array that depends on the network's input."""

    node: Node
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of an operator.

    Attributes
    ----------
    operator : str
        With its overload, such as "aten.add.Tensor".
    given : mapping
        Its arguments by name, with a `Value` for what depends on the network's input.
    shape : tuple of int
        Of the result.
    run : callable
        Calls the operator with other arguments.
    """

    operator: str
    given: Mapping[str, Any]
    shape: tuple[int, ...]
    run: Callable[[Mapping[str, Any]], Any]

    @property
    def values(self) -> list[Value]:
        """The arguments that depend on the input, those of lists one by one."""
        found: list[Any] = []
        for argument in self.given.values():
            found += argument if isinstance(argument, (list, tuple)) else [argument]
        return [value for value in found if isinstance(value, Value)]

    @property
    def sources(self) -> tuple[tuple[Node, float], ...]:
        """The nodes that give them."""
        return tuple((value.node, 1.0) for value in self.values)

    def only(self) -> Value:
        """The first argument, if no other depends on the input."""
        first = next(iter(self.given.values()))
        if len(self.values) > 1 or not isinstance(first, Value):
            raise NoBound(OTHERS)
        return first

    def repeats(self, value: Value) -> Fraction:
        """How often an array is repeated to the shape of the result."""
        size = math.prod(value.shape)
        return Fraction(math.prod(self.shape), size) if size else Fraction(0)


Rule = Callable[[Call], Effect]


def effect(call: Call) -> Effect:
    """The attributes of the node that a call is."""
    sources = call.sources
    rule = RULES.get(call.operator)
    try:
        if rule is None:
            raise NoBound(NOT_KNOWN)
        return {"sources": sources} | rule(call)
    except NoBound as error:
        why = str(error)
    except (ValueError, TypeError):  # what is no number depends on the input, too
        why = NOT_SO
    return {"sources": sources, "gain": None, "why": why}


def _constant(call: Call) -> Effect:
    """Of which only the sizes follow from the array that it reads."""
    call.only()
    return {"gain": 0.0}


def _entries_moved(call: Call) -> Effect:
    """Some may be left out; none is repeated."""
    call.only()
    return {"gain": 1.0}


def _padded(call: Call) -> Effect:
    """By constants beside the input, or by its own entries."""
    mode, pads = call.given["mode"], call.given["pad"]
    is_constant = mode == "constant"
    found = _entries_moved(call) if is_constant else _entries_repeated(call)
    if min(pads, default=0) < 0:  # which leaves entries out
        return found
    pairs = tuple(zip(pads[::2], pads[1::2]))[::-1]  # PyTorch has the last axis first
    return found | {"padded": ("zeros" if is_constant else mode, pairs)}


def _entries_repeated(call: Call) -> Effect:
    rows, columns = _sums(call)
    return repeated(Fraction(rows) * Fraction(columns))


def _averaged(call: Call) -> Effect:
    if call.given.get("divisor_override") is not None:
        raise NoBound(NOT_SO)
    rows, columns = _sums(call)
    return {"gain": math.sqrt(rows * columns) * AVERAGED, "why": "weights"}


def _reduced(call: Call) -> Effect:
    value, size = call.only(), math.prod(call.shape)
    count = math.prod(value.shape) // size if size else 0
    return reduced(count, is_mean="mean" in call.operator)


def _sums(call: Call) -> tuple[float, float]:
    """The largest sum of a row and of a column of weights, of which none is negative.

    The norm of a linear map is at most the root of their product (Schur).
    """
    value = call.only()
    name = next(iter(call.given))
    ones = torch.ones(value.shape, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        rows = call.run({**call.given, name: ones})
        (columns,) = torch.autograd.grad(rows, ones, torch.ones_like(rows))
    if not rows.numel() or not columns.numel():
        return 0.0, 0.0
    return float(rows.detach().max()), float(columns.max())


def _slope(name: str) -> Rule:
    def rule(call: Call) -> Effect:
        call.only()
        return slope(SLOPES[name.replace("_", "")])

    return rule


def _sigmoid(call: Call) -> Effect:
    return _slope("sigmoid")(call) | {"is_sigmoid": True}


def _softplus(call: Call) -> Effect:
    """Which is x beyond a threshold, where it jumps by less than 2.1e-9 / beta at 20.

    That is rounding in single precision, and left out as all rounding is.
    """
    call.only()
    if not call.given["beta"] > 0 or not call.given["threshold"] >= 20:
        raise NoBound(NOT_SO)
    return {"gain": 1.0}


def _leaky_relu(call: Call) -> Effect:
    call.only()
    return kinked(call.given["negative_slope"])


def _prelu(call: Call) -> Effect:
    call.only()
    return kinked(call.given["weight"].cpu())


def _elu(call: Call) -> Effect:
    call.only()
    parts = (float(call.given[name]) for name in ("alpha", "scale", "input_scale"))
    return exponential(*parts)


def _celu(call: Call) -> Effect:
    """Whose slope below zero is exp(x / alpha)."""
    call.only()
    if not call.given["alpha"] > 0:
        raise NoBound(NOT_SO)
    return {"gain": 1.0}


def _log_softmax(call: Call) -> Effect:
    value = call.only()
    return log_softmax(value.shape[call.given["dim"]] if value.shape else 1)


def _largest(call: Call) -> Effect:
    """Of sets without a common entry."""
    call.only()
    return {"gain": 1.0}


def _euclidean(call: Call) -> Effect:
    call.only()
    if call.given["ord"] != 2:
        raise NoBound(NOT_SO)
    return {"gain": 1.0}


def _max_pool(axes: int) -> Rule:
    def rule(call: Call) -> Effect:
        call.only()
        names = ("kernel_size", "dilation")
        kernel, dilation = (each(call.given[name], axes) for name in names)
        stride = each(call.given["stride"] or kernel, axes)
        return largest_of_windows(kernel, stride, dilation)

    return rule


def _convolution(call: Call) -> Effect:
    value, weight = call.only(), call.given["weight"]
    axes = weight.ndim - 2
    transposed = "output_padding" in call.given
    geometry = geometry_of_call(call.given, value.shape[-axes:], transposed)
    axis, joined = len(value.shape) - axes - 1, _with_pad_before(value, geometry)
    if joined is None:
        return _layer(weight, geometry, axis)
    return _layer(weight, joined, axis) | {"sources": value.node.sources}


def _with_pad_before(value: Value, geometry: Geometry) -> Geometry | None:
    """That of a convolution and the pad which it reads, if there is one of both."""
    if value.node.padded is None or geometry.transposed:
        return None
    boundary, pairs = value.node.padded
    if geometry.padding != ((0, 0),) * len(pairs):
        return None
    sides = zip(value.shape[-len(pairs) :], pairs)
    grid = tuple(size - before - after for size, (before, after) in sides)
    return replace(geometry, grid=grid, padding=pairs, boundary=boundary)


def _linear(call: Call) -> Effect:
    value = call.only()
    return _matrix(call.given["weight"], len(value.shape) - 1)


def _product_with_matrix(first: str, second: str) -> Rule:
    """Of rows with a matrix, or of a matrix with columns; perhaps added to a bias."""

    def rule(call: Call) -> Effect:
        a, b = call.given[first], call.given[second]
        if isinstance(a, Value) and isinstance(b, Value):
            raise NoBound(PRODUCT)
        value, matrix = (a, b) if isinstance(a, Value) else (b, a)
        if len(call.values) > 1 or not isinstance(value, Value):
            raise NoBound(OTHERS)
        if matrix.ndim != 2 or len(value.shape) < 2:
            raise NoBound(NOT_SO)
        axis = len(value.shape) - (1 if value is a else 2)
        gain = largest(call.given.get("alpha", 1))
        return _matrix(matrix.mT if value is a else matrix, axis) | {"gain": gain}

    return rule


def _matrix(weight: Tensor, axis: int) -> Effect:
    if weight.ndim != 2:
        raise NoBound(NOT_SO)
    geometry = Geometry(grid=(1,), padding="valid", boundary="zeros")
    return _layer(as_kernel(weight), geometry, axis)


def _layer(weight: Tensor, geometry: Geometry, axis: int) -> Effect:
    single = weight.float()  # which is faster, where it is as good
    exact = single if torch.equal(single.double(), weight) else weight
    return {"layer": lambda: Layer("", exact, geometry), "axis": axis}


def _batch_norm(call: Call) -> Effect:
    call.only()
    given = call.given
    variance, gamma = given["running_var"], given["weight"]
    gamma = torch.ones_like(variance) if gamma is None else gamma
    factors = batch_norm(gamma.cpu(), variance.cpu(), given["eps"])
    return {"gain": factors, "axis": 1}


def _normalization(call: Call) -> Effect:
    """By statistics of the input itself."""
    call.only()
    given = call.given
    if given.get("use_input_stats") is False:
        raise NoBound(NOT_SO)
    factors = 1.0 if given["weight"] is None else given["weight"].cpu()
    return normalization(factors, given["eps"])


def _sum(scaled: str) -> Rule:
    """Of two arrays, or of one and a constant; `alpha` multiplies one of them."""

    def rule(call: Call) -> Effect:
        scales = {"self": Fraction(1), "other": Fraction(1)}
        scales[scaled] = Fraction(largest(call.given.get("alpha", 1)))
        return {
            "sources": tuple(
                (value.node, upward.root(scale**2 * call.repeats(value)))
                for name, scale in scales.items()
                if isinstance(value := call.given[name], Value)
            )
        }

    return rule


def _multiplied(call: Call) -> Effect:
    value, other = call.given["self"], call.given["other"]
    if not isinstance(value, Value):
        value, other = other, value
    if isinstance(other, Value):
        return product(value.node, other.node)
    factors = torch.as_tensor(other, dtype=torch.float64).cpu()
    return by_factors(factors, len(value.shape), call.repeats(value))


def _divided(call: Call) -> Effect:
    value, other = call.given["self"], call.given["other"]
    if not isinstance(value, Value) or isinstance(other, Value):
        raise NoBound(QUOTIENT)
    divisors = torch.as_tensor(other, dtype=torch.float64).cpu()
    return by_quotients(divisors, len(value.shape), call.repeats(value))


def _beside_each_other(_: Call) -> Effect:
    return {"joined": "stack"}


def _larger_of_two(call: Call) -> Effect:
    sources = ((value.node, upward.root(call.repeats(value))) for value in call.values)
    return {"sources": tuple(sources), "joined": "stack"}


SLOPED = """
    abs atan clamp clamp_max clamp_min cos erf gelu hardsigmoid hardswish hardtanh
    log_sigmoid mish neg relu relu6 selu silu sin tanh
"""
MOVED = """
    _to_copy.default _unsafe_view.default alias.default channel_shuffle.default
    clone.default detach.default flip.default permute.default pixel_shuffle.default
    pixel_unshuffle.default roll.default select.int slice.Tensor split.Tensor
    split_with_sizes.default squeeze.default squeeze.dim squeeze.dims t.default
    transpose.int unbind.int unsqueeze.default view.default
"""
REPEATED = """
    cumsum.default expand.default repeat.default tile.default
    upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec
"""
AVERAGES = """
    adaptive_avg_pool1d.default adaptive_avg_pool2d.default adaptive_avg_pool3d.default
    avg_pool1d.default avg_pool2d.default avg_pool3d.default
    upsample_bilinear2d.vec upsample_linear1d.vec upsample_trilinear3d.vec
"""
CONVOLUTIONS = """
    conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default
    conv3d.padding conv_transpose1d.default conv_transpose2d.input
    conv_transpose3d.input
"""
LARGEST = """
    amax.default amin.default logsumexp.default max.default max.dim min.default min.dim
"""
# By the overloads of PyTorch's operators. What is not here is unknown.
RULES: dict[str, Rule] = {
    "getitem": _entries_moved,
    **{
        f"aten.{name}": rule
        for names, rule in (
            (MOVED, _entries_moved),
            (REPEATED, _entries_repeated),
            (AVERAGES, _averaged),
            (CONVOLUTIONS, _convolution),
            (LARGEST, _largest),
            ("full_like.default ones_like.default zeros_like.default", _constant),
            ("new_full.default new_ones.default new_zeros.default", _constant),
            ("pad.default", _padded),
            ("mean.default mean.dim sum.default sum.dim_IntList", _reduced),
            ("softmax.int", _slope("softmax")),
            ("log_softmax.int", _log_softmax),
            ("sigmoid.default", _sigmoid),
            ("softplus.default", _softplus),
            ("celu.default", _celu),
            ("elu.default", _elu),
            ("leaky_relu.default", _leaky_relu),
            ("prelu.default", _prelu),
            ("linalg_vector_norm.default", _euclidean),
            ("max_pool1d.default", _max_pool(1)),
            ("max_pool2d.default", _max_pool(2)),
            ("max_pool3d.default", _max_pool(3)),
            ("linear.default", _linear),
            ("matmul.default", _product_with_matrix("self", "other")),
            ("mm.default", _product_with_matrix("self", "mat2")),
            ("addmm.default", _product_with_matrix("mat1", "mat2")),
            ("_native_batch_norm_legit_no_training.default", _batch_norm),
            ("group_norm.default instance_norm.default", _normalization),
            ("layer_norm.default rms_norm.default", _normalization),
            ("add.Tensor sub.Tensor", _sum("other")),
            ("rsub.Scalar", _sum("self")),
            ("mul.Tensor", _multiplied),
            ("div.Tensor", _divided),
            ("cat.default stack.default", _beside_each_other),
            ("maximum.default minimum.default", _larger_of_two),
        )
        for name in names.split()
    },
    **{f"aten.{name}.default": _slope(name) for name in SLOPED.split()},
}
