"""How steep are operators that have no kernel, and why do some have no bound?"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

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
    "hardsigmoid": 1 / 6,
    "hardswish": 1.5,
    "mish": 1.0884983,
    "selu": 1.0507010 * 1.6732633,
    "sigmoid": 0.25,
    "silu": 1.0998394,
    "softmax": 0.5,  # of a row: the norm of diag(p) - p p'
}
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


def log_softmax(length: int) -> float:
    """Of the logarithm of softmax: the norm of I - 1 p', largest at a corner."""
    return math.sqrt(length)


def exponential(alpha: float, scale: float = 1.0, inside: float = 1.0) -> float:
    """Of scale * x above zero, scale * alpha * (exp(inside * x) - 1) below."""
    if not inside > 0:
        raise NoBound("its exponential grows without bound")
    return abs(scale) * max(1.0, abs(alpha) * inside)


def normalization(factors: Any, epsilon: float) -> float:
    """Of LayerNorm, GroupNorm, InstanceNorm or RMSNorm, with these factors.

    With s^2 = variance + epsilon, the Jacobian is 1 / s times a matrix whose
    eigenvalues are between 0 and 1.
    """
    if not epsilon > 0:
        raise NoBound("it divides by a spread that may be zero")
    return largest(factors) / math.sqrt(epsilon)


def batch_norm(gamma: Any, variance: Any, epsilon: float) -> np.ndarray:
    """The factor of each channel, by running statistics."""
    with np.errstate(all="ignore"):
        factors = np.asarray(gamma, float) / np.sqrt(np.asarray(variance) + epsilon)
    largest(factors)
    return factors


def largest_of_windows(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> float:
    """Of a pool: an entry may be the largest of every window that it is in."""
    sizes = (*kernel, *stride, *dilation)
    if not len(kernel) == len(stride) == len(dilation) or min(sizes, default=0) < 1:
        raise NoBound(NOT_SO)
    return math.sqrt(math.prod(map(_windows, kernel, stride, dilation)))


def _windows(kernel: int, stride: int, dilation: int) -> int:
    """How many windows at most contain the same entry, along one axis.

    Those are a multiple of the stride apart, and so are every so many places of one.
    """
    return -(-kernel * math.gcd(stride, dilation) // stride)


def product(first: Node, second: Node) -> Effect:
    """Of two arrays that depend on the input: known of x sigmoid(x), which is silu."""
    for gate, x in ((first, second), (second, first)):
        if gate.is_sigmoid and gate.sources == ((x, 1.0),):
            return {"sources": gate.sources, "gain": SLOPES["silu"], "why": "slope"}
    raise NoBound(PRODUCT)


def by_factors(factors: Any, axes: int, repeated: float) -> Effect:
    """Of a product with constants, of an array with so many axes.

    `repeated` is by how much the array grows that is repeated to fit the constants.
    """
    factors = np.asarray(factors, float)
    most = largest(factors)
    long = [i for i, size in enumerate(factors.shape) if size > 1]
    if len(long) == 1 and repeated == 1 and factors.ndim <= axes:
        return {"gain": factors.ravel(), "axis": long[0] + axes - factors.ndim}
    return {"gain": most * repeated, "why": "factor"}


def largest(constants: Any) -> float:
    """The largest absolute value of constants, which must be finite."""
    found = np.abs(np.asarray(constants, float)).max(initial=0.0)
    if not np.isfinite(found):
        raise NoBound(NOT_FINITE)
    return float(found)
