"""Eigenvalues of symmetric tridiagonal matrices by bisection, one matrix per lane.

In the subroutines, the diagonal and the squares of the numbers beside it are arrays of
n vectors.
"""

from .jit import jit, subroutine
from .simd import (
    lanes,
    load,
    load_like,
    maximum,
    splat,
    sqrt,
    store_first,
    where_less,
)
from .workspace import aligned

HALVINGS = 20  # of Gershgorin's interval, for an estimate: 1e-6 of it is left


@subroutine
def kth_eigenvalue(diagonal, squares, n, k, low, high, halvings):
    """The k-th largest eigenvalue, k = 0 the largest, between `low` and `high`.

    It is approached from below. By Sturm's theorem, as many eigenvalues are above x as
    pivots of x - T are negative.
    """
    zero, half, one = splat(low, 0), splat(low, 0.5), splat(low, 1)
    wanted = splat(low, k)
    step = lanes(low)
    for _ in range(halvings):
        middle = half * (low + high)
        pivot = middle - load_like(diagonal, 0, low)
        above = where_less(pivot, zero, one, zero)
        for p in range(step, n * step, step):
            beside = load_like(squares, p - step, low) / pivot
            pivot = middle - load_like(diagonal, p, low) - beside
            above = above + where_less(pivot, zero, one, zero)
        low, high = (
            where_less(wanted, above, middle, low),
            where_less(wanted, above, high, middle),
        )
    return low


@subroutine
def largest_eigenvalue(diagonal, squares, n):
    """The largest eigenvalue, about and from below."""
    step = lanes(diagonal)
    low = high = load(diagonal, 0)
    before = splat(low, 0)
    for p in range(0, n * step, step):
        d = load(diagonal, p)
        after = sqrt(load(squares, p)) if p + step < n * step else splat(low, 0)
        low = maximum(d, low)
        high = maximum(d + before + after, high)  # no eigenvalue is beyond (Gershgorin)
        before = after
    return kth_eigenvalue(diagonal, squares, n, 0, low, high, HALVINGS)


@jit
def top_eigenvalues(diagonal, beside, found):
    """The largest eigenvalues of symmetric tridiagonal matrices, from below.

    Parameters
    ----------
    diagonal : array, shape (count, n)
    beside : array, shape (count, n - 1) or more
    found : array, shape (count,)
    """
    number, n = diagonal.shape
    W = lanes(found)
    d, squares = aligned(n * W, found), aligned(n * W, found)
    for first in range(0, number, W):
        count = min(W, number - first)
        d[:] = 0
        squares[:] = 0
        for lane in range(count):
            for k in range(n):
                d[k * W + lane] = diagonal[first + lane, k]
            for k in range(n - 1):
                squares[k * W + lane] = beside[first + lane, k] ** 2
        store_first(found, first, largest_eigenvalue(d, squares, n), count)
