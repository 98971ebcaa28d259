"""Cholesky factors of many small Hermitian matrices, one per lane.

Matrices are lower triangles row by row, (entries, count), real and imaginary parts in
arrays of their own. W of them are copied to a workspace in which an entry is S = 2 W
numbers, W real parts and W imaginary parts, so that every number of a textbook
algorithm is a vector. Loops are unrolled by two or four rows; where fewer are left, the
last one is computed again.
"""

from .jit import jit, subroutine
from .simd import (
    ONE_REGISTER,
    lanes,
    load,
    load_first,
    splat,
    sqrt,
    store_first,
    where_less,
)
from .split_complex import get, inner, minus_inner, put, scale
from .workspace import aligned


@subroutine
def take(re, im, entries, number, first, count, a):
    """Copy `count` of `number` matrices to a, from `first` on; other lanes are zero."""
    W = lanes(re)
    for t in range(entries):
        p = t * number + first
        put(a, 2 * t * W, (load_first(re, p, count), load_first(im, p, count)))


@jit
def definite_triangles(re, im, side, squares, found):
    """Set found to 1 where square - G has a Cholesky factor, else to 0.

    Parameters
    ----------
    re, im : array, shape (side * (side + 1) / 2, count)
    side : int
    squares, found : array, shape (count,)
    """
    entries, number = re.shape
    W = lanes(re)
    flat_re, flat_im = re.reshape(re.size), im.reshape(im.size)
    a = aligned(2 * entries * W, squares)
    for first in range(0, number, W):
        count = min(W, number - first)
        take(flat_re, flat_im, entries, number, first, count, a)
        good = factorize(a, side, load_first(squares, first, count))
        store_first(found, first, good, count)


@jit
def gram_triangles(re, im, gram_re, gram_im):
    """Set the triangles gram_re, gram_im to those of H H^H.

    Parameters
    ----------
    re, im : array, shape (side, columns, count)
        Of the matrices H.
    gram_re, gram_im : array, shape (side * (side + 1) / 2, count)
    """
    side, columns, number = re.shape
    W, entries = lanes(re), side * (side + 1) // 2
    flat_re, flat_im = re.reshape(re.size), im.reshape(im.size)
    to_re, to_im = gram_re.reshape(gram_re.size), gram_im.reshape(gram_im.size)
    h = aligned(2 * side * columns * W, flat_re)
    a = aligned(2 * entries * W, flat_re)
    for first in range(0, number, W):
        count = min(W, number - first)
        take(flat_re, flat_im, side * columns, number, first, count, h)
        products(h, side, columns, a)
        for t in range(entries):
            x, p = get(a, 2 * t * W), t * number + first
            store_first(to_re, p, x[0], count)
            store_first(to_im, p, x[1], count)


@subroutine
def products(h, side, columns, a):
    """Set a to the lower triangles of H H^H, as many entries at a time as registers
    have room for."""
    S = 2 * lanes(h)
    row = columns * S
    zero = splat(load(h, 0), 0)
    none = zero, zero
    if ONE_REGISTER:
        for i in range(0, side, 2):
            i1 = min(i + 1, side - 1)
            p, p1 = i * row, i1 * row
            at, at1 = i * (i + 1) // 2 * S, i1 * (i1 + 1) // 2 * S
            for j in range(0, i1 + 1, 2):
                j1 = min(j + 1, side - 1)
                q, q1 = j * row, j1 * row
                s0, t0, s1, t1 = none, none, none, none
                for k in range(0, row, S):
                    u, v = get(h, q + k), get(h, q1 + k)
                    x = get(h, p + k)
                    s0, t0 = inner(s0, u, x), inner(t0, v, x)
                    x = get(h, p1 + k)
                    s1, t1 = inner(s1, u, x), inner(t1, v, x)
                put(a, at + j * S, s0)
                put(a, at1 + j * S, s1)
                if j1 <= i:
                    put(a, at + j1 * S, t0)
                put(a, at1 + j1 * S, t1)
    else:
        for i in range(side):
            p, at = i * row, i * (i + 1) // 2 * S
            for j in range(0, i + 1, 2):
                j1 = min(j + 1, i)
                q, q1 = j * row, j1 * row
                s0, t0 = none, none
                for k in range(0, row, S):
                    x = get(h, p + k)
                    s0, t0 = inner(s0, get(h, q + k), x), inner(t0, get(h, q1 + k), x)
                put(a, at + j * S, s0)
                put(a, at + j1 * S, t0)


