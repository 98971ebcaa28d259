"""Bidiagonal matrices to diagonal ones by implicit QR, one per lane, with vectors.

The rotations from the right are recorded, so that singular vectors of some values can
be made from them afterwards. The lanes share the loops, each with a block of its own,
until all have converged.
"""

import numpy as np

from .bidiagonal import thresholds
from .jit import subroutine
from .simd import (
    absolute,
    highest,
    lanes,
    load,
    maximum,
    splat,
    sqrt,
    store,
    where_positive,
)
from .split_complex import get, put

SWEEPS = 10  # of QR at most, per column; two are usual
TOGETHER = 16  # sweeps that are applied together: their rotations stay in the cache


@subroutine
def rotation(f, g, tiny):
    """The rotation (c, s) that takes (f, g) to (r, 0), and r.

    It is the identity if g is tiny, so that lanes without work stay exactly as they
    are.
    """
    some = absolute(g) - tiny
    square = f * f + g * g
    r = sqrt(square)
    inverse = r * (splat(f, 1) / square)  # the root and the division run together
    c = where_positive(some, f * inverse, splat(f, 1))
    s = where_positive(some, g * inverse, splat(f, 0))
    return c, s, where_positive(some, r, f)


@subroutine
def diagonalize(d, e, n, rotations, spans):
    """Overwrites d, the diagonal of a bidiagonal matrix, by its singular values up to
    signs, and e, the entries beside it, by zeros. Returns the number of sweeps.

    `rotations` gets those from the right, n for every sweep, of which the ones from
    spans[sweep, 0] to spans[sweep, 1] are set. There are at most len(spans) sweeps; if
    these do not suffice, values are off by at most the size of what remains in e."""
    W = lanes(d)
    info = np.finfo(d.dtype)
    zero, half, one = splat(load(d, 0), 0), splat(load(d, 0), 0.5), splat(load(d, 0), 1)
    tiny, _ = thresholds(d)
    negligible = splat(zero, info.eps**2)
    x, y = zero, zero
    for k in range(n):
        x = maximum(load(d, k * W), x)
        y = maximum(load(e, k * W), y)
    tolerance = splat(zero, info.eps) * (x + y)
    stop = n - 1
    last, stays = zero, zero
    for sweep in range(len(spans)):
        # Each lane works on its last block without zeros in e, rows low to high, where
        # d begins with d0 and ends with d1, d2, and e begins with e0 and ends with e1,
        # e2; `least` is the smallest |d| there.
        low, high = splat(zero, n), zero
        d0, d1, d2, e0, e1, e2 = zero, zero, zero, zero, zero, zero
        least, inside, before = zero, zero, zero
        x = load(d, 0)
        for k in range(stop):
            y = load(e, k * W)
            more = absolute(y) - tolerance
            y = where_positive(more, y, zero)
            store(e, k * W, y)
            begins = where_positive(more, one, zero) - inside
            inside = where_positive(more, one, zero)
            low = where_positive(begins, splat(zero, k), low)
            high = where_positive(more, splat(zero, k + 1), high)
            d0 = where_positive(begins, x, d0)
            e0 = where_positive(begins, y, e0)
            least = where_positive(begins, absolute(x), least)
            d1 = where_positive(more, x, d1)
            e1 = where_positive(more, before, e1)
            e2 = where_positive(more, y, e2)
            x = load(d, k * W + W)
            d2 = where_positive(more, x, d2)
            nearer = where_positive(more, least - absolute(x), zero)
            least = where_positive(nearer, absolute(x), least)
            before = y
        stop = int(highest(high))
        if stop == 0:
            return sweep
        start = int(-highest(zero - low))
        spans[sweep, 0] = start
        spans[sweep, 1] = stop
        # Wilkinson's shift; 0 if d has a zero, which then goes to the end, and 0 at the
        # fourth attempt: where d and e are both small, a shift may be lost to rounding.
        corner = d2 * d2 + e2 * e2
        gap = half * (d1 * d1 + e1 * e1 - corner)
        side = d1 * e2
        shift = side * side / (absolute(gap) + sqrt(gap * gap + side * side))
        shift = where_positive(absolute(side), shift, zero)
        shift = corner - where_positive(gap, shift, zero - shift)
        stays = where_positive(half - absolute(high - last), stays + one, zero)
        fourth = stays - splat(zero, 3.5)
        stays = where_positive(fourth, zero, stays)
        last = high
        f0 = where_positive(least - tolerance, d0 - shift / d0, d0)
        f0 = where_positive(fourth, d0, f0)
        f, g = one, zero
        for k in range(start, stop):
            begins = half - absolute(low - splat(zero, k))
            f = where_positive(begins, f0, f)
            g = where_positive(begins, e0, g)
            c, s, r = rotation(f, g, tiny)
            if k > start:
                store(e, k * W - W, where_positive(begins, zero, r))
            p = (sweep * n + k) * 2 * W
            put(rotations, p, (c, where_positive(absolute(s) - negligible, s, zero)))
            x, y = load(d, k * W), load(e, k * W)
            f = c * x + s * y
            y = c * y - s * x
            x = load(d, k * W + W)
            g = s * x
            x = c * x
            c, s, r = rotation(f, g, tiny)
            store(d, k * W, r)
            f = c * y + s * x
            store(d, k * W + W, c * x - s * y)
            if k + 1 < stop:
                y = load(e, k * W + W)
                g = s * y
                store(e, k * W + W, c * y)
        store(e, stop * W - W, f)
    return len(spans)


@subroutine
def rotate(z, q, c, s, y):
    x = load(z, q)
    store(z, q + lanes(z), s * x + c * y)
    return c * x - s * y


@subroutine
def unrotate(z, row, count, n, rotations, spans, sweeps):
    """Apply the rotations of `diagonalize`, last one first, to `count` rows of z.

    These are real: one vector after the other.
    """
    W = lanes(z)
    for after in range(sweeps, 0, -TOGETHER):
        for j in range(0, count, 4):
            z0 = z[j * row :]
            z1, z2, z3 = z0[row:], z0[2 * row :], z0[3 * row :]
            for sweep in range(after - 1, max(after - TOGETHER, 0) - 1, -1):
                start, stop = spans[sweep]
                q = stop * W
                y0, y1, y2, y3 = load(z0, q), load(z1, q), load(z2, q), load(z3, q)
                for k in range(stop - 1, start - 1, -1):
                    c, s = get(rotations, (sweep * n + k) * 2 * W)
                    q = k * W
                    y0 = rotate(z0, q, c, s, y0)
                    y1 = rotate(z1, q, c, s, y1)
                    y2 = rotate(z2, q, c, s, y2)
                    y3 = rotate(z3, q, c, s, y3)
                q = start * W
                store(z0, q, y0)
                store(z1, q, y1)
                store(z2, q, y2)
                store(z3, q, y3)
