"""How steep can operators be that have no kernel?"""

import math
from collections.abc import Sequence
from typing import Any

from .node import Node

# Functions whose steepest slope is 1.
ONE = """
    abs atan celu clamp clampmax clampmin clip cos hardtanh logsigmoid neg relu relu6
    sin softplus softsign tanh
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
# Why no Lipschitz constant is known.
NOT_KNOWN = "this operator is not known"
PRODUCT = (
    "it multiplies arrays that both depend on the input, which has no bound unless "
    "their sizes have one"
)
QUOTIENT = "it divides by an array that depends on the input"
NOT_FINITE = "its factors must be finite, and are not"


class NoBound(Exception):
    """Why no Lipschitz constant of an operator is known."""


def log_softmax(length: int) -> float:
    """Of the logarithm of softmax: the norm of I - 1 p', largest at a corner."""
    return math.sqrt(length)


def normalization(factor: float, epsilon: float) -> float:
    """Of LayerNorm, GroupNorm, InstanceNorm or RMSNorm, with the largest factor.

    With s^2 = variance + epsilon, the Jacobian is 1 / s times a matrix whose
    eigenvalues are between 0 and 1.
    """
    if not epsilon > 0:
        raise NoBound("it divides by a spread that may be zero")
    return factor / math.sqrt(epsilon)


def largest_of_windows(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> float:
    """Of a pool: an entry may be the largest of every window that it is in."""
    return math.sqrt(math.prod(map(_windows, kernel, stride, dilation)))


def _windows(kernel: int, stride: int, dilation: int) -> int:
    """How many windows at most contain the same entry, along one axis.

    Those are a multiple of the stride apart, and so are every so many places of one.
    """
    return -(-kernel * math.gcd(stride, dilation) // stride)


def product(first: Node, second: Node) -> dict[str, Any]:
    """Of two arrays that depend on the input: known of x sigmoid(x), which is silu."""
    for gate, x in ((first, second), (second, first)):
        if gate.operator.lower() == "sigmoid" and gate.sources == ((x, 1.0),):
            return {"sources": gate.sources, "gain": SLOPES["silu"], "why": "slope"}
    raise NoBound(PRODUCT)
