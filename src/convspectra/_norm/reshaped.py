"""Bounds by the norm of the kernel as one matrix, for layers beyond any budget.

Where a row reads each tap at a site of its own, it multiplies what it reads by the
matrix R = [W_1, W_2, ...]: a block of the layer, whose norm is at least |R|.

At each frequency the symbol is H = R P, where P holds the phase factors of the taps,
each times an identity. A polyphase component with n taps has n unit factors in each of
its columns, and the columns of different ones have no row in common: |P|^2 is the
largest n, and |H| <= sqrt(n) |R|.
"""

import math

from .._arrays.array import Array, is_complex, is_host, namespace
from .._layer.geometry import Geometry
from .._layer.stencil import (
    Stencil,
    embedding,
    some_row_reads_all_taps,
    stencil_of,
)
from .._maps.symbol import pattern_of, taps_of
from .._route.torus import torus_route
from .bounds import Bounds
from .rounding import UP
from .top_vectors import peak_derivative
from .torus_norm import norm_on_torus


def by_reshaping(weight: Array, stencil: Stencil, rtol: float) -> Bounds:
    """The norm of the kernel as one matrix, and sqrt(taps) times that."""
    xp = namespace(weight)
    matrix = xp.reshape(weight, (weight.shape[0], -1, 1))
    single = stencil_of(matrix, Geometry(1, groups=stencil.groups))
    taps, real = taps_of(matrix, single), not is_complex(weight)
    route = torus_route("reshaped", single, real=real, on_host=is_host(weight))
    peak = norm_on_torus(taps, single.rows, route, real=real, rtol=rtol)
    torus, factor = embedding(stencil)
    most = max(part.stop - part.start for part in pattern_of(torus).phases)
    times = factor * math.sqrt(most) * UP

    def derivative() -> Array:
        return xp.reshape(times * peak_derivative(taps, peak, matrix), weight.shape)

    return Bounds(
        lower=peak.lower if some_row_reads_all_taps(stencil) else 0.0,
        upper=peak.upper * times * UP,
        derivative=derivative,
        method="reshaped",
    )
