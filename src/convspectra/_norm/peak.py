"""Where a symbol is largest; and what is raised where two computations disagree."""

from dataclasses import dataclass

import numpy as np

from .._arrays.array import Array

NO_PROGRESS = (
    "The eigenvalue and the Cholesky factor of a matrix must agree, and do not: LAPACK "
    "has failed. Please report the kernel that does this."
)
NO_AGREEMENT = (
    "The singular values and the Cholesky factor of a matrix must agree, and do not: "
    "one of our routines has failed. Please report the kernel that does this."
)


@dataclass(frozen=True, slots=True, eq=False)
class Peak:
    """The frequency and group where a symbol is largest, and bounds on its norm."""

    lower: float
    upper: float
    cycles: np.ndarray  # (axes,) the frequency, in cycles per row of the grid
    group: int
    left: Array  # (out,), a unit vector: H right = norm * left
    right: Array  # (columns,), a unit vector
