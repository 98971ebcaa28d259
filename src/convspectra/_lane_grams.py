"""Linear algebra on many small matrices at once, one matrix per lane of a vector.

LAPACK takes microseconds to begin, and works on short columns. Here the same steps are
taken for 8 or 16 matrices together. They are planar, (rows, columns, count) with real
and imaginary parts apart and the count last, and a block of them is copied to (rows,
columns, 2, lanes), so that every number of a textbook algorithm is a vector.
All functions let other threads run.
"""

import numpy as np

from ._simd import BYTES, jit, load, splat, sqrt, store, where_less

HALVINGS = 20  # of an interval, until an eigenvalue is known well enough


@jit
def gram(re, im, gram_re, gram_im):
    """Set the lower triangles of H H^H, row by row.

    H is (side, other, count), the triangles are (side * (side + 1) / 2, count). Counts
    are whole vectors, here and below.
    """
    side, other, count = re.shape
    lanes = BYTES // re.itemsize
    step = 2 * lanes
    row = other * step
    block = np.empty(side * row, re.dtype)
    from_re, from_im = re.ravel(), im.ravel()
    flat_re, flat_im = gram_re.ravel(), gram_im.ravel()
    zero = splat(load(from_re, 0), 0.0)
    for first in range(0, count, lanes):
        for i in range(side * other):
            store(block, i * step, load(from_re, i * count + first))
            store(block, i * step + lanes, load(from_im, i * count + first))
        for i in range(0, side, 2):
            # Two rows against two: each vector that is read is used twice.
            p0, p1 = i * row, min(i + 1, side - 1) * row
            for j in range(0, i + 2, 2):
                q0, q1 = j * row, min(j + 1, side - 1) * row
                r00, c00, r01, c01 = zero, zero, zero, zero
                r10, c10, r11, c11 = zero, zero, zero, zero
                for k in range(0, row, step):
                    ar, ai = load(block, p0 + k), load(block, p0 + k + lanes)
                    br, bi = load(block, p1 + k), load(block, p1 + k + lanes)
                    xr, xi = load(block, q0 + k), load(block, q0 + k + lanes)
                    yr, yi = load(block, q1 + k), load(block, q1 + k + lanes)
                    r00, c00 = r00 + ar * xr + ai * xi, c00 + ai * xr - ar * xi
                    r01, c01 = r01 + ar * yr + ai * yi, c01 + ai * yr - ar * yi
                    r10, c10 = r10 + br * xr + bi * xi, c10 + bi * xr - br * xi
                    r11, c11 = r11 + br * yr + bi * yi, c11 + bi * yr - br * yi
                at = (i * (i + 1) // 2 + j) * count + first
                store(flat_re, at, r00)
                store(flat_im, at, c00)
                if j < i:
                    store(flat_re, at + count, r01)
                    store(flat_im, at + count, c01)
                if i + 1 < side:
                    at += (i + 1) * count
                    store(flat_re, at, r10)
                    store(flat_im, at, c10)
                    store(flat_re, at + count, r11)
                    store(flat_im, at + count, c11)


@jit
def pivot(a, p, last, square, lanes):
    """The pivot that row p of the triangle has left after its first `last` numbers."""
    d = load(a, p + last) + square
    for k in range(p, p + last, lanes):
        x = load(a, k)
        d = d - x * x
    return d


@jit
def reduced(r, c, xr, xi, ur, ui):
    """x conj(u) less."""
    return r - xr * ur - xi * ui, c - xi * ur + xr * ui


@jit
def definite(gram_re, gram_im, side, squares, found):
    """Whether squares - G has a Cholesky factor, for lower triangles G."""
    count = gram_re.shape[1]
    lanes = BYTES // gram_re.itemsize
    step = 2 * lanes
    entries = side * (side + 1) // 2
    a = np.empty((entries + 1) * step, gram_re.dtype)
    flat_re, flat_im = gram_re.ravel(), gram_im.ravel()
    zero = splat(load(flat_re, 0), 0.0)
    one = splat(zero, 1.0)
    good = np.empty(lanes, gram_re.dtype)
    for first in range(0, count, lanes):
        for t in range(entries):
            store(a, t * step, zero - load(flat_re, t * count + first))
            store(a, t * step + lanes, zero - load(flat_im, t * count + first))
        square, all_good = load(squares, first), one
        for j in range(0, side, 2):  # two columns at a time
            p, last = j * (j + 1) // 2 * step, j * step
            q = p + (j + 1) * step
            d = pivot(a, p, last, square, lanes)
            all_good = where_less(zero, d, all_good, zero)
            inverse = one / sqrt(where_less(zero, d, d, one))
            if j + 1 == side:
                break
            br, bi = load(a, q + last), load(a, q + last + lanes)
            for k in range(0, last, step):
                ur, ui = load(a, p + k), load(a, p + k + lanes)
                xr, xi = load(a, q + k), load(a, q + k + lanes)
                br, bi = reduced(br, bi, xr, xi, ur, ui)
            br, bi = br * inverse, bi * inverse
            store(a, q + last, br)
            store(a, q + last + lanes, bi)
            d = pivot(a, q, last + step, square, lanes)
            all_good = where_less(zero, d, all_good, zero)
            second = one / sqrt(where_less(zero, d, d, one))
            for i in range(j + 2, side, 4):
                # Four rows at a time; the last one again where fewer are left.
                i1, i2, i3 = min(i + 1, side - 1), min(i + 2, side - 1), side - 1
                i3 = min(i + 3, i3)
                p0, p1 = i * (i + 1) // 2 * step, i1 * (i1 + 1) // 2 * step
                p2, p3 = i2 * (i2 + 1) // 2 * step, i3 * (i3 + 1) // 2 * step
                r0, c0 = load(a, p0 + last), load(a, p0 + last + lanes)
                r1, c1 = load(a, p1 + last), load(a, p1 + last + lanes)
                r2, c2 = load(a, p2 + last), load(a, p2 + last + lanes)
                r3, c3 = load(a, p3 + last), load(a, p3 + last + lanes)
                next_ = last + step
                s0, t0 = load(a, p0 + next_), load(a, p0 + next_ + lanes)
                s1, t1 = load(a, p1 + next_), load(a, p1 + next_ + lanes)
                s2, t2 = load(a, p2 + next_), load(a, p2 + next_ + lanes)
                s3, t3 = load(a, p3 + next_), load(a, p3 + next_ + lanes)
                for k in range(0, last, step):
                    ur, ui = load(a, p + k), load(a, p + k + lanes)
                    vr, vi = load(a, q + k), load(a, q + k + lanes)
                    xr, xi = load(a, p0 + k), load(a, p0 + k + lanes)
                    r0, c0 = reduced(r0, c0, xr, xi, ur, ui)
                    s0, t0 = reduced(s0, t0, xr, xi, vr, vi)
                    xr, xi = load(a, p1 + k), load(a, p1 + k + lanes)
                    r1, c1 = reduced(r1, c1, xr, xi, ur, ui)
                    s1, t1 = reduced(s1, t1, xr, xi, vr, vi)
                    xr, xi = load(a, p2 + k), load(a, p2 + k + lanes)
                    r2, c2 = reduced(r2, c2, xr, xi, ur, ui)
                    s2, t2 = reduced(s2, t2, xr, xi, vr, vi)
                    xr, xi = load(a, p3 + k), load(a, p3 + k + lanes)
                    r3, c3 = reduced(r3, c3, xr, xi, ur, ui)
                    s3, t3 = reduced(s3, t3, xr, xi, vr, vi)
                for at, xr, xi, yr, yi in (
                    (p0, r0, c0, s0, t0),
                    (p1, r1, c1, s1, t1),
                    (p2, r2, c2, s2, t2),
                    (p3, r3, c3, s3, t3),
                ):
                    xr, xi = xr * inverse, xi * inverse
                    store(a, at + last, xr)
                    store(a, at + last + lanes, xi)
                    yr, yi = reduced(yr, yi, xr, xi, br, bi)
                    store(a, at + next_, yr * second)
                    store(a, at + next_ + lanes, yi * second)
        store(good, 0, all_good)
        for lane in range(lanes):
            found[first + lane] = good[lane] > 0


@jit
def multiply(a, v, u, side, lanes):
    """Set u to the product of a Hermitian matrix, its lower triangle, with v."""
    step = 2 * lanes
    for i in range(side):
        at = i * (i + 1) // 2 * step
        vr, vi = load(v, i * step), load(v, i * step + lanes)
        d = load(a, at + i * step)
        r, c = d * vr, d * vi
        for k in range(0, i * step, step):
            ar, ai = load(a, at + k), load(a, at + k + lanes)
            xr, xi = load(v, k), load(v, k + lanes)
            r, c = r + ar * xr - ai * xi, c + ar * xi + ai * xr
            store(u, k, load(u, k) + ar * vr + ai * vi)
            store(u, k + lanes, load(u, k + lanes) + ar * vi - ai * vr)
        store(u, i * step, r)
        store(u, i * step + lanes, c)


@jit
def lanczos(gram_re, gram_im, side, x, steps, found):
    """Estimate the top eigenvalue of G from below, by so many steps from x."""
    count = gram_re.shape[1]
    lanes = BYTES // gram_re.itemsize
    step = 2 * lanes
    entries = side * (side + 1) // 2
    a = np.empty(entries * step, gram_re.dtype)
    v, u, before = np.empty((3, side * step), gram_re.dtype)
    diagonal, squares = np.empty((2, steps * lanes), gram_re.dtype)
    flat_re, flat_im = gram_re.ravel(), gram_im.ravel()
    zero = splat(load(flat_re, 0), 0.0)
    half, one = splat(zero, 0.5), splat(zero, 1.0)
    for first in range(0, count, lanes):
        for t in range(entries):
            store(a, t * step, load(flat_re, t * count + first))
            store(a, t * step + lanes, load(flat_im, t * count + first))
        for i in range(side):
            store(v, i * step, splat(zero, x[i].real))
            store(v, i * step + lanes, splat(zero, x[i].imag))
        before[:] = 0
        beta, above = zero, zero
        for n in range(steps):
            multiply(a, v, u, side, lanes)
            alpha = zero
            for k in range(0, side * step, lanes):
                alpha = alpha + load(u, k) * load(v, k)
            square = zero
            for k in range(0, side * step, lanes):
                w = load(u, k) - alpha * load(v, k) - beta * load(before, k)
                store(u, k, w)
                square = square + w * w
            store(diagonal, n * lanes, alpha)
            store(squares, n * lanes, square)
            last, beta = beta, sqrt(square)
            reach = alpha + beta + last  # no eigenvalue is beyond the largest of these
            above = where_less(above, reach, reach, above)
            inverse = where_less(zero, square, one / beta, zero)
            v, before = before, v
            for k in range(0, side * step, lanes):
                store(v, k, load(u, k) * inverse)
        below = zero
        for _ in range(HALVINGS):
            middle = half * (below + above)
            q = middle - load(diagonal, 0)
            least = q
            for n in range(1, steps):
                rest = load(squares, (n - 1) * lanes) / q
                q = middle - load(diagonal, n * lanes) - rest
                least = where_less(q, least, q, least)
            # All pivots are positive: no eigenvalue is above the middle.
            above = where_less(zero, least, middle, above)
            below = where_less(zero, least, below, middle)
        store(found, first, below)
