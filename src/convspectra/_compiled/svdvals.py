"""Singular values of complex matrices: many small ones, or large ones.

`bidiagonal` reduces them by Householder reflections, in their own precision, and `dqds`
takes the values of the bidiagonal matrices in double precision. Entries must be near
one: their squares must not underflow or overflow.
"""

import numpy as np

from .bidiagonal import bidiagonalize
from .dqds import LANES, bidiagonal_values
from .jit import jit, subroutine
from .simd import lanes, load_first, store
from .workspace import aligned


@subroutine
def reduced(a, m, n, row, one):
    """The diagonal and what is beside it of bidiagonal forms; see `bidiagonalize`."""
    W = lanes(a)
    d, e, f = aligned(n * W, a), aligned(n * W, a), aligned(n * W, a)
    s, t, phase = aligned(row, a), aligned(row, a), aligned(2 * n * W, a)
    bidiagonalize(a, m, n, row, d, e, f, phase, s, t, one)
    return d, e


@jit
def values_of_many(re, im, out, start, stop):
    """Set out[:, start:stop], (n, count), to the values of matrices (m, n, count).

    Descending. The matrices are contiguous, with m >= n.
    """
    m, n, number = re.shape
    flat_re, flat_im = re.reshape(re.size), im.reshape(im.size)
    W = lanes(re)
    S = 2 * W
    row = (n | 1) * S  # odd: rows a power of two apart would evict each other
    a = aligned((m + 1) * row, flat_re)
    d, e = np.zeros(n * LANES), np.zeros(n * LANES)
    eps = np.float64(np.finfo(re.dtype).eps)
    for left in range(start, stop, LANES):
        count = min(LANES, stop - left)
        d[:] = 0
        e[:] = 0
        for lane in range(0, count, W):
            for i in range(m):
                for j in range(n):
                    q = (i * n + j) * number + left + lane
                    p = i * row + j * S
                    store(a, p, load_first(flat_re, q, min(W, count - lane)))
                    store(a, p + W, load_first(flat_im, q, min(W, count - lane)))
            a[m * row :] = 0
            x, y = reduced(a, m, n, row, None)
            for k in range(n):
                for i in range(W):
                    d[k * LANES + lane + i] = x[k * W + i]
                    e[k * LANES + lane + i] = y[k * W + i]
        values = bidiagonal_values(d, e, n, eps)
        for k in range(n):
            for lane in range(count):
                out[k, left + lane] = values[k * LANES + lane]


@jit
def values_of_large(re, im, out, start, stop):
    """Set out[start:stop], (count, n), to the values of matrices (count, m, n), m >= n.

    Descending.
    """
    _, m, n = re.shape
    W = lanes(re)
    S = 2 * W
    row = (n + W - 1) // W * S
    a = aligned((m + 1) * row, re.reshape(re.size))
    d, e = np.zeros(n * LANES), np.zeros(n * LANES)
    eps = np.float64(np.finfo(re.dtype).eps)
    for left in range(start, stop, LANES):
        count = min(LANES, stop - left)
        d[:] = 0
        e[:] = 0
        for lane in range(count):
            a[:] = 0
            for i in range(m):
                for j in range(n):
                    p = i * row + j // W * S + j % W
                    a[p] = re[left + lane, i, j]
                    a[p + W] = im[left + lane, i, j]
            x, y = reduced(a, m, n, row, True)
            for k in range(n):
                d[k * LANES + lane] = x[k * W]
                e[k * LANES + lane] = y[k * W]
        values = bidiagonal_values(d, e, n, eps)
        for k in range(n):
            for lane in range(count):
                out[left + lane, k] = values[k * LANES + lane]
