"""Complex matrices in the lanes of vectors, brought to bidiagonal form.

Either the matrix Y itself, by reflections from both sides (`bidiagonalize`), or R with
R^H R = Y^H Y + shift, by reflections of Y^H Y (`tridiagonalize`), which takes half of
the steps and of the memory. R has the right singular vectors of Y.

A block of W matrices, one per lane, lies in memory as rows of complex entries, an entry
being S = 2 W numbers: W real parts, then W imaginary parts. The lanes never mix.
"""

import numpy as np

from .simd import jit, lanes, load, splat, sqrt, store, where_positive


@jit
def get(a, p):
    return load(a, p), load(a, p + lanes(a))


@jit
def put(a, p, x):
    store(a, p, x[0])
    store(a, p + lanes(a), x[1])


@jit
def scale(f, x):
    return f * x[0], f * x[1]


@jit
def plus(a, x, y):
    """a + x y"""
    return a[0] + x[0] * y[0] - x[1] * y[1], a[1] + x[0] * y[1] + x[1] * y[0]


@jit
def minus(a, x, y):
    """a - x y"""
    return a[0] - x[0] * y[0] + x[1] * y[1], a[1] - x[0] * y[1] - x[1] * y[0]


@jit
def inner(a, x, y):
    """a + conj(x) y"""
    return a[0] + x[0] * y[0] + x[1] * y[1], a[1] + x[0] * y[1] - x[1] * y[0]


@jit
def updated(x, v, y, r, w):
    """x - conj(v) y - conj(r) w"""
    re = x[0] - v[0] * y[0] - v[1] * y[1] - r[0] * w[0] - r[1] * w[1]
    im = x[1] - v[0] * y[1] + v[1] * y[0] - r[0] * w[1] + r[1] * w[0]
    return re, im


@jit
def thresholds(a):
    """For entries at most 1: below the first a square loses digits to underflow; below
    the second, which is still negligible, a norm may have such squares in it"""
    info = np.finfo(a.dtype)
    like = load(a, 0)
    tiny, small = np.sqrt(info.tiny / info.eps), np.sqrt(info.tiny) / info.eps
    return splat(like, tiny), splat(like, small)


@jit
def reflector(x, size, tiny, small):
    """The phase u of x, and v and f such that I - f (v, y) (v, y)^H takes a column
    (x, y) of norm `size` to (-u size, 0), or is I if that is small"""
    zero, one = splat(size, 0), splat(size, 1)
    top = sqrt(x[0] * x[0] + x[1] * x[1])
    some = top - tiny
    u = where_positive(some, x[0] / top, one), where_positive(some, x[1] / top, zero)
    top = size + where_positive(some, top, zero)
    return u, scale(top, u), where_positive(size - small, one / (size * top), zero)


@jit
def bidiagonalize(a, m, n, row, d, e, f, phase, s, t):
    """Sets d, e to the sizes of the diagonal and of what is above, and `phase` so that

        (reflections from the left) Y V1 D = (phases) (bidiagonal of d and e),

    and leaves reflection k of V1, I - f[k] w^H w, in row k of a from column k + 1.
    Both updates of a row and its share in the next s, the products of the next column
    with the others, are made in one pass over the matrix.
    """
    W = lanes(a)
    S = 2 * W
    zero, one = splat(load(a, 0), 0), splat(load(a, 0), 1)
    for j in range(n):
        put(s, j * S, (zero, zero))
    for i in range(m):
        for j in range(n):
            x = get(a, i * row + j * S)
            put(s, j * S, inner(get(s, j * S), get(a, i * row), x))
    tiny, small = thresholds(a)
    turn = one, zero
    for k in range(n):
        size = sqrt(load(s, k * S))
        store(d, k * W, size)
        put(phase, k * S, turn)
        if k + 1 == n:
            store(e, k * W, zero)
            break
        x = get(a, k * row + k * S)
        u, v, g = reflector(x, size, tiny, small)
        turn = plus((zero, zero), turn, u)
        change = v[0] - x[0], v[1] - x[1]
        size = zero
        for j in range(k + 1, n):
            q = j * S
            x = get(a, k * row + q)
            y = scale(g, inner(get(s, q), change, x))
            put(s, q, y)
            x = minus(x, v, y)
            put(a, k * row + q, x)
            size = size + x[0] * x[0] + x[1] * x[1]
            put(t, q, (zero, zero))
        size = sqrt(size)
        store(e, k * W, size)
        w = a[k * row :]
        u, v, g = reflector(get(w, k * S + S), size, tiny, small)
        turn = inner((zero, zero), u, turn)
        put(w, k * S + S, v)
        store(f, k * W, g)
        for i in range(k + 1, m, 2):
            a0 = a[i * row :]
            a1 = a0[row:]
            v0 = get(a0, k * S)
            v1 = get(a1, k * S)
            g0 = zero, zero
            g1 = zero, zero
            for j in range(k + 1, n):
                q = j * S
                y, z = get(s, q), get(w, q)
                x = minus(get(a0, q), v0, y)
                put(a0, q, x)
                g0 = inner(g0, z, x)
                x = minus(get(a1, q), v1, y)
                put(a1, q, x)
                g1 = inner(g1, z, x)
            g0 = scale(g, g0)
            g1 = scale(g, g1)
            q = k * S + S
            v0 = minus(get(a0, q), g0, get(w, q))
            v1 = minus(get(a1, q), g1, get(w, q))
            for j in range(k + 1, n):
                q = j * S
                y = get(w, q)
                x = minus(get(a0, q), g0, y)
                put(a0, q, x)
                z = inner(get(t, q), v0, x)
                x = minus(get(a1, q), g1, y)
                put(a1, q, x)
                put(t, q, inner(z, v1, x))
        s, t = t, s


@jit
def tridiagonalize(a, n, row, shift, d, e, f, phase, r, s):
    """For a Hermitian matrix G, whose upper triangle is in a, sets d, e and `phase` so
    that

        (V1 D)^H G V1 D + shift = B^T B for the bidiagonal B of d and e,

    and leaves reflection k of V1 in row k of a as `bidiagonalize` does. It takes G to
    G - w^H r - r^H w. This update and s = w G for the next w are made in one pass over
    the triangle, two rows at a time; a row and a column of zeros follow it.
    """
    W = lanes(a)
    S = 2 * W
    zero, half, one = splat(load(a, 0), 0), splat(load(a, 0), 0.5), splat(load(a, 0), 1)
    tiny, small = thresholds(a)
    for j in range(n + 1):
        put(r, j * S, (zero, zero))
        put(a, j * row + n * S, (zero, zero))
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
        size = zero
        for q in range(k * S + S, n * S, S):
            x = updated(get(w, q), v0, get(r, q), r0, get(last, q))
            put(w, q, x)
            put(s, q, (zero, zero))
            size = size + x[0] * x[0] + x[1] * x[1]
        size = sqrt(size)
        beside = size / pivot
        store(e, k * W, beside)
        u, v, g = reflector(get(w, k * S + S), size, tiny, small)
        turn = inner((zero, zero), scale(zero - one, u), turn)
        put(w, k * S + S, v)
        store(f, k * W, g)
        put(s, n * S, (zero, zero))
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
