"""How steep are operators that have no kernel, and why do some have no bound?"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from . import upward
from .node import Node

# Functions whose steepest slope is 1.
ONE = """
    abs atan clamp clampmax clampmin clip cos hardtanh logsigmoid neg relu relu6 sin
    softplus softsign tanh
"""
# The largest |f'| of functions that are applied to every entry, by the names that
# PyTorch and ONNX give them, in small letters and without underscores. Numbers that are
# not simple are rounded up.
SLOPES = dict.fromkeys(ONE.split(), 1.0) | {
    "erf": 1.1283792,  # 2 / sqrt(pi)
    "gelu": 1.129,  # 1.128905 by erf, 1.128994 by tanh
    "hardsigmoid": math.nextafter(1 / 6, 1),
    "hardswish": 1.5,
    "mish": 1.0884983,
    "selu": 1.7580994,  # 1.05070099 * 1.67326325
    "sigmoid": 0.25,
    "silu": 1.0998394,
    "softmax": 0.5,  # of a row: the norm of diag(p) - p p'
}
AVERAGED = 1 + 1e-9  # covers the rounding of sums of a million numbers
NOT_KNOWN = "this operator is not known"
NOT_SO = "it is not known with these arguments"
NOT_FINITE = "its constants must be finite, and are not"
PRODUCT = (
    "it multiplies arrays that both depend on the input, which has no bound unless "
    "their sizes have one"
)
QUOTIENT = "it divides by an array that depends on the input"
OTHERS = "an argument that is usually constant depends on the input"
Effect = dict[str, Any]  # attributes of a `Node`


class NoBound(Exception):
    """Why no Lipschitz constant of an operator is known."""


def slope(steepest: float) -> Effect:
    """Of a function with this slope somewhere, and nowhere a steeper one."""
    if steepest == 1:
        return {"gain": 1.0}
    return {"gain": steepest, "why": "slope"}


def kinked(below: Any) -> Effect:
    """Of functions that are x above zero, and have these slopes below."""
    return slope(max(1.0, largest(below)))


def log_softmax(length: int) -> Effect:
    """Of the logarithm of softmax: the norm of I - 1 p', largest at a corner."""
    return slope(upward.root(length))


def exponential(alpha: float, scale: float = 1.0, inside: float = 1.0) -> Effect:
    """Of scale * x above zero, scale * alpha * (exp(inside * x) - 1) below."""
    if not inside > 0:
        raise NoBound("its exponential grows without bound")
    below = upward.product(largest(alpha), inside)
    return slope(upward.product(largest(scale), max(1.0, below)))


def normalization(factors: Any, epsilon: float) -> Effect:
    """Of LayerNorm, GroupNorm, InstanceNorm or RMSNorm, with these factors.

    With s^2 = variance + epsilon, the Jacobian is 1 / s times a matrix whose
    eigenvalues are between 0 and 1.
    """
    if not epsilon > 0:
        raise NoBound("it divides by a spread that may be zero")
    gain = upward.root(Fraction(largest(factors)) ** 2 / Fraction(epsilon))
    return {"gain": gain, "why": "1 / sqrt(eps)"}


def repeated(count: int | Fraction) -> Effect:
    """Of an operator that reads an entry at most so many times."""
    return {"gain": upward.root(count), "why": "repeats"}


def reduced(count: int, *, is_mean: bool) -> Effect:
    """The mean or sum of so many entries."""
    square = Fraction(1, max(count, 1)) if is_mean else Fraction(count)
    return {"gain": upward.root(square), "why": "weights"}


def batch_norm(gamma: Any, variance: Any, epsilon: float) -> np.ndarray:
    """The factor of each channel, by running statistics."""
    with np.errstate(all="ignore"):
        factors = np.asarray(gamma, float) / np.sqrt(np.asarray(variance) + epsilon)
    largest(factors)
    return factors


def largest_of_windows(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Effect:
    """Of a pool: an entry may be the largest of every window that it is in."""
    sizes = (*kernel, *stride, *dilation)
    if not len(kernel) == len(stride) == len(dilation) or min(sizes, default=0) < 1:
        raise NoBound(NOT_SO)
    count = math.prod(map(_windows, kernel, stride, dilation))
    return {"gain": upward.root(count), "why": "windows"}


def _windows(kernel: int, stride: int, dilation: int) -> int:
    """How many windows at most contain the same entry, along one axis.

    Those are a multiple of the stride apart, and so are every so many places of one.
    """
    return -(-kernel * math.gcd(stride, dilation) // stride)


def product(first: Node, second: Node) -> Effect:
    """Of two arrays that depend on the input: known of x sigmoid(x), which is silu."""
    for gate, x in ((first, second), (second, first)):
        if gate.is_sigmoid and gate.sources == ((x, 1),):
            return slope(SLOPES["silu"]) | {"sources": gate.sources}
    raise NoBound(PRODUCT)


def by_factors(factors: Any, axes: int, count: Fraction) -> Effect:
    """Of a product with constants, of an array with so many axes.

    `count` is how often the array is repeated to fit the constants.
    """
    factors = np.asarray(factors, float)
    return _scaled(factors, Fraction(largest(factors)), axes, count)


def by_quotients(divisors: Any, axes: int, count: Fraction) -> Effect:
    """As `by_factors`, of a division by constants."""
    divisors = np.asarray(divisors, float)
    largest(divisors)
    least = float(np.abs(divisors).min(initial=math.inf))
    if least == 0:
        raise NoBound("it divides by zero")
    with np.errstate(all="ignore"):
        factors = 1 / divisors
    largest(factors)
    most = Fraction(0) if math.isinf(least) else 1 / Fraction(least)
    return _scaled(factors, most, axes, count)


def _scaled(factors: np.ndarray, most: Fraction, axes: int, count: Fraction) -> Effect:
    long = [i for i, size in enumerate(factors.shape) if size > 1]
    if len(long) == 1 and count == 1 and factors.ndim <= axes:
        return {"gain": factors.ravel(), "axis": long[0] + axes - factors.ndim}
    return {"gain": upward.root(most**2 * count), "why": "factor"}


def largest(constants: Any) -> float:
    """The largest absolute value of constants, which must be finite."""
    found = np.abs(np.asarray(constants, float)).max(initial=0.0)
    if not np.isfinite(found):
        raise NoBound(NOT_FINITE)
    return float(found)
