"""Cholesky factors and Lanczos for many small Hermitian matrices, one per lane.

Matrices are lower triangles row by row, (numbers, count) with the count last and real
and imaginary parts apart. A vector's worth of them is copied to (numbers, 2, lanes), so
that every number of a textbook algorithm is a vector.
All functions let other threads run.
"""

from .simd import (
    aligned,
    jit,
    lanes,
    load,
    load_first,
    splat,
    sqrt,
    store,
    store_first,
    where_less,
)

HALVINGS = 20  # of an interval, until an eigenvalue is known well enough


@jit
def take(re, im, first, count, a):
    """Copy `count` triangles, from number `first` on, to a; other lanes are zero."""
    step = lanes(re)
    number, flat_re, flat_im = re.shape[1], re.ravel(), im.ravel()
    for t in range(len(re)):
        at = t * number + first
        store(a, 2 * t * step, load_first(flat_re, at, count))
        store(a, 2 * t * step + step, load_first(flat_im, at, count))


@jit
def minus(r, c, xr, xi, ur, ui):
    """r + i c, less x conj(u)."""
    return r - xr * ur - xi * ui, c - xi * ur + xr * ui


@jit
def pivot(a, p, last, square):
    """What row p of square - G has left on the diagonal, after `last` numbers of L."""
    step = lanes(a)
    d = square - load(a, p + last)
    for k in range(p, p + last, step):
        x = load(a, k)
        d = d - x * x
    return d


@jit
def definite_triangles(re, im, side, squares, found):
    """Set found to 1 where square - G has a Cholesky factor, else to 0.

    Parameters
    ----------
    re, im : array, shape (side * (side + 1) / 2, count)
    side : int
    squares, found : array, shape (count,)
    """
    W = lanes(re)
    a = aligned(2 * len(re) * W, re)
    for first in range(0, re.shape[1], W):
        count = min(W, re.shape[1] - first)
        take(re, im, first, count, a)
        good = factorize(a, side, load_first(squares, first, count))
        store_first(found, first, good, count)


@jit
def definite_products(re, im, squares, found):
    """Set found to 1 where square - H H^H has a Cholesky factor, else to 0.

    Parameters
    ----------
    re, im : array, shape (side, columns, count)
        Of the matrices H.
    squares, found : array, shape (count,)
    """
    side, columns, number = re.shape
    W = lanes(re)
    h = aligned(2 * side * columns * W, re)
    a = aligned(side * (side + 1) * W, re)
    flat_re, flat_im = re.reshape(-1, number), im.reshape(-1, number)
    for first in range(0, number, W):
        count = min(W, number - first)
        take(flat_re, flat_im, first, count, h)
        products(h, side, columns, a)
        good = factorize(a, side, load_first(squares, first, count))
        store_first(found, first, good, count)


@jit
def products(h, side, columns, a):
    """Set a to the triangles of H H^H."""
    W = lanes(h)
    S = 2 * W
    row = columns * S
    zero = splat(load(h, 0), 0.0)
    for i in range(0, side, 2):  # two rows at a time; the last one again if it is alone
        i1 = min(i + 1, side - 1)
        p, p1 = i * row, i1 * row
        at, at1 = i * (i + 1) // 2 * S, i1 * (i1 + 1) // 2 * S
        for j in range(0, i1 + 1, 2):
            j1 = min(j + 1, side - 1)
            q, q1 = j * row, j1 * row
            r0, c0, s0, t0 = zero, zero, zero, zero
            r1, c1, s1, t1 = zero, zero, zero, zero
            for k in range(0, row, S):
                ur, ui = load(h, q + k), load(h, q + k + W)
                vr, vi = load(h, q1 + k), load(h, q1 + k + W)
                xr, xi = load(h, p + k), load(h, p + k + W)
                r0, c0 = minus(r0, c0, xr, xi, ur, ui)
                s0, t0 = minus(s0, t0, xr, xi, vr, vi)
                xr, xi = load(h, p1 + k), load(h, p1 + k + W)
                r1, c1 = minus(r1, c1, xr, xi, ur, ui)
                s1, t1 = minus(s1, t1, xr, xi, vr, vi)
            store(a, at + j * S, zero - r0)
            store(a, at + j * S + W, zero - c0)
            store(a, at1 + j * S, zero - r1)
            store(a, at1 + j * S + W, zero - c1)
            if j1 <= i:
                store(a, at + j1 * S, zero - s0)
                store(a, at + j1 * S + W, zero - t0)
            store(a, at1 + j1 * S, zero - s1)
            store(a, at1 + j1 * S + W, zero - t1)


