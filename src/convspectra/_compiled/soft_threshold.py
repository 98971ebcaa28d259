"""The part of many small complex matrices that exceeds a bound on singular values.

With Y = U S V^H the excess is U max(S - c, 0) V^H = Y V h(S) V^H, where h(s) =
max(1 - c / s, 0), so it takes the right singular vectors of the values above c only:

1. reflections take Y or Y^H Y to a real bidiagonal matrix (see `bidiagonal`); they
   give V = V1 D X, where V1 are the reflections from the right, D phases and X the
   right singular vectors of that matrix;
2. `diagonalize` it by implicit QR with shifts, recording its rotations;
3. apply the rotations (`unrotate`), the phases and the reflections (`unreflect`) to
   the unit vectors of the values above c, last one first;
4. two products.

By Y the error is a few n eps |Y| for every c. By Y^H Y, which is faster, it grows by
(|Y| / c)^2 at most, as values below c do not matter: this way is taken where that is
less than 64 in every lane, even with the Frobenius norm of Y^H Y for |Y|^2. Nothing but
this choice depends on the other lanes.

Every operation works on a vector of W matrices side by side, one per lane (16 in single
precision, 8 in double), as `bidiagonal` has them. Rows are padded with zeros to a
multiple of four entries, one of them at least, and there is a row of zeros below Y,
because loops are unrolled by four columns or two rows. The lanes never mix. They
share the loops of step 2, each with a block of its own until all have converged.
"""

import numpy as np

from .bidiagonal import (
    bidiagonalize,
    get,
    inner,
    minus,
    put,
    scale,
    thresholds,
    tridiagonalize,
)
from .simd import (
    absolute,
    aligned,
    highest,
    jit,
    lanes,
    load,
    load_first,
    maximum,
    splat,
    sqrt,
    store,
    store_first,
    where_positive,
)

SWEEPS = 10  # of QR at most, per column; two are usual
TOGETHER = 16  # sweeps whose rotations stay in the cache
DEPTH, ROWS = 36, 24  # of factors that do; ROWS is even
FAR = 64.0  # the Frobenius norm of Y^H Y / c^2 from which on Y itself is taken


@jit
def rotation(f, g, tiny):
    """The rotation (c, s) that takes (f, g) to (r, 0), and r. It is none at all if g is
    tiny, so that lanes without work stay exactly as they are."""
    some = absolute(g) - tiny
    square = f * f + g * g
    r = sqrt(square)
    inverse = r * (splat(f, 1) / square)  # without waiting for r to divide
    c = where_positive(some, f * inverse, splat(f, 1))
    s = where_positive(some, g * inverse, splat(f, 0))
    return c, s, where_positive(some, r, f)


@jit
def diagonalize(d, e, n, turns, spans):
    """Takes the bidiagonal matrix of d and e to the diagonal one of its singular values
    up to signs, in d. The rotations from the right go to `turns`, n for every sweep,
    of which those from spans[sweep, 0] to spans[sweep, 1] are set. Returns the number
    of sweeps. Should they not suffice, the error is what is left in e."""
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
        # each lane works on its last block without zeros in e, rows low to high, where
        # d begins with d0 and ends with d1, d2, e begins with e0 and ends with e1, e2;
        # `least` is the smallest |d| there
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
        # Wilkinson's shift. None if d has a zero, which then goes to the end, and none
        # at the fourth attempt: where d and e are both small a shift may get lost.
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
            put(turns, p, (c, where_positive(absolute(s) - negligible, s, zero)))
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


@jit
def rotate(z, q, c, s, y):
    x = load(z, q)
    store(z, q + lanes(z), s * x + c * y)
    return c * x - s * y


@jit
def unrotate(z, row, count, n, turns, spans, sweeps):
    """Applies the rotations of `diagonalize`, last one first, to the first `count` rows
    of z, which are real so far: numbers of the lanes, one after the other"""
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
                    c, s = get(turns, (sweep * n + k) * 2 * W)
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


