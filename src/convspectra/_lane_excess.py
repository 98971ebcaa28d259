"""The part of many small complex matrices that exceeds a bound on singular values.

With Y = U S V^H the excess is U max(S - c, 0) V^H = Y V h(S) V^H, where h(s) =
max(1 - c / s, 0), so it takes the right singular vectors of the values above c only:

1. `bidiagonalize` Y by reflections from both sides; they give V = V1 D X, where V1
   are the reflections from the right, D phases and X the right singular vectors of a
   real bidiagonal matrix;
2. `diagonalize` that matrix by implicit QR with shifts, recording its rotations;
3. apply the rotations (`unrotate`), the phases and the reflections (`unreflect`) to
   the unit vectors of the values above c, last one first;
4. two products.

Neither Y^H Y nor left vectors are formed: the error is a few n eps |Y| for every c.

Every operation works on a vector of W matrices side by side, one per lane (16 in single
precision, 8 in double). A block of W matrices lies in memory as rows of complex
entries, an entry being S = 2 W numbers: W real parts, then W imaginary parts. Rows are
padded with zeros to a multiple of four entries and there is a row of zeros below Y,
because loops are unrolled by four columns or two rows. The lanes never mix. They
share the loops of step 2, each with a block of its own until all have converged.
"""

import numpy as np

