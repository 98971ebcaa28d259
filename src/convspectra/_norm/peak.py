"""Where a symbol is largest, its matrix there, and what rounding may do to its norm."""

import math
from dataclasses import dataclass

import numpy as np

from .._arrays.array import Array, length, namespace, to_numpy
from .._maps.symbol import Taps, phase_like, symbol

TIGHT = 1e-9  # as close as ends are brought where that costs nothing
ROUGH = 1e-3  # what is asked for no closer than this is not brought closer
UNIT = float(np.finfo(np.float64).eps) / 2
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


def rounding(taps: Taps, unit: float) -> tuple[float, float]:
    """What phases, sums and decompositions may lose when numbers are rounded to `unit`.

    The first is relative to the norm; the second comes from the sizes of the taps.
    """
    side, other = sorted((taps.block[1], taps.columns))
    terms = side + other + len(taps.shifts) + 20
    # At least what sums of absolute values over the taps of a component can have.
    most = max(part.stop - part.start for part in taps.phases)
    size = math.sqrt(most) * _largest_group(taps)
    return 8 * unit * terms * side, 8 * unit * terms * size


def _largest_group(taps: Taps) -> float:
    """The largest root of the sum of squares of a group."""
    if taps.block[0] == 1:
        return length(taps.weight)
    xp = namespace(taps.weight)
    squares = xp.sum(xp.abs(taps.weight) ** 2, axis=0)
    return math.sqrt(xp.max(xp.sum(xp.reshape(squares, (taps.block[0], -1)), axis=1)))


def matrix_at(
    taps: Taps, frequency: np.ndarray, group: int, parts: np.ndarray
) -> np.ndarray:
    """The matrix of one group at one frequency."""
    found = symbol(taps, phase_like(taps, frequency[None], parts))
    return to_numpy(found[0, group, ...])