@subroutine
def pivot(a, p, last, square):
    """The diagonal entry of row p of square - G, less `last` numbers of L squared."""
    W = lanes(a)
    d = square - load(a, p + last)
    for k in range(p, p + last, 2 * W):
        x = get(a, k)
        d = d - x[0] * x[0] - x[1] * x[1]
    return d


@subroutine
def factorize(a, side, square):
    """Set a to the factors L of square - G; 1 where there is one, else 0."""
    S = 2 * lanes(a)
    zero, one = splat(square, 0), splat(square, 1)
    minus_one = splat(square, -1)
    good = one
    for j in range(0, side, 2):  # two columns at a time
        p, last = j * (j + 1) // 2 * S, j * S
        q = p + (j + 1) * S
        d = pivot(a, p, last, square)
        good = where_less(zero, d, good, zero)
        inverse = one / sqrt(where_less(zero, d, d, one))
        if j + 1 == side:
            break
        b = scale(minus_one, get(a, q + last))
        for k in range(0, last, S):
            b = minus_inner(b, get(a, p + k), get(a, q + k))
        b = scale(inverse, b)
        put(a, q + last, b)
        d = pivot(a, q, last + S, square)
        good = where_less(zero, d, good, zero)
        second = one / sqrt(where_less(zero, d, d, one))
        if ONE_REGISTER:
            reduce_four_rows(a, side, j, b, inverse, second)
        else:
            reduce_rows(a, side, j, b, inverse, second)
    return good


@subroutine
def reduce_rows(a, side, j, b, inverse, second):
    """Set columns j and j + 1 of L, below the entry b."""
    S = 2 * lanes(a)
    p, last = j * (j + 1) // 2 * S, j * S
    q = p + (j + 1) * S
    for i in range(j + 2, side):
        row = i * (i + 1) // 2 * S
        x, y = negative_pair(a, row + last)
        for k in range(0, last, S):
            z = get(a, row + k)
            x, y = minus_inner(x, get(a, p + k), z), minus_inner(y, get(a, q + k), z)
        x = scale(inverse, x)
        put(a, row + last, x)
        put(a, row + last + S, scale(second, minus_inner(y, b, x)))


@subroutine
def reduce_four_rows(a, side, j, b, inverse, second):
    """The same, four rows at a time."""
    S = 2 * lanes(a)
    p, last = j * (j + 1) // 2 * S, j * S
    q = p + (j + 1) * S
    for i in range(j + 2, side, 4):
        i1, i2 = min(i + 1, side - 1), min(i + 2, side - 1)
        i3 = min(i + 3, side - 1)
        p0, p1 = i * (i + 1) // 2 * S, i1 * (i1 + 1) // 2 * S
        p2, p3 = i2 * (i2 + 1) // 2 * S, i3 * (i3 + 1) // 2 * S
        s0, t0 = negative_pair(a, p0 + last)
        s1, t1 = negative_pair(a, p1 + last)
        s2, t2 = negative_pair(a, p2 + last)
        s3, t3 = negative_pair(a, p3 + last)
        for k in range(0, last, S):
            u, v = get(a, p + k), get(a, q + k)
            x = get(a, p0 + k)
            s0, t0 = minus_inner(s0, u, x), minus_inner(t0, v, x)
            x = get(a, p1 + k)
            s1, t1 = minus_inner(s1, u, x), minus_inner(t1, v, x)
            x = get(a, p2 + k)
            s2, t2 = minus_inner(s2, u, x), minus_inner(t2, v, x)
            x = get(a, p3 + k)
            s3, t3 = minus_inner(s3, u, x), minus_inner(t3, v, x)
        for at, x, y in (
            (p0 + last, s0, t0),
            (p1 + last, s1, t1),
            (p2 + last, s2, t2),
            (p3 + last, s3, t3),
        ):
            x = scale(inverse, x)
            put(a, at, x)
            put(a, at + S, scale(second, minus_inner(y, b, x)))


@subroutine
def negative_pair(a, p):
    """The negatives of two entries next to each other."""
    minus_one = splat(load(a, 0), -1)
    return scale(minus_one, get(a, p)), scale(minus_one, get(a, p + 2 * lanes(a)))