@jit
def unreflect(z, row, count, n, a, f, cross):
    """Applies the reflections V1, two at a time, last ones first, to the first `count`
    rows of z, which are conjugates of vectors; `cross` is room for n entries"""
    W = lanes(z)
    S = 2 * W
    none = splat(load(z, 0), 0), splat(load(z, 0), 0)
    # with a zero before it a reflection has the columns of the one before; the last of
    # an odd number goes with none
    pairs = range(n // 2 * 2 - 1, 0, -2)
    store(f, (n - 1) * W, none[0])
    for k in pairs:
        x = none
        put(a, k * row + k * S, x)
        for q in range(k * S, n * S, S):
            x = inner(x, get(a, (k - 1) * row + q), get(a, k * row + q))
        put(cross, k * S, x)
    for j in range(0, count, 4):
        z0 = z[j * row :]
        z1, z2, z3 = z0[row:], z0[2 * row :], z0[3 * row :]
        for k in pairs:
            w, v = a[k * row :], a[(k - 1) * row :]
            g0, g1, g2, g3 = none, none, none, none
            h0, h1, h2, h3 = none, none, none, none
            for q in range(k * S, n * S, S):
                y, u = get(w, q), get(v, q)
                x = get(z0, q)
                g0, h0 = inner(g0, y, x), inner(h0, u, x)
                x = get(z1, q)
                g1, h1 = inner(g1, y, x), inner(h1, u, x)
                x = get(z2, q)
                g2, h2 = inner(g2, y, x), inner(h2, u, x)
                x = get(z3, q)
                g3, h3 = inner(g3, y, x), inner(h3, u, x)
            y, g, h = get(cross, k * S), load(f, k * W), load(f, k * W - W)
            g0, g1, g2, g3 = scale(g, g0), scale(g, g1), scale(g, g2), scale(g, g3)
            h0, h1 = scale(h, minus(h0, y, g0)), scale(h, minus(h1, y, g1))
            h2, h3 = scale(h, minus(h2, y, g2)), scale(h, minus(h3, y, g3))
            for q in range(k * S, n * S, S):
                y, u = get(w, q), get(v, q)
                put(z0, q, minus(minus(get(z0, q), y, g0), u, h0))
                put(z1, q, minus(minus(get(z1, q), y, g1), u, h1))
                put(z2, q, minus(minus(get(z2, q), y, g2), u, h2))
                put(z3, q, minus(minus(get(z3, q), y, g3), u, h3))


@jit
def four(a):
    S = 2 * lanes(a)
    return get(a, 0), get(a, S), get(a, 2 * S), get(a, 3 * S)


@jit
def put_four(a, x0, x1, x2, x3):
    S = 2 * lanes(a)
    put(a, 0, x0)
    put(a, S, x1)
    put(a, 2 * S, x2)
    put(a, 3 * S, x3)


@jit
def multiply(x, y, out, m, n, depth, row, x_steps, y_steps, upper):
    """out = conj(x) y for x of m rows, y of n columns and `depth` terms in each sum.
    An entry of a factor is so many steps from the next one below, and to the right. If
    `upper`, what is below the diagonal is left undefined."""
    W = lanes(x)
    S = 2 * W
    none = splat(load(x, 0), 0), splat(load(x, 0), 0)
    for first in range(0, max(depth, 1), DEPTH):
        steps = min(DEPTH, depth - first)
        for j in range(0, n, 4):
            y0 = y[first * y_steps[0] + j * y_steps[1] :]
            y1, y2, y3 = y0[y_steps[1] :], y0[2 * y_steps[1] :], y0[3 * y_steps[1] :]
            for i in range(0, min(m, j + 4) if upper else m, 2):
                x0 = x[i * x_steps[0] + first * x_steps[1] :]
                x1 = x0[x_steps[0] :]
                out0 = out[i * row + j * S :]
                out1 = out0[row:]
                s0, s1, s2, s3 = none, none, none, none
                t0, t1, t2, t3 = none, none, none, none
                if first:
                    s0, s1, s2, s3 = four(out0)
                    t0, t1, t2, t3 = four(out1)
                for k in range(steps):
                    a, b = get(x0, k * x_steps[1]), get(x1, k * x_steps[1])
                    c = get(y0, k * y_steps[0])
                    s0, t0 = inner(s0, a, c), inner(t0, b, c)
                    c = get(y1, k * y_steps[0])
                    s1, t1 = inner(s1, a, c), inner(t1, b, c)
                    c = get(y2, k * y_steps[0])
                    s2, t2 = inner(s2, a, c), inner(t2, b, c)
                    c = get(y3, k * y_steps[0])
                    s3, t3 = inner(s3, a, c), inner(t3, b, c)
                put_four(out0, s0, s1, s2, s3)
                put_four(out1, t0, t1, t2, t3)


@jit
def values(y, a, m, n, row, level, d, e, f, phase, s, t, turns, spans):
    """Sets d to the singular values of Y up to signs, where they are not far below the
    level, and all else that their vectors follow from. Returns the number of sweeps."""
    W = lanes(y)
    S = 2 * W
    zero, one = splat(level, 0), splat(level, 1)
    square = level * level
    multiply(y, y, a, n, n, m, row, (S, row), (row, S), True)
    near = splat(level, FAR) * square - size_of(a, n, row)
    if highest(where_positive(near, zero, one)) > 0:
        a[:] = y
        bidiagonalize(a, m, n, row, d, e, f, phase, s, t)
        return diagonalize(d, e, n, turns, spans)
    tridiagonalize(a, n, row, square, d, e, f, phase, s, t)
    sweeps = diagonalize(d, e, n, turns, spans)
    for p in range(0, n * W, W):
        x = load(d, p)
        store(d, p, sqrt(maximum(zero, x * x - square)))
    return sweeps


@jit
def size_of(a, n, row):
    """The Frobenius norm of a Hermitian matrix, from its upper triangle"""
    S = 2 * lanes(a)
    total = splat(load(a, 0), 0)
    for i in range(n):
        x = get(a, i * row + i * S)
        total = total + x[0] * x[0]
        for p in range(i * row + i * S + S, i * row + n * S, S):
            x = get(a, p)
            square = x[0] * x[0] + x[1] * x[1]
            total = total + square + square
    return sqrt(total)


@jit
def select(d, top, bound, n, row, z, gain):
    """Sets z to the unit vectors of the values that exceed the bound, counted lane by
    lane, and `gain` to h of the values, times `top`. Returns the highest count. Instead
    of zeros z has something negligible that keeps the rotations from underflowing,
    which is slow. Values that are nan count, to pass on."""
    W = lanes(z)
    negligible = splat(load(z, 0), np.finfo(z.dtype).eps ** 3)
    number = np.zeros(W, np.int64)
    for j in range(n):
        for lane in range(W):
            number[lane] += not abs(d[j * W + lane]) * top[lane] <= bound
    for j in range((number.max() + 3) // 4 * 4):
        store(gain, j * W, splat(negligible, 0))
        for i in range(n):
            store(z, j * row + i * W, negligible)
    for lane in range(W):
        k = 0
        for j in range(n):
            value = abs(d[j * W + lane]) * top[lane]
            if not value <= bound:
                z[k * row + j * W + lane] = 1
                gain[k * W + lane] = (value - bound) / value * top[lane]
                k += 1
    return number.max()


@jit
def excess(re, im, bound, start, stop):
    """Overwrites matrices Y = re + i im by U max(S - bound, 0) V^H, where Y = U S V^H.

    re and im have the shape (m, n, number of matrices), m >= n, and are C-contiguous;
    matrices start to stop are treated. One that has infinities or nan ends as nan.
    """
    m, n, number = re.shape
    dtype = re.dtype.type
    W = lanes(re)
    S = 2 * W
    wide = (n + 4) // 4 * 4
    row = wide * S
    y, a, z = (
        aligned((m + 1) * row, re),
        aligned((m + 1) * row, re),
        aligned(wide * row, re),
    )
    s, t, phase = aligned(row, re), aligned(row, re), aligned(row, re)
    d, e, f = aligned(n * W, re), aligned(n * W, re), aligned(n * W, re)
    gain, top = aligned(wide * W, re), aligned(W, re)
    turns, spans = aligned(SWEEPS * n * n * S, re), np.empty((SWEEPS * n, 2), np.int64)
    z[:] = 0
    zero, one = splat(load(y, 0), 0), splat(load(y, 0), 1)
    limit = splat(zero, bound)
    tiny = splat(zero, np.finfo(re.dtype).tiny)
    for first in range(start, stop, W):
        w = min(W, stop - first)
        size = zero
        for i in range(m):
            for j in range(n):
                q = (i * n + j) * number + first
                x = load_first(re, q, w), load_first(im, q, w)
                size = maximum(absolute(x[1]), maximum(absolute(x[0]), size))
        # scaled so that squares neither overflow nor underflow
        small = where_positive(size - tiny, one / size, zero)
        norm = zero
        y[m * row :] = 0
        for i in range(m):
            for j in range(n):
                q = (i * n + j) * number + first
                x = scale(small, (load_first(re, q, w), load_first(im, q, w)))
                put(y, i * row + j * S, x)
                norm = norm + x[0] * x[0] + x[1] * x[1]
            y[i * row + n * S : (i + 1) * row] = 0
        norm = sqrt(norm)
        count = 0
        if highest(where_positive(limit - size * norm, zero, one)) > 0:
            store(top, 0, size)
            level = zero - maximum(zero - limit * small, zero - norm)
            level = where_positive(norm, level, one)
            sweeps = values(y, a, m, n, row, level, d, e, f, phase, s, t, turns, spans)
            count = select(d, top, dtype(bound), n, row, z, gain)
            unrotate(z, row, count, n, turns, spans, sweeps)
            for j in range(count):
                for i in range(n - 1, -1, -1):
                    x = load(z, j * row + i * W)
                    u = get(phase, i * S)
                    put(z, j * row + i * S, (x * u[0], zero - x * u[1]))
            unreflect(z, row, count, n, a, f, s)
        for i in range(0, m, ROWS):
            rows, part = min(ROWS, m - i), y[i * row :]
            multiply(part, z, a, rows, count, n, row, (row, S), (S, row), False)
            for k in range(rows):
                for j in range(count):
                    x = get(a, k * row + j * S)
                    put(a, k * row + j * S, scale(load(gain, j * W), x))
            multiply(a, z, part, rows, n, count, row, (row, S), (row, S), False)
        for i in range(m):
            for j in range(n):
                q = (i * n + j) * number + first
                x = get(y, i * row + j * S)
                store_first(re, q, x[0], w)
                store_first(im, q, x[1], w)
