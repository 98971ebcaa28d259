"""The norm where all frequencies have the same real matrix.

That is so with a 1x1 kernel, and with patches side by side: no tap reaches from one to
the next.
"""

from functools import partial

import numpy as np

from .._arrays.array import Array, asarray_like
from .._arrays.linalg import are_definite
from .._maps.matrix_free import top_pair
from .._maps.symbol import Taps
from .peak import NO_PROGRESS, Peak, matrix_at, tight
from .rounding import UNIT_DOUBLE, of_symbol

SMALL = 64  # the side of matrices that are decomposed in less time than Lanczos takes


def of_one_matrix(taps: Taps, rtol: float) -> Peak:
    """The norm of the matrix of all frequencies, in real arithmetic."""
    grid_sizes = np.ones(taps.shifts.shape[1], dtype=int)
    nowhere = np.zeros_like(grid_sizes)
    found: Array = matrix_at(taps, nowhere, 0, grid_sizes)
    matrix = np.ascontiguousarray(found.real)
    wide = matrix.shape[0] <= matrix.shape[1]
    short = matrix if wide else matrix.T
    gram = short @ short.T
    allowance = of_symbol(taps, UNIT_DOUBLE)

    def certified(x: np.ndarray, near: float) -> Peak | None:
        """The gain of a vector, if no other's is larger by more than `near`."""
        other, size = x @ short, float(np.linalg.norm(x))
        norm = float(np.linalg.norm(other)) / size
        level = allowance.threshold(norm, near)
        away = level * level * np.eye(len(gram)) - gram
        if level and not are_definite(away[None]).all():
            return None
        x, other = x / size, other / (size * norm or 1.0)
        left, right = (x, other) if wide else (other, x)
        return Peak(
            lower=allowance.lower(norm),
            upper=allowance.upper(level),
            turns=nowhere.astype(float),
            group=0,
            left=asarray_like(taps.weight, left),
            right=asarray_like(taps.weight, right),
        )

    best, near = None, tight(rtol)
    if len(gram) > SMALL:
        start = np.random.default_rng(0).standard_normal(len(gram))
        apply, twice = partial(np.matmul, short.T), partial(np.matmul, gram)
        best = certified(top_pair(apply, twice, start, rtol=near / 10).x, near)
    best = best or certified(np.linalg.eigh(gram)[1][:, -1], near)
    if best is None:
        raise ArithmeticError(NO_PROGRESS)
    return best
