"""Soft-threshold the singular values of many small complex matrices.

With Y = U S V^H the result is U max(S - c, 0) V^H = Y V h(S) V^H, where h(s) =
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

Every operation works on a vector of W matrices, one per lane, as `bidiagonal` has them.
Rows are padded with zeros to a multiple of four entries, at least one of them, and
there is a row of zeros below Y: see `lane_products`.
"""

import numpy as np

from .bidiagonal import bidiagonalize, tridiagonalize
from .implicit_qr import SWEEPS, diagonalize, unrotate
from .jit import jit, subroutine
from .lane_products import multiply, unreflect
from .simd import (
    absolute,
    highest,
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
from .split_complex import add_square, get, put, scale
from .workspace import aligned

ROWS = 24  # of Y that are multiplied at a time, to stay in the cache; even
# Y itself is decomposed where the Frobenius norm of Y^H Y / c^2 is larger than this:
# the error by Y^H Y is at most as many times larger.
SQUARED_LIMIT = 64.0


@subroutine
def decompose(y, a, m, n, row, level, d, e, f, phase, s, t, rotations, spans):
    """Set d to the singular values of Y up to signs, if they are not far below the
    level, and all else that their vectors follow from. Returns the number of sweeps."""
    W = lanes(y)
    S = 2 * W
    zero, one = splat(level, 0), splat(level, 1)
    square = level * level
    multiply(y, y, a, n, n, m, row, (S, row), (row, S), True)
    near = splat(level, SQUARED_LIMIT) * square - frobenius_norm(a, n, row)
    is_squared = highest(where_positive(near, zero, one)) <= 0
    if is_squared:
        tridiagonalize(a, n, row, square, d, e, f, phase, s, t)
    else:
        a[:] = y
        bidiagonalize(a, m, n, row, d, e, f, phase, s, t, None)
    sweeps = diagonalize(d, e, n, rotations, spans)
    if is_squared:
        for p in range(0, n * W, W):
            x = load(d, p)
            store(d, p, sqrt(maximum(zero, x * x - square)))
    return sweeps


@subroutine
def frobenius_norm(a, n, row):
    """Of a Hermitian matrix, from its upper triangle."""
    S = 2 * lanes(a)
    diagonal = beside = splat(load(a, 0), 0)
    for i in range(n):
        x = load(a, i * row + i * S)
        diagonal = diagonal + x * x
        for p in range(i * row + i * S + S, i * row + n * S, S):
            beside = add_square(beside, get(a, p))
    return sqrt(diagonal + beside + beside)


@subroutine
def select(d, top, bound, n, row, z, gain):
    """Set z to the unit vectors of the values that exceed the bound, counted lane by
    lane, and `gain` to h of the values, times `top`. Returns the highest count.

    In place of zeros z gets a negligible number: rotations of zeros would underflow,
    which is slow. Values that are NaN count, so that the result is NaN."""
    W = lanes(z)
    negligible = splat(load(z, 0), np.finfo(z.dtype).eps ** 3)
    most = 0
    for lane in range(W):
        number = 0
        for j in range(n):
            number += not abs(d[j * W + lane]) * top[lane] <= bound
        most = max(most, number)
    for j in range((most + 3) // 4 * 4):
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
    return most


@jit
def soft_threshold(re, im, bound, start, stop):
    """Overwrite matrices Y = U S V^H, Y = re + i im, by U max(S - bound, 0) V^H.

    re and im have the shape (m, n, count), m >= n, and are C-contiguous. Matrices start
    to stop are overwritten. One that has an infinity or NaN in it becomes NaN.
    """
    m, n, number = re.shape
    flat_re, flat_im = re.reshape(re.size), im.reshape(im.size)
    dtype = re.dtype.type
    W = lanes(re)
    S = 2 * W
    wide = (n + 4) // 4 * 4
    row = wide * S
    y, a = aligned((m + 1) * row, flat_re), aligned((m + 1) * row, flat_re)
    z, gain = aligned(wide * row, flat_re), aligned(wide * W, flat_re)
    s, t = aligned(row, flat_re), aligned(row, flat_re)
    phase, top = aligned(row, flat_re), aligned(W, flat_re)
    d, e = aligned(n * W, flat_re), aligned(n * W, flat_re)
    f = aligned(n * W, flat_re)
    rotations = aligned(SWEEPS * n * n * S, flat_re)
    spans = np.empty((SWEEPS * n, 2), np.int64)
    z[:] = 0
    zero, one = splat(load(y, 0), 0), splat(load(y, 0), 1)
    limit = splat(zero, bound)
    tiny = splat(zero, np.finfo(re.dtype).tiny)
    for first in range(start, stop, W):
        w = min(W, stop - first)
        size = zero
        for j in range(m * n):
            q = j * number + first
            size = maximum(absolute(load_first(flat_re, q, w)), size)
            size = maximum(absolute(load_first(flat_im, q, w)), size)
        # Scaled, so that squares neither overflow nor underflow.
        small = where_positive(size - tiny, one / size, zero)
        norm = zero
        y[m * row :] = 0
        for i in range(m):
            for j in range(n):
                q = (i * n + j) * number + first
                x = load_first(flat_re, q, w), load_first(flat_im, q, w)
                x = scale(small, x)
                put(y, i * row + j * S, x)
                norm = add_square(norm, x)
            y[i * row + n * S : (i + 1) * row] = 0
        norm = sqrt(norm)
        count = 0
        if highest(where_positive(limit - size * norm, zero, one)) > 0:
            store(top, 0, size)
            level = zero - maximum(zero - limit * small, zero - norm)
            level = where_positive(norm, level, one)
            sweeps = decompose(
                y, a, m, n, row, level, d, e, f, phase, s, t, rotations, spans
            )
            count = select(d, top, dtype(bound), n, row, z, gain)
            unrotate(z, row, count, n, rotations, spans, sweeps)
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
                store_first(flat_re, q, x[0], w)
                store_first(flat_im, q, x[1], w)
