"""What does each operator of an exported model do to the size of its input?"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._layer.geometry import Geometry
from .._layer.layer import Layer
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
from ._calls import each, geometry_of_call
from ._modules import as_kernel

AVERAGED = 1 + 1e-9  # covers the rounding of sums of a million numbers


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
    given : mapping
        Its arguments by name, with a `Value` for what depends on the network's input.
    shape : tuple of int
        Of the result.
    run : callable
        Calls the operator, with another first argument if one is given.
    """

    given: Mapping[str, Any]
    shape: tuple[int, ...]
    run: Callable[..., Any]

    @property
    def values(self) -> list[Value]:
        """The arguments that depend on the input, those of lists one by one."""
        found: list[Any] = []
        for argument in self.given.values():
            found += argument if isinstance(argument, (list, tuple)) else [argument]
        return [value for value in found if isinstance(value, Value)]

    def only(self) -> Value:
        """The first argument, if no other depends on the input."""
        first = next(iter(self.given.values()))
        if len(self.values) > 1 or not isinstance(first, Value):
            raise NoBound(PRODUCT)
        return first

    def repeated(self, value: Value) -> float:
        """By how much an array grows that is repeated to the shape of the result."""
        return math.sqrt(math.prod(self.shape) / math.prod(value.shape))


Effect = dict[str, Any]  # attributes of a `Node`
Rule = Callable[[Call], Effect]


def effect(operator: str, call: Call) -> Effect:
    """The attributes of the node that a call is."""
    sources = tuple((value.node, 1.0) for value in call.values)
    rule = RULES.get(operator)
    try:
        if rule is None:
            raise NoBound(NOT_KNOWN)
        return {"sources": sources} | rule(call)
    except NoBound as error:
        return {"sources": sources, "gain": None, "why": str(error)}


def _constant(_: Call) -> Effect:
    return {"gain": 0.0}


def _entries_moved(call: Call) -> Effect:
    """Some may be left out; none is repeated."""
    call.only()
    return {"gain": 1.0}


def _entries_repeated(call: Call) -> Effect:
    return {"gain": _schur(call), "why": "repeats"}


def _averaged(call: Call) -> Effect:
    return {"gain": _schur(call) * AVERAGED, "why": "weights"}


