"""Singular values of complex matrices, many small ones or large ones, by vectors.

`reduce` brings a matrix to real bidiagonal form by Householder reflections. Its array
is flat: m rows (and one of zeros, since two rows go at a time) of units, each unit one
register of real parts and one of imaginary parts. A unit is one column of as many
matrices as there are lanes (`one` is None), or so many columns of one matrix. In step
k, with v and u the vectors of the left and the right reflection, a pair of rows gets
both updates while it is in the L1 cache, and in the same pass adds to the row of
products t = x^H A that the next left reflection needs, x its column before the
reflection. So the matrix is read and written once in a step.

`bidiagonal_values` takes it from there by dqds (Fernando and Parlett), in double
precision always, one matrix per lane. The shift is Laguerre's lower bound for the
smallest eigenvalue, from the traces of the inverse and of its square; both come out of
the same sweep, free of subtractions. Values are right to a few eps of the largest one,
not relative to themselves.

Entries are to be near one: squares must not underflow or overflow.
"""

import numpy as np

from .simd import (
    BYTES,
    aligned,
    first,
    highest,
    jit,
    load,
    load_first,
    load_pair,
    splat,
    sqrt,
    store,
    total,
    where_less,
)

LANES = 16  # of `bidiagonal_values`: two registers, as one division takes its time


@jit
def room(size, like):
    zeros = aligned(size, like)
    zeros[:] = 0
    return zeros


@jit
def minus(xr, xi, ar, ai, br, bi):
    """x - a b"""
    return xr - ar * br + ai * bi, xi - ar * bi - ai * br


@jit
def plus_conj(xr, xi, ar, ai, br, bi):
    """x + a conj(b)"""
    return xr + ar * br + ai * bi, xi + ai * br - ar * bi


@jit
def get(a, p, k, one):
    """the element k of the row of units that begins at p, in all lanes of one"""
    x = load(a, 0)
    w = len(x)
    if one is None:
        return load(a, p + 2 * w * k), load(a, p + 2 * w * k + w)
    else:
        p += k // w * 2 * w + k % w
        return splat(x, a[p]), splat(x, a[p + w])


@jit
def put(a, p, k, xr, xi, one):
    """set the element k of the row of units that begins at p"""
    w = len(xr)
    if one is None:
        store(a, p + 2 * w * k, xr)
        store(a, p + 2 * w * k + w, xi)
    else:
        p += k // w * 2 * w + k % w
        a[p] = first(xr)
        a[p + w] = first(xi)


@jit
def keep(a, p, x, one):
    if one is None:
        store(a, p, x)
    else:
        a[p] = first(x)


@jit
def fold(x, one):
    """the sum over the columns that are in the lanes"""
    if one is None:
        return x
    else:
        return splat(x, total(x))


@jit
def reflection(square, tr, ti, tiny):
    """For x with |x|^2 = square and first element t: |x|, and f and a such that
    1 - f v v^H with v = x + a e_1 takes x to a multiple of e_1.

    a has the phase of t, so that nothing cancels."""
    zero = square - square
    size = sqrt(square)
    top = tr * tr + ti * ti
    top = where_less(tiny, top, sqrt(top), zero)
    scale = size * (size + top)
    f = where_less(tiny, scale, splat(zero, 1) / scale, zero)
    grow = size / top
    ar = where_less(zero, top, tr * grow, size)
    ai = where_less(zero, top, ti * grow, zero)
    return size, f, ar, ai


