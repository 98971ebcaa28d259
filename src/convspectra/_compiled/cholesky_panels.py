"""Hermitian matrices in panels: products and Cholesky factors.

A matrix is cut into panels of columns. A panel contains its columns one after the
other, each from the row of the panel's first pivot on; entries above the diagonal do
not count. Real and imaginary parts are in arrays of their own. Columns are filled up
with zeros to whole vectors, which run over the rows, and the last panel to a multiple
of four columns.
"""

import numpy as np

from .._base import cached
from .jit import jit, subroutine
from .simd import (
    ONE_REGISTER,
    highest,
    lanes,
    load,
    maximum,
    splat,
    sqrt,
    store,
    total,
)
from .split_complex import (
    add_square,
    get_apart,
    inner,
    minus_inner,
    put_apart,
    scale,
    splat_apart,
)
from .workspace import aligned

PANEL = 32  # columns of a panel, by experiment: it stays in the cache while it is used
UNROLLED = 4  # columns that `add_product` computes together, at most
VECTOR = 16  # numbers of single precision in a vector; rows are multiples of it


@cached(maxsize=None)
def layout(side: int) -> tuple[np.ndarray, int, int]:
    """How matrices of this side are stored.

    Returns
    -------
    array, shape (panels, 4)
        Of each panel: its first column, its width, the index of its first number, and
        the distance from one column to the next.
    int
        The count of numbers that a matrix takes.
    int
        The count of rows, filled up.
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
        Becomes the largest sum of absolute values in a row of the factor, times that
        in a column; infinite where there is no factor.
    """
    sums = aligned(rows, squares)
    minus_one = re.dtype.type(-1)
    for number in range(len(re)):
        r, c = re[number], im[number]
        subtract(r, c, panels, squares[number])
        sums[:] = 0
        most = 0.0
        for j in range(len(panels)):
            for k in range(j):
                first, width, place, stride = panels[k]
                start = place + panels[j, 0] - first
                add_product(
                    r, c, panels[j], rows, minus_one, r, c, start, width, stride
                )
            most = max(most, factor(r, c, panels[j], rows, sums))
            if most == np.inf:
                break
        sizes[number] = most if most == np.inf else most * largest(sums)


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
    size, one = columns * stride, re.dtype.type(1)
    for number in range(len(re)):
        r, c = re[number], im[number]
        x, y = xr[number].reshape(size), xi[number].reshape(size)
        r[:] = 0
        c[:] = 0
        for j in range(len(panels)):
            for k in range(0, columns, PANEL):
                start, width = k * stride + panels[j, 0], min(PANEL, columns - k)
                add_product(r, c, panels[j], rows, one, x, y, start, width, stride)


@subroutine
def largest(x):
    step = lanes(x)
    most = load(x, 0)
    for i in range(step, len(x), step):
        most = maximum(load(x, i), most)
    return highest(most)


@subroutine
def subtract(re, im, panels, square):
    """Replace G by square - G."""
    step = lanes(re)
    zero = splat(load(re, 0), 0)
    for i in range(0, len(re), step):
        store(re, i, zero - load(re, i))
        store(im, i, zero - load(im, i))
    for j in range(len(panels)):
        _, width, place, stride = panels[j]
        for k in range(width):
            re[place + k * stride + k] += square


