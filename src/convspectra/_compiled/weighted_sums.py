"""Weighted sums of arrays: products of matrices with sides too short for BLAS."""

from .jit import jit
from .simd import lanes, load, load_first, splat, store

CHUNK = 512  # numbers of each array at a time, so that those of all stay in the cache


@jit
def weighted_sums(weights, arrays, out):
    """Set each row of `out` to a sum over `arrays`.

    Parameters
    ----------
    weights : array, shape (sums, terms), contiguous
    arrays : array, shape (terms, numbers), contiguous
    out : array, shape (sums, numbers), contiguous
    """
    (count, size), terms = out.shape, len(arrays)
    step = lanes(out)
    whole, four = size // step * step, count // 4 * 4
    zero = load_first(out, 0, 0)
    for start in range(0, whole, CHUNK):
        stop = min(start + CHUNK, whole)
        for n in range(0, four, 4):
            for i in range(start, stop, step):
                a, b, c, d = zero, zero, zero, zero
                for t in range(terms):
                    x = load(arrays, t * size + i)
                    a = a + x * splat(zero, weights[n, t])
                    b = b + x * splat(zero, weights[n + 1, t])
                    c = c + x * splat(zero, weights[n + 2, t])
                    d = d + x * splat(zero, weights[n + 3, t])
                at = n * size + i
                for x in (a, b, c, d):
                    store(out, at, x)
                    at += size
        for n in range(four, count):
            for i in range(start, stop, step):
                a = zero
                for t in range(terms):
                    a = a + load(arrays, t * size + i) * splat(zero, weights[n, t])
                store(out, n * size + i, a)
    for i in range(whole, size):  # what does not fill a vector
        for n in range(count):
            x = weights.dtype.type(0)
            for t in range(terms):
                x += weights[n, t] * arrays[t, i]
            out[n, i] = x
