"""Where a symbol is largest, and its matrix there."""

from dataclasses import dataclass

import numpy as np

from .._arrays.array import Array, to_numpy
from .._maps.symbol import Taps, phase_like, symbol

# The tolerance where a smaller one costs nothing: few matrices, each factorized anyhow.
# Rounding allows for some 1e-10 with a thousand channels, so that less is not promised.
TIGHT = 1e-9
# Who asks for no more than this wants a quick answer: the tolerance stays as it is, so
# that a few steps of Lanczos and one Cholesky factorization suffice.
ROUGH = 1e-3
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
    """Where a symbol is largest, and between which ends its norm there lies."""

    lower: float
    upper: float
    turns: np.ndarray  # (axes,) the frequency, in turns per row
    group: int
    left: Array  # (out,), a unit vector: H right = norm * left
    right: Array  # (columns,), a unit vector


def tight(rtol: float) -> float:
    """How close ends are to be brought where that costs next to nothing."""
    return rtol if rtol >= ROUGH else min(rtol, TIGHT)


def matrix_at(
    taps: Taps, frequency: np.ndarray, group: int, grid_sizes: np.ndarray
) -> np.ndarray:
    """The matrix of one group at one frequency."""
    found = symbol(taps, phase_like(taps, frequency[None], grid_sizes))
    return to_numpy(found[0, group, ...])