@subroutine
def add_product(re, im, panel, rows, sign, xr, xi, start, columns, stride_x):
    """Add to a panel `sign` times the product of a matrix X with its adjoint.

    The columns of X are `stride_x` numbers apart. In the first of them `start` is the
    row of the panel's first pivot.
    """
    first, width, place, stride = panel
    step = lanes(re)
    zero = splat(load(re, 0), 0)
    signs = splat(zero, sign)
    end = columns * stride_x
    count = rows - first
    if ONE_REGISTER:
        for k in range(0, width, UNROLLED):
            for i in range(k // step * step, count, 2 * step):
                # The last vector may stand alone: then it is computed twice.
                j = min(i + step, count - step)
                r, s = four_columns(
                    xr, xi, start + k, start + i, start + j, end, stride_x
                )
                at = place + k * stride
                add_columns(re, im, at + i, stride, signs, r)
                if j > i:
                    add_columns(re, im, at + j, stride, signs, s)
    else:
        for k in range(0, width, 2):
            for i in range(k // step * step, count, step):
                sums = two_columns(xr, xi, start + k, start + i, end, stride_x)
                add_columns(re, im, place + k * stride + i, stride, signs, sums)


@subroutine
def four_columns(xr, xi, k, i, j, end, stride):
    """As `two_columns`, for four of them, each with x[i] and with x[j]."""
    zero = splat(load(xr, 0), 0)
    none = zero, zero
    r0, r1, r2, r3 = none, none, none, none
    s0, s1, s2, s3 = none, none, none, none
    for x in range(0, end, stride):
        a, b = get_apart(xr, xi, x + i), get_apart(xr, xi, x + j)
        u = splat_apart(xr, xi, x + k)
        r0, s0 = inner(r0, u, a), inner(s0, u, b)
        u = splat_apart(xr, xi, x + k + 1)
        r1, s1 = inner(r1, u, a), inner(s1, u, b)
        u = splat_apart(xr, xi, x + k + 2)
        r2, s2 = inner(r2, u, a), inner(s2, u, b)
        u = splat_apart(xr, xi, x + k + 3)
        r3, s3 = inner(r3, u, a), inner(s3, u, b)
    return (r0, r1, r2, r3), (s0, s1, s2, s3)


@subroutine
def two_columns(xr, xi, k, i, end, stride):
    """Sums of conj(x[k]) x[i] and conj(x[k + 1]) x[i] over the columns."""
    zero = splat(load(xr, 0), 0)
    r0, r1 = (zero, zero), (zero, zero)
    for x in range(0, end, stride):
        a = get_apart(xr, xi, x + i)
        r0 = inner(r0, splat_apart(xr, xi, x + k), a)
        r1 = inner(r1, splat_apart(xr, xi, x + k + 1), a)
    return r0, r1


@subroutine
def add_columns(re, im, at, stride, signs, sums):
    """Add `signs` times one vector to each of some columns, from `at` on."""
    for x in sums:
        y = get_apart(re, im, at)
        put_apart(re, im, at, (y[0] + signs * x[0], y[1] + signs * x[1]))
        at += stride


@subroutine
def factor(re, im, panel, rows, sums):
    """Factorize a panel; add the sizes of the entries in each row to `sums`.

    Returns the largest sum of sizes in a column, infinite if a pivot is not positive.
    """
    first, width, place, stride = panel
    step = lanes(re)
    count = rows - first
    zero = splat(load(re, 0), 0)
    most = 0.0
    for k in range(width):
        at, start = place + k * stride, k // step * step
        reduce_column(re, im, place, stride, k, count)
        pivot = re[at + k]
        if not pivot > 0:
            return np.inf
        inverse = splat(zero, 1 / np.sqrt(pivot))
        im[at + k] = 0
        for i in range(at, at + k):
            re[i] = im[i] = 0
        column = zero
        for i in range(start, count, step):
            x = scale(inverse, get_apart(re, im, at + i))
            put_apart(re, im, at + i, x)
            size = sqrt(add_square(zero, x))
            column = column + size
            store(sums, first + i, load(sums, first + i) + size)
        most = max(most, np.float64(total(column)))
    return most


@subroutine
def reduce_column(re, im, place, stride, k, count):
    """Subtract from column k of a panel what the columns before it contribute."""
    step = lanes(re)
    at = place + k * stride
    for i in range(k // step * step, count, 2 * step):
        # The last vector may stand alone: then it is computed twice.
        p, q = at + i, at + min(i + step, count - step)
        a, b = get_apart(re, im, p), get_apart(re, im, q)
        for x in range(place, at, stride):
            u = splat_apart(re, im, x + k)
            a = minus_inner(a, u, get_apart(re, im, x + p - at))
            b = minus_inner(b, u, get_apart(re, im, x + q - at))
        put_apart(re, im, p, a)
        put_apart(re, im, q, b)