from ._simd import (
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
    store(z, q + 2 * lanes(z), s * x + c * y)
    return c * x - s * y


@jit
def unrotate(z, row, count, n, turns, spans, sweeps):
    """Applies the rotations of `diagonalize`, last one first, to the real parts of the
    first `count` rows of z"""
    W = lanes(z)
    S = 2 * W
    for j in range(0, count, 4):
        z0 = z[j * row :]
        z1, z2, z3 = z0[row:], z0[2 * row :], z0[3 * row :]
        for sweep in range(sweeps - 1, -1, -1):
            start, stop = spans[sweep]
            q = stop * S
            y0, y1, y2, y3 = load(z0, q), load(z1, q), load(z2, q), load(z3, q)
            for k in range(stop - 1, start - 1, -1):
                c, s = get(turns, (sweep * n + k) * S)
                q = k * S
                y0 = rotate(z0, q, c, s, y0)
                y1 = rotate(z1, q, c, s, y1)
                y2 = rotate(z2, q, c, s, y2)
                y3 = rotate(z3, q, c, s, y3)
            q = start * S
            store(z0, q, y0)
            store(z1, q, y1)
            store(z2, q, y2)
            store(z3, q, y3)


@jit
def unreflect(z, row, count, n, a, f):
    """Applies the reflections V1 of `bidiagonalize`, last one first, to the first
    `count` rows of z, which are conjugates of vectors"""
    W = lanes(z)
    S = 2 * W
    zero = splat(load(z, 0), 0)
    for j in range(0, count, 4):
        z0 = z[j * row :]
        z1, z2, z3 = z0[row:], z0[2 * row :], z0[3 * row :]
        for k in range(n - 2, -1, -1):
            w = a[k * row :]
            g0, g1, g2, g3 = (zero, zero), (zero, zero), (zero, zero), (zero, zero)
            for q in range(k * S + S, n * S, S):
                y = get(w, q)
                g0 = inner(g0, y, get(z0, q))
                g1 = inner(g1, y, get(z1, q))
                g2 = inner(g2, y, get(z2, q))
                g3 = inner(g3, y, get(z3, q))
            g = load(f, k * W)
            g0, g1, g2, g3 = scale(g, g0), scale(g, g1), scale(g, g2), scale(g, g3)
            for q in range(k * S + S, n * S, S):
                y = get(w, q)
                put(z0, q, minus(get(z0, q), y, g0))
                put(z1, q, minus(get(z1, q), y, g1))
                put(z2, q, minus(get(z2, q), y, g2))
                put(z3, q, minus(get(z3, q), y, g3))


@jit
def multiply(x, y, out, m, n, depth, row, down, right, sign):
    """out = x y for x of m rows and `depth` columns, or conj(conj(x) y) if sign is -1;
    the entry of y in row k and column j begins at k * down + j * right"""
    W = lanes(x)
    S = 2 * W
    zero, sign = splat(load(x, 0), 0), splat(load(x, 0), sign)
    for j in range(0, n, 4):
        y0 = y[j * right :]
        y1, y2, y3 = y0[right:], y0[2 * right :], y0[3 * right :]
        for i in range(m):
            t0, t1, t2, t3 = (zero, zero), (zero, zero), (zero, zero), (zero, zero)
            for k in range(depth):
                a, b = get(x, i * row + k * S)
                a = a, sign * b
                t0 = plus(t0, a, get(y0, k * down))
                t1 = plus(t1, a, get(y1, k * down))
                t2 = plus(t2, a, get(y2, k * down))
                t3 = plus(t3, a, get(y3, k * down))
            p = i * row + j * S
            put(out, p, (t0[0], sign * t0[1]))
            put(out, p + S, (t1[0], sign * t1[1]))
            put(out, p + 2 * S, (t2[0], sign * t2[1]))
            put(out, p + 3 * S, (t3[0], sign * t3[1]))


@jit
def select(d, top, bound, n, row, z, gain):
    """Sets z to the unit vectors of the values that exceed the bound, counted lane by
    lane, and `gain` to h of the values. Returns the highest count. Instead of zeros z
    has something negligible that keeps the rotations from underflowing, which is slow.
    Values that are nan count, to pass on."""
    W = lanes(z)
    negligible = splat(load(z, 0), np.finfo(z.dtype).eps ** 3)
    number = np.zeros(W, np.int64)
    for j in range(n):
        for lane in range(W):
            number[lane] += not abs(d[j * W + lane]) * top[lane] <= bound
    for j in range((number.max() + 3) // 4 * 4):
        store(gain, j * W, splat(negligible, 0))
        for i in range(n):
            store(z, j * row + i * 2 * W, negligible)
    for lane in range(W):
        k = 0
        for j in range(n):
            value = abs(d[j * W + lane]) * top[lane]
            if not value <= bound:
                z[k * row + j * 2 * W + lane] = 1
                gain[k * W + lane] = (value - bound) / value
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
    wide = (n + 3) // 4 * 4
    row = wide * S
    y, a, z = (
        aligned((m + 1) * row, re),
        aligned((m + 1) * row, re),
        aligned(wide * row, re),
    )
    s, t, phase = aligned(n * S, re), aligned(n * S, re), aligned(n * S, re)
    d, e, f = aligned(n * W, re), aligned(n * W, re), aligned(n * W, re)
    gain, top = aligned(wide * W, re), aligned(W, re)
    turns, spans = aligned(SWEEPS * n * n * S, re), np.empty((SWEEPS * n, 2), np.int64)
    y[:] = 0
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
                put(y, i * row + j * S, x)
                size = maximum(absolute(x[1]), maximum(absolute(x[0]), size))
        # scaled so that squares neither overflow nor underflow
        small = where_positive(size - tiny, one / size, zero)
        norm = zero
        for p in range(0, (m + 1) * row, W):
            x = small * load(y, p)
            store(a, p, x)
            norm = norm + x * x
        count = 0
        if highest(where_positive(limit - size * sqrt(norm), zero, one)) > 0:
            store(top, 0, size)
            bidiagonalize(a, m, n, row, d, e, f, phase, s, t)
            sweeps = diagonalize(d, e, n, turns, spans)
            count = select(d, top, dtype(bound), n, row, z, gain)
            unrotate(z, row, count, n, turns, spans, sweeps)
            for j in range(count):
                for i in range(n):
                    p = j * row + i * S
                    x = load(z, p)
                    u = get(phase, i * S)
                    put(z, p, (x * u[0], zero - x * u[1]))
            unreflect(z, row, count, n, a, f)
            multiply(y, z, a, m, count, n, row, S, row, -1)
            for j in range(count):
                x = load(gain, j * W)
                for p in range(j * row, j * row + row, W):
                    store(z, p, x * load(z, p))
        multiply(a, z, y, m, n, count, row, row, S, 1)
        for i in range(m):
            for j in range(n):
                q = (i * n + j) * number + first
                x = get(y, i * row + j * S)
                store_first(re, q, x[0], w)
                store_first(im, q, x[1], w)
