"""The norm where all frequencies have the same real matrix.

That is so with a 1x1 kernel, and with patches side by side: no tap reaches from one to
the next.
"""

from functools import partial

import numpy as np

from .._arrays.array import Array, asarray_like
from .._arrays.linalg import are_definite
from .._maps.symbol import Taps, matrix_at
from .lanczos import top_vector
from .peak import NO_PROGRESS, Peak
from .rounding import UNIT_DOUBLE, effective_rtol, of_symbol

# The largest side at which a decomposition takes less time than Lanczos.
DECOMPOSED_SIDE = 64


def norm_of_one_matrix(taps: Taps, rtol: float) -> Peak:
    """The norm of the matrix of all frequencies, in real arithmetic."""
    grid_sizes = np.ones(taps.shifts.shape[1], dtype=int)
    zero = np.zeros_like(grid_sizes)
    h: Array = matrix_at(taps, zero, 0, grid_sizes)
    matrix = np.ascontiguousarray(h.real)
    wide = matrix.shape[0] <= matrix.shape[1]
    short = matrix if wide else matrix.T
    gram = short @ short.T
    allowance = of_symbol(taps, UNIT_DOUBLE)

    def certified(x: np.ndarray, rtol: float) -> Peak | None:
        """The peak with the vector x, if no gain is larger by more than `rtol`."""
        other, length = x @ short, float(np.linalg.norm(x))
        gain = float(np.linalg.norm(other)) / length
        threshold = allowance.threshold(gain, rtol)
        if threshold:
            rest = threshold * threshold * np.eye(len(gram)) - gram
            if not are_definite(rest[None]).all():
                return None
        x, other = x / length, other / (length * gain or 1.0)
        left, right = (x, other) if wide else (other, x)
        return Peak(
            lower=allowance.lower(gain),
            upper=allowance.upper(threshold),
            cycles=zero.astype(float),
            group=0,
            left=asarray_like(taps.weight, left),
            right=asarray_like(taps.weight, right),
        )

    peak, rtol = None, effective_rtol(rtol)
    if len(gram) > DECOMPOSED_SIDE:
        start = np.random.default_rng(0).standard_normal(len(gram))
        x = top_vector(partial(np.matmul, gram), start, rtol=rtol / 10)
        peak = certified(x, rtol)
    peak = peak or certified(np.linalg.eigh(gram)[1][:, -1], rtol)
    if peak is None:
        raise ArithmeticError(NO_PROGRESS)
    return peak
