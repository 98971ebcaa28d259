"""The route of `singular_values`."""

import math

from .._layer.stencil import Stencil
from .._maps.matrix import ENTRIES_LIMIT, matrix_entries
from .records import ValuesAlgorithm

# Predicted seconds of all values that a process is asked for, up to which LAPACK takes
# less time than to load our compiled routine (0.9 s), let alone to compile it (5 s).
LAPACK_SECONDS = 0.2


def values_route(
    stencil: Stencil, *, on_host: bool, total_seconds: float = math.inf
) -> ValuesAlgorithm:
    """The route of `singular_values`.

    `total_seconds` are predicted for all values that the process is asked for: unless
    these are known, there may be many.
    """
    if stencil.is_torus and stencil.taps == 1:
        return "one matrix"
    if stencil.is_torus and on_host:
        return "compiled" if total_seconds > LAPACK_SECONDS else "LAPACK"
    if stencil.is_torus:
        return "array library"
    return "matrix" if matrix_entries(stencil) <= ENTRIES_LIMIT else "too large"
