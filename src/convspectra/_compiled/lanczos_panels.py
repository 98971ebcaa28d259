"""Lanczos for Hermitian matrices in panels: see `cholesky_panels`."""

import numpy as np

from .jit import jit, subroutine
from .simd import lanes, load, splat, store, total
from .split_complex import get_apart, inner, plus, put_apart, splat_apart


@jit
def lanczos_panels(re, im, panels, basis, diagonal, beside):
    """Lanczos, as many steps as `diagonal` has room for.

    Parameters
    ----------
    re, im : array, shape (count, numbers)
    panels : array
        See `layout`, also for the rows.
    basis : array, shape (steps + 1, 2 * rows)
        Begins with the unit vector to start from, real parts first, filled up with
        zeros; becomes the basis of the last matrix.
    diagonal, beside : array, shape (count, steps)
        Become the tridiagonal matrices; the last number of `beside` is not part of it.
    """
    rows, steps = basis.shape[1] // 2, diagonal.shape[1]
    u = np.empty(2 * rows, re.dtype)
    step = lanes(re)
    zero = splat(load(u, 0), 0)
    for number in range(len(re)):
        clear_above(re[number], im[number], panels)
        before, beta = basis[0], re.dtype.type(0)
        for n in range(steps):
            v, after = basis[n], basis[n + 1]
            multiply(re[number], im[number], panels, rows, v, u)
            along = zero
            for i in range(0, 2 * rows, step):
                along = along + load(u, i) * load(v, i)
            alpha = total(along)
            a, b, square = splat(zero, alpha), splat(zero, beta), zero
            for i in range(0, 2 * rows, step):
                x = load(u, i) - a * load(v, i) - b * load(before, i)
                store(u, i, x)
                square = square + x * x
            beta = np.sqrt(total(square))
            diagonal[number, n], beside[number, n] = alpha, beta
            inverse = splat(zero, 1 / beta if beta > 0 else beta)
            for i in range(0, 2 * rows, step):
                store(after, i, load(u, i) * inverse)
            before = v


@subroutine
def clear_above(re, im, panels):
    """Set to zero what is above the pivots."""
    for j in range(len(panels)):
        _, width, place, stride = panels[j]
        for k in range(width):
            for i in range(place + k * stride, place + k * stride + k):
                re[i] = im[i] = 0


@subroutine
def multiply(re, im, panels, rows, v, u):
    """Set u to the product of a matrix with v; both have imaginary parts last."""
    step = lanes(re)
    zero = splat(load(re, 0), 0)
    for i in range(0, 2 * rows, step):
        store(u, i, zero)
    v_im, u_im = v[rows:], u[rows:]
    for j in range(len(panels)):
        first, width, place, stride = panels[j]
        for k in range(width):
            row = first + k
            y = splat_apart(v, v_im, row)
            sum = zero, zero
            for i in range(k // step * step, rows - first, step):
                a = get_apart(re, im, place + i)
                at = first + i
                put_apart(u, u_im, at, plus(get_apart(u, u_im, at), a, y))
                sum = inner(sum, a, get_apart(v, v_im, at))
            twice = re[place + k]  # the diagonal, which both of them have counted
            u[row] += total(sum[0]) - twice * v[row]
            u_im[row] += total(sum[1]) - twice * v_im[row]
            place += stride
