"""What may rounding lose where a layer is bounded by small matrices of its symbol?

By the rules of `rounding.py`, in double precision. Norms of matrices are measured.
"""

import math
from dataclasses import dataclass

import numpy as np

from .._maps.symbol import Taps
from .rounding import (
    UNIT_DOUBLE,
    cholesky_error,
    complex_gamma,
    gamma,
    of_symbol,
    size_bound,
)

# Pays for what measured norms and traces are off by: sums of fewer than 2^32 numbers.
MEASURED = 1 + 1e-6


def factor_loss(matrix: np.ndarray) -> float:
    """What L L^H is off by in norm from a matrix that has a Cholesky factor L.

    At most c |L| |L|^H in absolute values, see `cholesky_error`. That is positive
    semidefinite: its norm is at most its trace, which is that of L L^H, and so at most
    the trace of the matrix over 1 - c.
    """
    c = cholesky_error(2 * len(matrix), UNIT_DOUBLE)
    trace = float(np.trace(matrix).real) * MEASURED
    return c / (1 - c) * trace if c < 1 else math.inf


def elimination_loss(matrix: np.ndarray, own: np.ndarray) -> float:
    """What `eliminate` may have lost, in norm, from the matrix that it has factorized.

    With the factor L = [L1; L2] of the first columns, [L1; L2] [L1; L2]^H is off by
    `factor_loss` where it stands for the matrix, and the complement is own - L2 L2^H: a
    sum of a number and at most `side` products, so that it is off by a complex_gamma
    of |own| + |L2|^2. The squares in L2 are at most the last part of the diagonal.
    """
    kept = len(own)
    squares = float(np.trace(matrix[-kept:, -kept:]).real) + float(np.linalg.norm(own))
    products = complex_gamma(len(matrix) + 2, UNIT_DOUBLE) * squares * MEASURED
    return factor_loss(matrix) + products


def off_orthonormal(b: np.ndarray) -> float:
    """How far the columns of b are from orthonormal ones, in norm.

    The polar factor of b has orthonormal columns, and |b - polar| <= |b^H b - I|, since
    |s - 1| <= |s^2 - 1| for the singular values. The product is off by gamma |b|_F^2.
    """
    rows, columns = b.shape
    off = np.linalg.norm(b.T @ b - np.eye(columns))
    size = float(np.linalg.norm(b)) ** 2
    return float(off + gamma(rows + 2, UNIT_DOUBLE) * size) * MEASURED


@dataclass(frozen=True, slots=True)
class SymbolRounding:
    """For the matrix of `kept_channels`, of a symbol h in a basis u, and q.

    Attributes
    ----------
    symbol : float
        How far the computed u^T h is from the stated one, in norm.
    off, size : float
        How far q is from orthonormal, and |q|_F^2.
    columns : int
        Of h.
    """

    symbol: float
    off: float
    size: float
    columns: int

    @classmethod
    def of(cls, taps: Taps, u: np.ndarray, q: np.ndarray) -> "SymbolRounding":
        """Where h is made of taps. An entry of u^T h is a sum of len(u) products."""
        products = complex_gamma(len(u) + 1, UNIT_DOUBLE) * float(np.linalg.norm(u))
        absolute = of_symbol(taps, UNIT_DOUBLE).absolute
        return cls(
            symbol=(absolute + products * size_bound(taps)) * MEASURED,
            off=off_orthonormal(q),
            size=float(np.linalg.norm(q)) ** 2,
            columns=len(q),
        )

    def formed(self, h: float, t: float) -> float:
        """What the matrix on y and a is off by in norm, with h for |h|_F.

        Its terms are h h^H / t, z z^H / t and z = h q, each a complex inner product of
        at most `columns` terms, or a product of two of these: |z|_F <= |h|_F |q|_F. A
        rounding of t on the diagonal comes on top. To make q orthonormal changes z by
        |h| off, and z z^H by at most three times that times |h|.
        """
        terms = complex_gamma(3 * self.columns + 8, UNIT_DOUBLE)
        sums = (1 + self.size) * h * h / t + math.sqrt(self.size) * h + t
        moved = 4 * self.off * (h * h / t + h)
        return (terms * sums + moved) * MEASURED


def cut_loss(matrices: np.ndarray) -> np.ndarray:
    """What a cut along the first axis may be off by, for each frequency of the others.

    A block is the mean over the frequencies of the axis of a matrix times a phase
    factor: a complex inner product, of phases that are off by 30 u (`symbol_entries`).
    So it is off in Frobenius norm by a gamma of the mean norm, and the whole in norm by
    no more than the blocks of all lags, as many as frequencies.
    """
    lost = complex_gamma(len(matrices) + 2, UNIT_DOUBLE) + gamma(30, UNIT_DOUBLE)
    norms = np.linalg.norm(matrices, axis=(-2, -1))
    return lost * norms.sum(axis=0) * MEASURED


def turned_loss(matrix: np.ndarray) -> float:
    """What u^T matrix u may be off by, with an orthonormal basis u, about.

    Two products: |u|_F^2 is the side, up to a small part of it.
    """
    side = len(matrix)
    size = float(np.linalg.norm(matrix))
    return complex_gamma(2 * side + 4, UNIT_DOUBLE) * 2 * side * size * MEASURED