@jit
def factorize(a, side, square):
    """Set a to the factors of square - G; 1 where there is one, else 0."""
    W = lanes(a)
    S = 2 * W
    zero = splat(square, 0.0)
    one = splat(square, 1.0)
    good = one
    for j in range(0, side, 2):  # two columns at a time
        p, last = j * (j + 1) // 2 * S, j * S
        q = p + (j + 1) * S
        d = pivot(a, p, last, square)
        good = where_less(zero, d, good, zero)
        inverse = one / sqrt(where_less(zero, d, d, one))
        if j + 1 == side:
            break
        br, bi = zero - load(a, q + last), zero - load(a, q + last + W)
        for k in range(0, last, S):
            ur, ui = load(a, p + k), load(a, p + k + W)
            xr, xi = load(a, q + k), load(a, q + k + W)
            br, bi = minus(br, bi, xr, xi, ur, ui)
        br, bi = br * inverse, bi * inverse
        store(a, q + last, br)
        store(a, q + last + W, bi)
        d = pivot(a, q, last + S, square)
        good = where_less(zero, d, good, zero)
        second = one / sqrt(where_less(zero, d, d, one))
        for i in range(j + 2, side, 4):
            # Four rows at a time; the last one again where fewer are left.
            i1, i2 = min(i + 1, side - 1), min(i + 2, side - 1)
            i3 = min(i + 3, side - 1)
            p0, p1 = i * (i + 1) // 2 * S, i1 * (i1 + 1) // 2 * S
            p2, p3 = i2 * (i2 + 1) // 2 * S, i3 * (i3 + 1) // 2 * S
            r0, c0, s0, t0 = two(a, p0 + last)
            r1, c1, s1, t1 = two(a, p1 + last)
            r2, c2, s2, t2 = two(a, p2 + last)
            r3, c3, s3, t3 = two(a, p3 + last)
            for k in range(0, last, S):
                ur, ui = load(a, p + k), load(a, p + k + W)
                vr, vi = load(a, q + k), load(a, q + k + W)
                xr, xi = load(a, p0 + k), load(a, p0 + k + W)
                r0, c0 = minus(r0, c0, xr, xi, ur, ui)
                s0, t0 = minus(s0, t0, xr, xi, vr, vi)
                xr, xi = load(a, p1 + k), load(a, p1 + k + W)
                r1, c1 = minus(r1, c1, xr, xi, ur, ui)
                s1, t1 = minus(s1, t1, xr, xi, vr, vi)
                xr, xi = load(a, p2 + k), load(a, p2 + k + W)
                r2, c2 = minus(r2, c2, xr, xi, ur, ui)
                s2, t2 = minus(s2, t2, xr, xi, vr, vi)
                xr, xi = load(a, p3 + k), load(a, p3 + k + W)
                r3, c3 = minus(r3, c3, xr, xi, ur, ui)
                s3, t3 = minus(s3, t3, xr, xi, vr, vi)
            for at, xr, xi, yr, yi in (
                (p0 + last, r0, c0, s0, t0),
                (p1 + last, r1, c1, s1, t1),
                (p2 + last, r2, c2, s2, t2),
                (p3 + last, r3, c3, s3, t3),
            ):
                xr, xi = xr * inverse, xi * inverse
                store(a, at, xr)
                store(a, at + W, xi)
                yr, yi = minus(yr, yi, xr, xi, br, bi)
                store(a, at + S, yr * second)
                store(a, at + S + W, yi * second)
    return good


@jit
def two(a, p):
    """The negatives of two numbers next to each other."""
    W = lanes(a)
    zero = splat(load(a, 0), 0.0)
    return (
        zero - load(a, p),
        zero - load(a, p + W),
        zero - load(a, p + 2 * W),
        zero - load(a, p + 3 * W),
    )


@jit
def multiply(a, v, u, side):
    """Set u to the product of a matrix with v."""
    W = lanes(a)
    S = 2 * W
    for i in range(side):
        at = i * (i + 1) // 2 * S
        vr, vi = load(v, i * S), load(v, i * S + W)
        d = load(a, at + i * S)
        r, c = d * vr, d * vi
        for k in range(0, i * S, S):
            ar, ai = load(a, at + k), load(a, at + k + W)
            xr, xi = load(v, k), load(v, k + W)
            r, c = r + ar * xr - ai * xi, c + ar * xi + ai * xr
            store(u, k, load(u, k) + ar * vr + ai * vi)
            store(u, k + W, load(u, k + W) + ar * vi - ai * vr)
        store(u, i * S, r)
        store(u, i * S + W, c)


@jit
def top_triangles(re, im, start, steps, found):
    """Estimate the top eigenvalues from below, by so many steps of Lanczos.

    Parameters
    ----------
    re, im : array, shape (side * (side + 1) / 2, count)
    start : array, shape (2, side)
        Real and imaginary parts of a unit vector.
    steps : int
    found : array, shape (count,)
    """
    side = start.shape[1]
    W = lanes(re)
    S = 2 * W
    a = aligned(len(re) * S, re)
    v, u, before = aligned(side * S, re), aligned(side * S, re), aligned(side * S, re)
    diagonal, beside = aligned(steps * W, re), aligned(steps * W, re)
    zero = splat(load(a, 0), 0.0)
    half, one = splat(zero, 0.5), splat(zero, 1.0)
    for first in range(0, re.shape[1], W):
        count = min(W, re.shape[1] - first)
        take(re, im, first, count, a)
        for i in range(side):
            store(v, i * S, splat(zero, start[0, i]))
            store(v, i * S + W, splat(zero, start[1, i]))
        before[:] = 0
        beta, above = zero, zero
        for n in range(steps):
            multiply(a, v, u, side)
            alpha = zero
            for k in range(0, side * S, W):
                alpha = alpha + load(u, k) * load(v, k)
            square = zero
            for k in range(0, side * S, W):
                x = load(u, k) - alpha * load(v, k) - beta * load(before, k)
                store(u, k, x)
                square = square + x * x
            store(diagonal, n * W, alpha)
            store(beside, n * W, square)
            last, beta = beta, sqrt(square)
            reach = alpha + beta + last  # no eigenvalue is beyond the largest of these
            above = where_less(above, reach, reach, above)
            inverse = where_less(zero, square, one / beta, zero)
            v, before = before, v
            for k in range(0, side * S, W):
                store(v, k, load(u, k) * inverse)
        below = zero
        for _ in range(HALVINGS):
            middle = half * (below + above)
            d = middle - load(diagonal, 0)
            least = d
            for n in range(1, steps):
                rest = load(beside, (n - 1) * W) / d
                d = middle - load(diagonal, n * W) - rest
                least = where_less(d, least, d, least)
            # All pivots are positive: no eigenvalue is above the middle.
            above = where_less(zero, least, middle, above)
            below = where_less(zero, least, below, middle)
        store_first(found, first, below, count)
