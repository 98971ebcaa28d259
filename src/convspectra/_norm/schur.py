"""Schur complements of Hermitian matrices, on the few directions that are kept.

In a basis whose last vectors are those directions, the first columns of a Cholesky
factor L eliminate all others. With its rows L2 that belong to what is kept, and the
matrix's own block A there, the complement is A - L2 L2^H. The matrix is at least this
on the directions and zero elsewhere: their difference is positive semidefinite.
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
class SchurComplement:
    """One or many as computed, and by how much in norm they may be too large."""

    matrix: np.ndarray
    lost: float


def eliminate(matrix: np.ndarray, kept: int, added: float) -> SchurComplement | None:
    """The Schur complement on the last `kept` rows; overwrites the matrix.

    None if the block of all other rows is not positive definite. The complement need
    not be, but LAPACK factorizes the whole matrix: so `added` is put on the diagonal of
    the last rows, on which the columns used here do not depend. It must be larger than
    the complement is negative by.
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
    complement = own - beside @ beside.conj().T
    complement = (complement + complement.conj().T) / 2
    return SchurComplement(complement, elimination_loss(matrix, own))