def _schur(call: Call) -> float:
    """The norm of a linear map, up to a constant, whose weights are not negative.

    At most the root of the largest sum of a row times the largest of a column (Schur).
    """
    value = call.only()
    ones = torch.ones(value.shape, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        sums = call.run(ones)
        (columns,) = torch.autograd.grad(sums, ones, torch.ones_like(sums))
    rows = sums.detach() - call.run(torch.zeros_like(ones))
    return math.sqrt(float(rows.max()) * float(columns.max()))


def _slope(name: str) -> Rule:
    def rule(call: Call) -> Effect:
        call.only()
        return {"gain": SLOPES[name.replace("_", "")], "why": "slope"}

    return rule


def _slopes(call: Call) -> Effect:
    """Of functions with a slope below zero, which is 1 above."""
    call.only()
    given = call.given
    if "weight" in given:  # prelu
        below = float(given["weight"].abs().max())
    elif "negative_slope" in given:
        below = abs(given["negative_slope"])
    else:  # elu
        below = abs(given["alpha"] * given["input_scale"])
    return {"gain": max(1.0, below) * given.get("scale", 1.0), "why": "slope"}


def _log_softmax(call: Call) -> Effect:
    value = call.only()
    return {"gain": log_softmax(value.shape[call.given["dim"]]), "why": "slope"}


def _largest(call: Call) -> Effect:
    """Of sets without a common entry."""
    call.only()
    return {"gain": 1.0}


def _euclidean(call: Call) -> Effect:
    call.only()
    if call.given["ord"] != 2:
        raise NoBound(NOT_KNOWN)
    return {"gain": 1.0}


def _max_pool(call: Call) -> Effect:
    call.only()
    axes = len(call.given["kernel_size"])
    kernel, dilation = (each(call.given[x], axes) for x in ("kernel_size", "dilation"))
    stride = each(call.given["stride"] or kernel, axes)
    return {"gain": largest_of_windows(kernel, stride, dilation), "why": "windows"}


def _convolution(call: Call) -> Effect:
    value, weight = call.only(), call.given["weight"]
    axes = weight.ndim - 2
    transposed = call.given.get("transposed", "output_padding" in call.given)
    geometry = geometry_of_call(call.given, value.shape[-axes:], transposed)
    return _layer(weight, geometry, len(value.shape) - axes - 1)


def _linear(call: Call) -> Effect:
    value = call.only()
    return _matrix(call.given["weight"], len(value.shape) - 1)


def _product_with_matrix(call: Call) -> Effect:
    """Of rows with a matrix, or of a matrix with columns; perhaps added to a bias."""
    given = call.given
    first, second = given.get("mat1", given["self"]), given.get("mat2")
    second = given.get("other", second)
    if isinstance(first, Value) and isinstance(second, Tensor):
        value, matrix, axis = first, second.mT, len(first.shape) - 1
    elif isinstance(second, Value) and isinstance(first, Tensor):
        value, matrix, axis = second, first, len(second.shape) - 2
    else:
        raise NoBound(PRODUCT)
    if matrix.ndim != 2 or len(call.values) > 1:
        raise NoBound(NOT_KNOWN)
    alpha = given.get("alpha", 1)
    return {"sources": ((value.node, 1.0),)} | _matrix(matrix * alpha, axis)


def _matrix(weight: Tensor, axis: int) -> Effect:
    geometry = Geometry(grid=(1,), padding="valid", boundary="zeros")
    return _layer(as_kernel(weight), geometry, axis)


def _layer(weight: Tensor, geometry: Geometry, axis: int) -> Effect:
    return {"gain": Layer("", weight.detach(), geometry), "axis": axis}


def _batch_norm(call: Call) -> Effect:
    call.only()
    given = call.given
    variance, gamma = given["running_var"], given["weight"]
    if variance is None or given.get("training", False):
        raise NoBound("it has no running statistics: those of the batch have no bound")
    factors = (variance.double() + given["eps"]).rsqrt()
    factors = factors if gamma is None else factors * gamma.double()
    return {"gain": factors.detach().cpu().numpy(), "axis": 1}


def _normalization(call: Call) -> Effect:
    """By statistics of the input itself."""
    call.only()
    given, epsilon = call.given, call.given["eps"]
    if given.get("use_input_stats") is False:
        raise NoBound(NOT_KNOWN)
    gamma = given["weight"]
    factor = 1.0 if gamma is None else float(gamma.abs().max())
    epsilon = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    return {"gain": normalization(factor, epsilon), "why": "1 / sqrt(eps)"}


def _sum(scaled: str) -> Rule:
    """Of two arrays, or of one and a constant; `alpha` multiplies one of them."""

    def rule(call: Call) -> Effect:
        scales = {"self": 1.0, "other": 1.0}
        scales[scaled] = abs(call.given.get("alpha", 1.0))
        return {
            "sources": tuple(
                (value.node, scale * call.repeated(value))
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
    return _by_factors(call, value, torch.as_tensor(other).double())


def _divided(call: Call) -> Effect:
    value, other = call.given["self"], call.given["other"]
    if not isinstance(value, Value) or isinstance(other, Value):
        raise NoBound(QUOTIENT)
    if call.given.get("rounding_mode") is not None:
        raise NoBound("it rounds")
    return _by_factors(call, value, 1 / torch.as_tensor(other).double())


def _by_factors(call: Call, value: Value, factors: Tensor) -> Effect:
    largest = float(factors.abs().max())
    if not math.isfinite(largest):
        raise NoBound(NOT_FINITE)
    axes = [i for i, size in enumerate(factors.shape) if size > 1]
    if len(axes) == 1 and call.shape == value.shape:
        axis = axes[0] + len(call.shape) - factors.ndim
        return {"gain": factors.flatten().cpu().numpy(), "axis": axis}
    return {"gain": largest * call.repeated(value), "why": "factor"}


def _beside_each_other(_: Call) -> Effect:
    return {"joined": "stack"}


def _larger_of_two(call: Call) -> Effect:
    sources = tuple((value.node, call.repeated(value)) for value in call.values)
    return {"sources": sources, "joined": "stack"}


SLOPED = """
    abs atan celu clamp clamp_max clamp_min cos erf gelu hardsigmoid hardswish hardtanh
    log_sigmoid mish neg relu relu6 selu sigmoid silu sin softmax softplus tanh
"""
# By the names of PyTorch's operators. What is not here is unknown.
RULES = {name: _slope(name) for name in SLOPED.split()} | {
    name: rule
    for rule, names in {
        _constant: "ones_like zeros_like",
        _entries_moved: "_to_copy channel_shuffle clone detach flip getitem permute "
        "pixel_shuffle pixel_unshuffle roll select slice split split_with_sizes "
        "squeeze t transpose unbind unsqueeze view",
        _entries_repeated: "cumsum expand pad repeat sum tile upsample_nearest1d "
        "upsample_nearest2d upsample_nearest3d",
        _averaged: "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
        "avg_pool1d avg_pool2d avg_pool3d mean upsample_bilinear2d upsample_linear1d "
        "upsample_trilinear3d",
        _slopes: "elu leaky_relu prelu",
        _log_softmax: "log_softmax",
        _largest: "amax amin logsumexp max min",
        _euclidean: "linalg_vector_norm",
        _max_pool: "max_pool1d max_pool2d max_pool3d",
        _convolution: "conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
        "conv_transpose3d",
        _linear: "linear",
        _product_with_matrix: "addmm matmul mm",
        _batch_norm: "batch_norm",
        _normalization: "group_norm instance_norm layer_norm rms_norm",
        _sum("other"): "add sub",
        _sum("self"): "rsub",
        _multiplied: "mul",
        _divided: "div",
        _beside_each_other: "cat stack",
        _larger_of_two: "maximum minimum",
    }.items()
    for name in names.split()
}
