"""Householder reductions of complex matrices to real bidiagonal form.

`bidiagonalize` reduces a matrix Y by reflections from both sides. `tridiagonalize`
reduces Y^H Y by half as many reflections, in half the memory, to the bidiagonal R with
R^H R = Y^H Y + shift, which has the right singular vectors of Y.

A matrix is an array of rows of entries, an entry being S = 2 W numbers: W real parts,
then W imaginary parts. The lanes are either W matrices, one per lane, that never mix
(`one` is None); or they are W columns of one matrix. Entries must be at most 1 in size.
"""

import numpy as np

from .jit import subroutine
from .simd import lanes, load, splat, sqrt, store, total, where_positive
from .split_complex import (
    add_square,
    get,
    get_entry,
    inner,
    minus,
    minus_inner,
    plus,
    put,
    put_entry,
    scale,
)


@subroutine
def thresholds(a):
    """Sizes below which an entry, and then a column, is negligible.

    The square of a number below the first loses digits to underflow. A column whose
    norm is below the second may contain such squares.
    """
    info = np.finfo(a.dtype)
    like = load(a, 0)
    tiny, small = np.sqrt(info.tiny / info.eps), np.sqrt(info.tiny) / info.eps
    return splat(like, tiny), splat(like, small)


@subroutine
def reflector(x, size, tiny, small):
    """The phase u of x, and v and f such that I - f (v, y) (v, y)^H takes a column
    (x, y) of norm `size` to (-u size, 0), or is I if that is small."""
    zero, one = splat(size, 0), splat(size, 1)
    top = sqrt(add_square(zero, x))
    some = top - tiny
    u = where_positive(some, x[0] / top, one), where_positive(some, x[1] / top, zero)
    top = size + where_positive(some, top, zero)
    return u, scale(top, u), where_positive(size - small, one / (size * top), zero)


@subroutine
def over_columns(x, one):
    """The sum over the columns that are in the lanes, in all of them."""
    if one is None:
        return x
    else:
        return splat(x, total(x))


@subroutine
def bidiagonalize(a, m, n, row, d, e, f, phase, s, t, one):
    """Reduce m x n matrices, m >= n, of rows of length `row`, to bidiagonal ones.

    Sets d and e to the sizes of the diagonal and of what is right of it, n vectors
    each, and `phase` so that

        (reflections from the left) Y V1 D = (phases) (bidiagonal of d and e),

    D the diagonal matrix of `phase`. It leaves reflection k of V1, I - f[k] w^H w, in
    row k of a from column k + 1 on. There is a row of zeros below the matrix, since two
    rows are updated at a time. s and t are workspace for a row each.

    The matrix is read and written once per reflection from the left: while two rows are
    in the L1 cache they get both updates, and add to the products t of the next column
    with all others, which give the next reflection from the left.
    """
    W = lanes(a)
    S = 2 * W
    end = n * S if one is None else row
    zero, unity = splat(load(a, 0), 0), splat(load(a, 0), 1)
    none = zero, zero
    for q in range(0, end, S):
        put(s, q, none)
    for i in range(m):
        x = get_entry(a, i * row, one)
        for q in range(0, end, S):
            put(s, q, inner(get(s, q), x, get(a, i * row + q)))
    tiny, small = thresholds(a)
    turn = unity, zero
    for k in range(n):
        # Columns k and k + 1 are at `here` and `after` in a row. The entries from
        # `start` on are those of columns after k, and of some before if lanes are.
        here, after = k * S, k * S + S
        start = after
        if one is not None:
            here, after = k // W * S + k % W, (k + 1) // W * S + (k + 1) % W
            start = (k + 1) // W * S
        size = sqrt(get_entry(s, here, one)[0])
        store(d, k * W, size)
        put(phase, k * S, turn)
        if k + 1 == n:
            store(e, k * W, zero)
            break
        w = a[k * row :]
        x = get_entry(w, here, one)
        u, v, g = reflector(x, size, tiny, small)
        turn = plus(none, turn, u)
        change = v[0] - x[0], v[1] - x[1]
        if one is not None:  # the columns that are done no longer count
            for q in range(start, after):
                put_entry(s, q, none, one)
                put_entry(w, q, none, one)
        square = zero
        for q in range(start, end, S):
            x = get(w, q)
            y = scale(g, inner(get(s, q), change, x))
            put(s, q, y)
            x = minus(x, v, y)
            put(w, q, x)
            square = add_square(square, x)
            put(t, q, none)
        size = sqrt(over_columns(square, one))
        store(e, k * W, size)
        u, v, g = reflector(get_entry(w, after, one), size, tiny, small)
        turn = inner(none, u, turn)
        put_entry(w, after, v, one)
        store(f, k * W, g)
        for i in range(k + 1, m, 2):
            a0 = a[i * row :]
            a1 = a0[row:]
            v0, v1 = get_entry(a0, here, one), get_entry(a1, here, one)
            g0, g1 = none, none
            for q in range(start, end, S):
                y, z = get(s, q), get(w, q)
                x = minus(get(a0, q), v0, y)
                put(a0, q, x)
                g0 = inner(g0, z, x)
                x = minus(get(a1, q), v1, y)
                put(a1, q, x)
                g1 = inner(g1, z, x)
            g0 = g * over_columns(g0[0], one), g * over_columns(g0[1], one)
            g1 = g * over_columns(g1[0], one), g * over_columns(g1[1], one)
            v0 = minus(get_entry(a0, after, one), g0, v)
            v1 = minus(get_entry(a1, after, one), g1, v)
            for q in range(start, end, S):
                y = get(w, q)
                x = minus(get(a0, q), g0, y)
                put(a0, q, x)
                z = inner(get(t, q), v0, x)
                x = minus(get(a1, q), g1, y)
                put(a1, q, x)
                put(t, q, inner(z, v1, x))
        s, t = t, s


