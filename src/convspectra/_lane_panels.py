"""Hermitian matrices in panels: Cholesky factors and Lanczos, in vectors over the rows.

A matrix is cut into panels of columns. A panel holds its columns one by one, from the
row of its first pivot on; what is there above a pivot does not count. Real and
imaginary parts are apart. Rows are filled up to whole vectors with zeros, and so is
the last panel if there are several.
All functions let other threads run.
"""

import functools

import numpy as np

from ._simd import jit, lanes, load, splat, sqrt, store, total

PANEL = 32  # columns
UNROLLED = 4  # columns that are reduced together
HALVINGS = 20  # of an interval, until an eigenvalue is known well enough
VECTOR = 16  # numbers of single precision


@functools.cache
def layout(side: int) -> tuple[np.ndarray, int, int]:
    """How matrices of this side lie in memory.

    Returns
    -------
    array, shape (panels, 4)
        Where each panel begins in the matrix, its width, where it begins among the
        numbers of the matrix, and how far its columns are apart.
    int
        The numbers of a matrix.
    int
        The rows, filled up.
    """
    rows = -(-side // VECTOR) * VECTOR
    panels, place = [], 0
    for first in range(0, side, PANEL):
        width = min(PANEL, side - first)
        if first:
            width = -(-width // UNROLLED) * UNROLLED
        # An odd number of vectors: columns that are a power of two apart would push
        # each other out of the cache.
        stride = ((rows - first) // VECTOR | 1) * VECTOR
        panels.append((first, width, place, stride))
        place += width * stride
    return np.array(panels), place, rows


@jit
def definite_panels(re, im, panels, rows, squares, sizes):
    """Overwrite each matrix G by the Cholesky factor of square - G.

    Parameters
    ----------
    re, im : array, shape (count, numbers)
    panels : array
    rows : int
        See `layout`.
    squares : array, shape (count,)
    sizes : array, shape (count,)
        Becomes the largest sum of the sizes of the numbers in a row of the factor,
        times that in a column; infinite where there is no factor.
    """
    sums = np.empty(rows, re.dtype)
    for number in range(len(re)):
        subtract(re[number], im[number], panels, squares[number])
        sums[:] = 0
        most = 0.0
        for j in range(len(panels)):
            for k in range(j):
                update(re[number], im[number], panels[j], panels[k], rows)
            found = factor(re[number], im[number], panels[j], rows, sums)
            most = max(most, found)
            if most == np.inf:
                break
        sizes[number] = np.inf if most == np.inf else most * sums.max()


@jit
def subtract(re, im, panels, square):
    """Replace G by square - G."""
    negate(re)
    negate(im)
    for j in range(len(panels)):
        _, width, place, stride = panels[j]
        for k in range(width):
            re[place + k * stride + k] += square


@jit
def negate(x):
    step = lanes(x)
    zero = splat(load(x, 0), 0.0)
    for i in range(0, len(x), step):
        store(x, i, zero - load(x, i))


@jit
def none(zero):
    return zero, zero, zero, zero, zero, zero, zero, zero


@jit
def update(re, im, panel, before, rows):
    """Subtract from a panel what one before it contributes."""
    first, width, place, stride = panel
    step = lanes(re)
    start = before[2] + first - before[0]  # the row of the first pivot, in that panel
    zero = splat(load(re, 0), 0.0)
    for k in range(0, width, 4):
        for i in range(k // step * step, rows - first, 2 * step):
            at = place + k * stride + i
            pair = i + step < rows - first
            r00, r01, r02, r03, c00, c01, c02, c03 = none(zero)
            r10, r11, r12, r13, c10, c11, c12, c13 = none(zero)
            for col in range(start, start + before[1] * before[3], before[3]):
                xr, xi = load(re, col + i), load(im, col + i)
                # The last vector stands alone: then its neighbor is no part of it.
                other = col + i + step if pair else col + i
                yr, yi = load(re, other), load(im, other)
                ur, ui = splat(zero, re[col + k]), splat(zero, im[col + k])
                r00, c00 = r00 + xr * ur + xi * ui, c00 + xi * ur - xr * ui
                r10, c10 = r10 + yr * ur + yi * ui, c10 + yi * ur - yr * ui
                ur, ui = splat(zero, re[col + k + 1]), splat(zero, im[col + k + 1])
                r01, c01 = r01 + xr * ur + xi * ui, c01 + xi * ur - xr * ui
                r11, c11 = r11 + yr * ur + yi * ui, c11 + yi * ur - yr * ui
                ur, ui = splat(zero, re[col + k + 2]), splat(zero, im[col + k + 2])
                r02, c02 = r02 + xr * ur + xi * ui, c02 + xi * ur - xr * ui
                r12, c12 = r12 + yr * ur + yi * ui, c12 + yi * ur - yr * ui
                ur, ui = splat(zero, re[col + k + 3]), splat(zero, im[col + k + 3])
                r03, c03 = r03 + xr * ur + xi * ui, c03 + xi * ur - xr * ui
                r13, c13 = r13 + yr * ur + yi * ui, c13 + yi * ur - yr * ui
            for r, c in ((r00, c00), (r01, c01), (r02, c02), (r03, c03)):
                store(re, at, load(re, at) - r)
                store(im, at, load(im, at) - c)
                at += stride
            if pair:
                at = place + k * stride + i + step
                for r, c in ((r10, c10), (r11, c11), (r12, c12), (r13, c13)):
                    store(re, at, load(re, at) - r)
                    store(im, at, load(im, at) - c)
                    at += stride


@jit
def factor(re, im, panel, rows, sums):
    """Factorize a panel; add the sizes of what is in each row to `sums`.

    Returns the largest sum of sizes in a column, infinite if a pivot is not positive.
    """
    first, width, place, stride = panel
    step = lanes(re)
    count = rows - first
    zero = splat(load(re, 0), 0.0)
    most = 0.0
    for k in range(width):
        at, start = place + k * stride, k // step * step
        reduce_column(re, im, place, stride, k, count)
        pivot = re[at + k]
        if not pivot > 0:
            return np.inf
        inverse = splat(zero, 1 / np.sqrt(pivot))
        re[at : at + k] = 0
        im[at : at + k + 1] = 0
        column = zero
        for i in range(start, count, step):
            r, c = load(re, at + i) * inverse, load(im, at + i) * inverse
            store(re, at + i, r)
            store(im, at + i, c)
            size = sqrt(r * r + c * c)
            column = column + size
            store(sums, first + i, load(sums, first + i) + size)
        most = max(most, total(column))
    return most


@jit
def reduce_column(re, im, place, stride, k, count):
    """Subtract from column k of a panel what the columns before it contribute."""
    step = lanes(re)
    at = place + k * stride
    for i in range(k // step * step, count, 2 * step):
        # The last vector stands alone: then it is taken twice.
        p, q = at + i, at + min(i + step, count - step)
        r0, c0, r1, c1 = load(re, p), load(im, p), load(re, q), load(im, q)
        for x in range(place, at, stride):
            ur, ui = splat(r0, re[x + k]), splat(r0, im[x + k])
            xr, xi = load(re, x + p - at), load(im, x + p - at)
            yr, yi = load(re, x + q - at), load(im, x + q - at)
            r0, c0 = r0 - xr * ur - xi * ui, c0 - xi * ur + xr * ui
            r1, c1 = r1 - yr * ur - yi * ui, c1 - yi * ur + yr * ui
        store(re, p, r0)
        store(im, p, c0)
        store(re, q, r1)
        store(im, q, c1)


@jit
def lanczos_panels(re, im, panels, start, diagonal, beside):
    """Lanczos from the vector `start`, as many steps as `diagonal` has room for.

    Parameters
    ----------
    re, im : array, shape (count, numbers)
    panels : array
        See `layout`, also for the rows.
    start : array, shape (2, rows)
        Real and imaginary parts of a unit vector, filled up with zeros.
    diagonal, beside : array, shape (count, steps)
        Become the tridiagonal matrices; the last number of `beside` is not part of it.
    """
    rows, steps = start.shape[1], diagonal.shape[1]
    v, u, before = np.empty((3, 2 * rows), re.dtype)
    step = lanes(re)
    zero = splat(load(re[0], 0), 0.0)
    for number in range(len(re)):
        clear_above(re[number], im[number], panels)
        v[:rows], v[rows:] = start[0], start[1]
        before[:] = 0
        beta = re.dtype.type(0)
        for n in range(steps):
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
            v, before = before, v
            for i in range(0, 2 * rows, step):
                store(v, i, load(u, i) * inverse)


@jit
def clear_above(re, im, panels):
    """Set to zero what is above the pivots."""
    for j in range(len(panels)):
        _, width, place, stride = panels[j]
        for k in range(width):
            re[place + k * stride : place + k * stride + k] = 0
            im[place + k * stride : place + k * stride + k] = 0


@jit
def multiply(re, im, panels, rows, v, u):
    """Set u to the product of a matrix with v; both have imaginary parts last."""
    step = lanes(re)
    u[:] = 0
    zero = splat(load(re, 0), 0.0)
    for j in range(len(panels)):
        first, width, place, stride = panels[j]
        for k in range(width):
            row = first + k
            vr, vi = splat(zero, v[row]), splat(zero, v[rows + row])
            r, c = zero, zero
            for i in range(k // step * step, rows - first, step):
                ar, ai = load(re, place + i), load(im, place + i)
                at = first + i
                xr, xi = load(v, at), load(v, rows + at)
                store(u, at, load(u, at) + ar * vr - ai * vi)
                store(u, rows + at, load(u, rows + at) + ar * vi + ai * vr)
                r, c = r + ar * xr + ai * xi, c + ar * xi - ai * xr
            twice = re[place + k]  # the diagonal, which both of them have counted
            u[row] += total(r) - twice * v[row]
            u[rows + row] += total(c) - twice * v[rows + row]
            place += stride


@jit
def top_eigenvalues(diagonal, beside, found):
    """The largest eigenvalues of symmetric tridiagonal matrices, from below.

    Parameters
    ----------
    diagonal : array, shape (count, n)
    beside : array, shape (count, n - 1) or more
    found : array, shape (count,)
    """
    for number in range(len(diagonal)):
        d, e = diagonal[number], beside[number]
        below, above, last = d[0], d[0], 0.0
        for k in range(len(d)):
            after = abs(e[k]) if k + 1 < len(d) else 0.0
            below = max(below, d[k])
            above = max(above, d[k] + last + after)  # no eigenvalue is beyond
            last = after
        for _ in range(HALVINGS):
            middle = 0.5 * (below + above)
            pivot = middle - d[0]
            for k in range(1, len(d)):
                if not pivot > 0:
                    break
                pivot = middle - d[k] - e[k - 1] * e[k - 1] / pivot
            if pivot > 0:  # all were: no eigenvalue is above the middle
                above = middle
            else:
                below = middle
        found[number] = below
