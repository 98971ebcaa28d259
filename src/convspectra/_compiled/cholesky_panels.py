"""Hermitian matrices in panels: products, factors, Lanczos, in vectors over the rows.

A matrix is cut into panels of columns. A panel holds its columns one by one, from the
row of its first pivot on; what is there above a pivot does not count. Real and
imaginary parts are apart. Rows are filled up to whole vectors with zeros, and so is
the last panel, to a multiple of four columns.
All functions let other threads run.
"""

import numpy as np

from .._base import cached
from .simd import jit, lanes, load, splat, sqrt, store, total

PANEL = 32  # columns
UNROLLED = 4  # columns that are reduced together
HALVINGS = 20  # of an interval, until an eigenvalue is known well enough
VECTOR = 16  # numbers of single precision


@cached(maxsize=None)
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
        width = -(-min(PANEL, side - first) // UNROLLED) * UNROLLED
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
        r, c = re[number], im[number]
        subtract(r, c, panels, squares[number])
        sums[:] = 0
        most = 0.0
        for j in range(len(panels)):
            for k in range(j):
                first, width, place, stride = panels[k]
                start = place + panels[j, 0] - first
                add_product(r, c, panels[j], rows, -1, r, c, start, width, stride)
            most = max(most, factor(r, c, panels[j], rows, sums))
            if most == np.inf:
                break
        sizes[number] = np.inf if most == np.inf else most * sums.max()


@jit
def gram_panels(xr, xi, panels, rows, re, im):
    """Set each matrix to the product of another, X, with its adjoint.

    Parameters
    ----------
    xr, xi : array, shape (count, columns, rows or more)
        X column by column, filled up with zeros.
    panels : array
    rows : int
        See `layout`.
    re, im : array, shape (count, numbers)
    """
    columns, stride = xr.shape[1:]
    for number in range(len(re)):
        r, c = re[number], im[number]
        x, y = xr[number].ravel(), xi[number].ravel()
        r[:] = 0
        c[:] = 0
        for j in range(len(panels)):
            for k in range(0, columns, PANEL):
                start, width = k * stride + panels[j, 0], min(PANEL, columns - k)
                add_product(r, c, panels[j], rows, 1, x, y, start, width, stride)


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
def add_product(re, im, panel, rows, sign, xr, xi, start, columns, apart):
    """Add to a panel `sign` times the product of a matrix with its adjoint.

    Its columns are so far `apart`. In the first of them `start` is the row of the first
    pivot of the panel.
    """
    first, width, place, stride = panel
    step = lanes(re)
    zero = splat(load(re, 0), 0.0)
    signs = splat(zero, sign)
    end = start + columns * apart
    for k in range(0, width, 4):
        for i in range(k // step * step, rows - first, 2 * step):
            at = place + k * stride + i
            pair = i + step < rows - first
            r00, r01, r02, r03, c00, c01, c02, c03 = none(zero)
            r10, r11, r12, r13, c10, c11, c12, c13 = none(zero)
            for x in range(start, end, apart):
                ar, ai = load(xr, x + i), load(xi, x + i)
                # The last vector stands alone: then its neighbor is no part of it.
                other = x + i + step if pair else x + i
                br, bi = load(xr, other), load(xi, other)
                ur, ui = splat(zero, xr[x + k]), splat(zero, xi[x + k])
                r00, c00 = r00 + ar * ur + ai * ui, c00 + ai * ur - ar * ui
                r10, c10 = r10 + br * ur + bi * ui, c10 + bi * ur - br * ui
                ur, ui = splat(zero, xr[x + k + 1]), splat(zero, xi[x + k + 1])
                r01, c01 = r01 + ar * ur + ai * ui, c01 + ai * ur - ar * ui
                r11, c11 = r11 + br * ur + bi * ui, c11 + bi * ur - br * ui
                ur, ui = splat(zero, xr[x + k + 2]), splat(zero, xi[x + k + 2])
                r02, c02 = r02 + ar * ur + ai * ui, c02 + ai * ur - ar * ui
                r12, c12 = r12 + br * ur + bi * ui, c12 + bi * ur - br * ui
                ur, ui = splat(zero, xr[x + k + 3]), splat(zero, xi[x + k + 3])
                r03, c03 = r03 + ar * ur + ai * ui, c03 + ai * ur - ar * ui
                r13, c13 = r13 + br * ur + bi * ui, c13 + bi * ur - br * ui
            for r, c in ((r00, c00), (r01, c01), (r02, c02), (r03, c03)):
                store(re, at, load(re, at) + signs * r)
                store(im, at, load(im, at) + signs * c)
                at += stride
            if pair:
                at = place + k * stride + i + step
                for r, c in ((r10, c10), (r11, c11), (r12, c12), (r13, c13)):
                    store(re, at, load(re, at) + signs * r)
                    store(im, at, load(im, at) + signs * c)
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
    zero = splat(load(re[0], 0), 0.0)
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
