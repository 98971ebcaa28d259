"""What is left of a Hermitian matrix on a few directions, all others eliminated.

In a basis whose last vectors are those directions, the first columns of a Cholesky
factor L eliminate all others. With its rows L2 that belong to what is kept, and the
matrix's own block A there, A - L2 L2^H is left: the matrix is at least as large as this
on the directions, and zero elsewhere.
"""

import math
from dataclasses import dataclass

import numpy as np

from .block_rounding import elimination_loss


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """An orthonormal basis, of which the last `count` vectors are kept."""

    vectors: np.ndarray  # (n, n)
    count: int

    @classmethod
    def of(cls, image: np.ndarray, count: int) -> "Basis":
        """With most of the length of (n, sites) in what is kept."""
        vectors = np.linalg.svd(image)[0][:, ::-1]
        return cls(np.ascontiguousarray(vectors), min(count, *image.shape))

    @property
    def kept(self) -> np.ndarray:
        return self.vectors[:, -self.count :]


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What is left, and by how much in norm it may be too large."""

    matrix: np.ndarray
    lost: float


def eliminate(matrix: np.ndarray, kept: int, added: float) -> Left | None:
    """What is left on the last `kept` numbers; None if the others are not positive.

    `added` goes to the diagonal there, for the factorization to go through: any number
    larger than what is left is negative by. The matrix is overwritten.
    """
    own = matrix[-kept:, -kept:].copy()
    last = np.arange(len(matrix) - kept, len(matrix))
    matrix[last, last] += added
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    if not math.isfinite(float(np.trace(factor).real)):
        return None
    beside = factor[-kept:, :-kept]
    left = own - beside @ beside.conj().T
    return Left((left + left.conj().T) / 2, elimination_loss(matrix, own))
