"""Lanczos for many small Hermitian matrices, one per lane: see `cholesky_batched`."""

from .cholesky_batched import take
from .jit import jit, subroutine
from .simd import lanes, load, splat, sqrt, store, store_first, where_less
from .split_complex import get, inner, plus, put, scale
from .tridiagonal import largest_eigenvalue
from .workspace import aligned


@subroutine
def multiply(a, v, u, side):
    """Set u to the products of the matrices with v."""
    S = 2 * lanes(a)
    for i in range(side):
        at = i * (i + 1) // 2 * S
        y = get(v, i * S)
        sum = scale(load(a, at + i * S), y)
        for k in range(0, i * S, S):
            x = get(a, at + k)
            sum = plus(sum, x, get(v, k))
            put(u, k, inner(get(u, k), x, y))
        put(u, i * S, sum)


@jit
def top_triangles(re, im, start, steps, found):
    """Estimate the largest eigenvalues from below, by so many steps of Lanczos.

    Parameters
    ----------
    re, im : array, shape (side * (side + 1) / 2, count)
    start : array, shape (2, side)
        Real and imaginary parts of a unit vector.
    steps : int
    found : array, shape (count,)
    """
    entries, number = re.shape
    W = lanes(re)
    flat_re, flat_im = re.reshape(re.size), im.reshape(im.size)
    a = aligned(2 * entries * W, found)
    for first in range(0, number, W):
        count = min(W, number - first)
        take(flat_re, flat_im, entries, number, first, count, a)
        store_first(found, first, lanczos(a, start, steps), count)


@subroutine
def lanczos(a, start, steps):
    """The largest eigenvalues of matrices, about and from below."""
    W, side = lanes(a), start.shape[1]
    S = 2 * W
    v, u, before = aligned(side * S, a), aligned(side * S, a), aligned(side * S, a)
    diagonal, squares = aligned(steps * W, a), aligned(steps * W, a)
    zero = splat(load(a, 0), 0)
    one = splat(zero, 1)
    for i in range(side):
        put(v, i * S, (splat(zero, start[0, i]), splat(zero, start[1, i])))
        put(before, i * S, (zero, zero))
    beta = zero
    for n in range(steps):
        multiply(a, v, u, side)
        alpha = zero
        for k in range(0, side * S, S):
            x, y = get(u, k), get(v, k)
            alpha = alpha + x[0] * y[0] + x[1] * y[1]
        square = zero
        for k in range(0, side * S, W):
            x = load(u, k) - alpha * load(v, k) - beta * load(before, k)
            store(u, k, x)
            square = square + x * x
        store(diagonal, n * W, alpha)
        store(squares, n * W, square)
        beta = sqrt(square)
        inverse = where_less(zero, square, one / beta, zero)
        v, before = before, v
        for k in range(0, side * S, S):
            put(v, k, scale(inverse, get(u, k)))
    return largest_eigenvalue(diagonal, squares, steps)