@jit
def reduce(a, m, n, row, d, e, lane, lanes, one):
    """a (rows of length row) to the diagonal d and superdiagonal e, both >= 0

    d and e have lanes entries for each k, of which those from lane on are set."""
    zero = load(a, 0) - load(a, 0)
    tiny = splat(zero, np.finfo(a.dtype).tiny)
    w = len(zero)
    unit = 2 * w
    s, u, t = room(row, a), room(row, a), room(row, a)
    for i in range(m):
        vr, vi = get(a, i * row, 0, one)
        for p in range(0, row, unit):
            q = i * row + p
            xr, xi = plus_conj(
                load(t, p), load(t, p + w), load(a, q), load(a, q + w), vr, vi
            )
            store(t, p, xr)
            store(t, p + w, xi)
    for k in range(n):
        tr, ti = get(a, k * row, k, one)
        square, _ = get(t, 0, k, one)
        size, f, br, bi = reflection(square, tr, ti, tiny)
        keep(d, k * lanes + lane, size, one)
        if k + 1 == n:
            break
        vr, vi = tr + br, ti + bi
        start = (k + 1) * unit if one is None else (k + 1) // w * unit
        # s = f v^H A, and the row k after the reflection
        for p in range(start, row, unit):
            q = k * row + p
            xr, xi = load(a, q), load(a, q + w)
            sr, si = plus_conj(load(t, p), load(t, p + w), xr, xi, br, bi)
            sr, si = f * sr, f * si
            xr, xi = minus(xr, xi, vr, vi, sr, si)
            store(s, p, sr)
            store(s, p + w, si)
            store(u, p, xr)
            store(u, p + w, xi)
            store(t, p, zero)
            store(t, p + w, zero)
        if one is not None:  # the columns of the first unit that are done
            for j in range(start // 2, k + 1):
                put(s, 0, j, zero, zero, one)
                put(u, 0, j, zero, zero, one)
        square = zero
        for p in range(start, row, w):
            x = load(u, p)
            square += x * x
        square = fold(square, one)
        tr, ti = get(u, 0, k + 1, one)
        size, f, br, bi = reflection(square, tr, ti, tiny)
        keep(e, k * lanes + lane, size, one)
        tr, ti = tr + br, ti + bi
        put(u, 0, k + 1, tr, ti, one)
        for i in range(k + 1, m, 2):
            # A - v s and its product with u, for the rows at y and z
            y = i * row
            z = y + row
            vr, vi = get(a, y, k, one)
            wr, wi = get(a, z, k, one)
            gr = gi = hr = hi = zero
            for p in range(start, row, unit):
                sr, si = load(s, p), load(s, p + w)
                ur, ui = load(u, p), load(u, p + w)
                xr, xi = minus(load(a, y + p), load(a, y + p + w), vr, vi, sr, si)
                store(a, y + p, xr)
                store(a, y + p + w, xi)
                gr, gi = plus_conj(gr, gi, xr, xi, ur, ui)
                xr, xi = minus(load(a, z + p), load(a, z + p + w), wr, wi, sr, si)
                store(a, z + p, xr)
                store(a, z + p + w, xi)
                hr, hi = plus_conj(hr, hi, xr, xi, ur, ui)
            gr, gi = f * fold(gr, one), f * fold(gi, one)
            hr, hi = f * fold(hr, one), f * fold(hi, one)
            # the right reflection, and t = x^H A with x the next column
            vr, vi = get(a, y, k + 1, one)
            vr, vi = minus(vr, vi, gr, gi, tr, ti)
            wr, wi = get(a, z, k + 1, one)
            wr, wi = minus(wr, wi, hr, hi, tr, ti)
            for p in range(start, row, unit):
                ur, ui = load(u, p), load(u, p + w)
                sr, si = load(t, p), load(t, p + w)
                xr, xi = minus(load(a, y + p), load(a, y + p + w), gr, gi, ur, ui)
                store(a, y + p, xr)
                store(a, y + p + w, xi)
                sr, si = plus_conj(sr, si, xr, xi, vr, vi)
                xr, xi = minus(load(a, z + p), load(a, z + p + w), hr, hi, ur, ui)
                store(a, z + p, xr)
                store(a, z + p + w, xi)
                sr, si = plus_conj(sr, si, xr, xi, wr, wi)
                store(t, p, sr)
                store(t, p + w, si)


@jit
def sweep(q, e, shift, n, delta):
    """Take the squares q, e of bidiagonal matrices with norms near 1 to their values.

    At the end q + shift are the squares of the singular values, but for the lanes where
    the result is positive. An e is dropped where that changes no value by more than
    about delta. Each sweep shifts the last block of rows that hang together. For the
    others it is a step without shift, and rows alone stay as they are, so that the
    lanes may be at different places without masks.
    """
    zero = load_pair(shift, 0)
    lanes = len(zero)
    unity = splat(zero, 1)
    cut = splat(zero, delta * delta)
    floor = splat(zero, delta * delta / 16)
    # rounding may leave a negative d of this size, relative to the shift
    slack = splat(zero, 1e-15)
    lowest = tau = low = end = zero
    last = n - 1
    left = 10 * n + 30
    while last > 0 and left > 0:
        left -= 1
        step = where_less(zero, low, zero, tau)
        d = load_pair(q, 0) - step
        before = column = weight = trace = square = begin = zero
        next_low = next_sum = next_trace = next_square = zero
        end = splat(zero, -1)
        for k in range(last + 1):
            p = k * lanes
            here = splat(zero, k)
            after, right = load_pair(e, p), load_pair(q, p + lanes)
            sum = load_pair(shift, p) + step
            store(shift, p, sum)
            bottom = d + slack * sum
            lowest = where_less(bottom, lowest, bottom, lowest)
            d = where_less(d, floor, floor, d)
            new = d + after
            store(q, p, new)
            inverse = unity / new
            # now that both its neighbours are known: is the e before small?
            both = before + new
            before = where_less(before * both, cut * (sum + both), zero, before)
            if k > 0:
                store(e, p - lanes, before)
            # the columns of the inverse bidiagonal: their squares add to the trace
            factor = before * inverse
            column = where_less(zero, before, factor * column, zero) + inverse
            weight = where_less(zero, before, factor * weight, zero)
            trace = where_less(zero, before, trace, zero) + column
            square = where_less(zero, before, square, zero) + weight
            weight += column * column
            square += weight
            begin = where_less(zero, before, begin, here)
            next_low = where_less(zero, before, begin, next_low)
            next_sum = where_less(zero, before, sum, next_sum)
            next_trace = where_less(zero, before, trace, next_trace)
            next_square = where_less(zero, before, square, next_square)
            end = where_less(zero, before, here, end)
            before = after * right * inverse
            # a new block begins after a zero; it gets the shift if it is the last
            begins = where_less(
                here, low - unity, zero, where_less(low - unity, here, zero, tau)
            )
            step = where_less(zero, after, step, begins)
            d = where_less(zero, after, d * right * inverse - step, right - step)
        low = next_low
        size = end - low + unity
        # a bit more than the spread, lest rounding makes the bound too high
        spread = size * next_square * splat(zero, 1 + 1e-11) - next_trace * next_trace
        spread = where_less(zero, spread, spread, zero)
        tau = size / (next_trace + sqrt((size - unity) * spread))
        # down to where the sum with the shift is exact: it is rounded no more, and
        # a tau above the smallest eigenvalue would break the sweep
        tau -= splat(zero, 2.3e-16) * (next_sum + tau)
        tau = where_less(zero, tau, (next_sum + tau) - next_sum, zero)
        tau = where_less(end, zero, zero, tau)
        last = int(highest(end))
    return where_less(zero, end, unity, where_less(lowest, zero - cut, unity, zero))


@jit
def bisect(d, e, n, lane, lanes, out):
    """The singular values in one lane by Sturm counts: slow, but cannot fail.

    All entries get a tiny bit larger, so that no zero is divided by zero.
    """
    top = 0.0
    for p in range(lane, n * lanes, lanes):
        top = max(top, d[p] + e[p])
    for k in range(n):
        low, high = 0.0, 2 * top
        for _ in range(64):
            x = (low + high) / 2
            pivot, above = -x, 0
            for j in range(2 * n - 1):
                p = j // 2 * lanes + lane
                b = e[p] if j % 2 else d[p]
                pivot = -x - (b * b + 1e-300) / pivot
                above += pivot >= 0
            if above > k:
                low = x
            else:
                high = x
        out[k * lanes + lane] = (low + high) / 2


@jit
def bidiagonal_values(d, e, n, eps):
    """The singular values, descending, of bidiagonal matrices with d above e."""
    lanes = LANES
    q, r = np.zeros((n + 1) * lanes), np.zeros((n + 1) * lanes)
    shift, top, bad = np.zeros((n + 1) * lanes), np.zeros(lanes), np.zeros(lanes)
    for k in range(n):
        for lane in range(lanes):
            p = k * lanes + lane
            top[lane] = max(top[lane], d[p] + e[p])
    delta = eps / 4
    for k in range(n):
        for lane in range(lanes):
            p = k * lanes + lane
            q[p] = max((d[p] / max(top[lane], 1e-300)) ** 2, delta * delta / 16)
            r[p] = (e[p] / max(top[lane], 1e-300)) ** 2
    store(bad, 0, sweep(q, r, shift, n, delta))
    for k in range(n):
        for lane in range(lanes):
            p = k * lanes + lane
            q[p] = np.sqrt(q[p] + shift[p]) * top[lane]
    for lane in range(lanes):
        if bad[lane] > 0:
            bisect(d, e, n, lane, lanes, q)
    # nearly sorted as a rule, so bubbles settle it in few passes
    zero = load_pair(shift, n * lanes)
    moved = 1.0
    while moved > 0:
        change = zero
        x = load_pair(q, 0)
        for p in range(lanes, n * lanes, lanes):
            y = load_pair(q, p)
            change = where_less(x, y, splat(zero, 1), change)
            store(q, p - lanes, where_less(x, y, y, x))
            x = where_less(x, y, x, y)
            store(q, p, x)
        moved = highest(change)
    return q


@jit
def finished(d, e, n):
    eps = np.finfo(d.dtype).eps
    return bidiagonal_values(d.astype(np.float64), e.astype(np.float64), n, eps)


@jit
def values_of_many(re, im, out, start, stop):
    """Set out[:, start:stop], (n, batch), to the values of matrices (m, n, batch).

    Descending. The matrices are contiguous, with m >= n.
    """
    m, n, batch = re.shape
    re, im = re.reshape(re.size), im.reshape(im.size)
    w = BYTES // re.itemsize
    a = room((m + 1) * n * 2 * w, re)
    d, e = np.empty(n * LANES, re.dtype), np.empty(n * LANES, re.dtype)
    for left in range(start, stop, LANES):
        count = min(LANES, stop - left)
        d[:] = 0
        e[:] = 0
        for lane in range(0, count, w):
            a[m * n * 2 * w :] = 0
            for j in range(m * n):
                p, q = j * 2 * w, j * batch + left + lane
                store(a, p, load_first(re, q, min(w, count - lane)))
                store(a, p + w, load_first(im, q, min(w, count - lane)))
            reduce(a, m, n, n * 2 * w, d, e, lane, LANES, None)
        x = finished(d, e, n)
        for k in range(n):
            for lane in range(count):
                out[k, left + lane] = x[k * LANES + lane]


@jit
def values_of_large(re, im, out, start, stop):
    """Set out[start:stop], (batch, n), to the values of matrices (batch, m, n)."""
    _, m, n = re.shape
    w = BYTES // re.itemsize
    row = (n + w - 1) // w * 2 * w
    a = room((m + 1) * row, re)
    d, e = np.empty(n * LANES, re.dtype), np.empty(n * LANES, re.dtype)
    for left in range(start, stop, LANES):
        count = min(LANES, stop - left)
        d[:] = 0
        e[:] = 0
        for lane in range(count):
            a[:] = 0
            for i in range(m):
                for j in range(n):
                    p = i * row + j // w * 2 * w + j % w
                    a[p] = re[left + lane, i, j]
                    a[p + w] = im[left + lane, i, j]
            reduce(a, m, n, row, d, e, lane, LANES, True)
        x = finished(d, e, n)
        for k in range(n):
            for lane in range(count):
                out[left + lane, k] = x[k * LANES + lane]