@subroutine
def updated(x, v, y, r, w):
    """x - conj(v) y - conj(r) w"""
    return minus_inner(minus_inner(x, v, y), r, w)


@subroutine
def tridiagonalize(a, n, row, shift, d, e, f, phase, r, s):
    """Reduce Hermitian matrices G, upper triangles in a, one per lane.

    Sets d, e and `phase` so that

        (V1 D)^H G V1 D + shift = B^T B for the bidiagonal B of d and e,

    and leaves reflection k of V1 in row k of a as `bidiagonalize` does. It takes G to
    G - w^H r - r^H w. This update and s = w G for the next w are made in one pass over
    the triangle, two rows at a time. A row and a column of zeros follow it.
    """
    W = lanes(a)
    S = 2 * W
    zero, half, one = splat(load(a, 0), 0), splat(load(a, 0), 0.5), splat(load(a, 0), 1)
    none = zero, zero
    tiny, small = thresholds(a)
    for j in range(n + 1):
        put(r, j * S, none)
        put(a, j * row + n * S, none)
    turn = one, zero
    beside = zero
    for k in range(n):
        last = a[max(k - 1, 0) * row :]
        w = a[k * row :]
        v0, r0 = get(last, k * S), get(r, k * S)
        x = updated(get(w, k * S), v0, r0, r0, v0)
        pivot = sqrt(x[0] + shift - beside * beside)
        store(d, k * W, pivot)
        put(phase, k * S, turn)
        if k + 1 == n:
            store(e, k * W, zero)
            break
        square = zero
        for q in range(k * S + S, n * S, S):
            x = updated(get(w, q), v0, get(r, q), r0, get(last, q))
            put(w, q, x)
            put(s, q, none)
            square = add_square(square, x)
        size = sqrt(square)
        beside = size / pivot
        store(e, k * W, beside)
        u, v, g = reflector(get(w, k * S + S), size, tiny, small)
        turn = inner(none, scale(zero - one, u), turn)
        put(w, k * S + S, v)
        store(f, k * W, g)
        put(s, n * S, none)
        for i in range(k + 1, n, 2):
            q = i * S
            a0 = a[i * row :]
            a1 = a0[row:]
            v0, v1 = get(last, q), get(last, q + S)
            r0, r1 = get(r, q), get(r, q + S)
            w0, w1 = get(w, q), get(w, q + S)
            x = updated(get(a0, q), v0, r0, r0, v0)
            put(a0, q, x)
            g0 = scale(x[0], w0)
            x = updated(get(a1, q + S), v1, r1, r1, v1)
            put(a1, q + S, x)
            g1 = scale(x[0], w1)
            x = updated(get(a0, q + S), v0, r1, r0, v1)
            put(a0, q + S, x)
            g0 = inner(g0, x, w1)
            g1 = plus(g1, x, w0)
            for q in range(i * S + 2 * S, n * S, S):
                y, z, w2 = get(r, q), get(last, q), get(w, q)
                x = updated(get(a0, q), v0, y, r0, z)
                put(a0, q, x)
                g0 = inner(g0, x, w2)
                z2 = plus(get(s, q), w0, x)
                x = updated(get(a1, q), v1, y, r1, z)
                put(a1, q, x)
                g1 = inner(g1, x, w2)
                put(s, q, plus(z2, w1, x))
            q = i * S
            x = get(s, q)
            put(s, q, (x[0] + g0[0], x[1] + g0[1]))
            x = get(s, q + S)
            put(s, q + S, (x[0] + g1[0], x[1] + g1[1]))
        dot = zero
        for q in range(k * S + S, n * S, S):
            x, y = get(s, q), get(w, q)
            dot = dot + x[0] * y[0] + x[1] * y[1]
        dot = half * g * dot
        for q in range(k * S + S, n * S, S):
            x, y = get(s, q), get(w, q)
            put(r, q, (g * (x[0] - dot * y[0]), g * (x[1] - dot * y[1])))
