"""Singular values of real bidiagonal matrices by dqds (Fernando and Parlett).

One matrix per lane, always in double precision. The shift is Laguerre's lower bound for
the smallest eigenvalue, from the traces of the inverse and of its square. Both come out
of the same sweep, free of subtractions. Values are right to a few eps of the largest
one, not relative to themselves.
"""

import numpy as np

from .jit import subroutine
from .simd import highest, load_like, splat, sqrt, store, where_less, zero_pair
from .tridiagonal import kth_eigenvalue

LANES = 16  # matrices at a time: two registers, as a division has a long latency
BISECTIONS = 64  # of an interval: down to the last bit of a double
TINY = 1e-300  # to divide by; its square root is no change to a value near 1
# Rounding may leave a pivot that is negative by this much, relative to the shift.
PIVOT_SLACK = 1e-15
# Relative margins of the shift, so that rounding does not lift it above the smallest
# eigenvalue, which would break the sweep: on the spread of the eigenvalues, whose terms
# cancel, and on the shift itself, a rounding unit of its sum.
SPREAD_MARGIN, SHIFT_MARGIN = 1e-11, 2.3e-16


@subroutine
def sweep(q, e, shift, n, delta):
    """Take the squares q, e of bidiagonal matrices with norms near 1 to their values.

    At the end q + shift are the squares of the singular values, except in the lanes
    where the result is positive. An e is dropped where that changes no value by more
    than about delta. Each sweep shifts the last block of rows that are coupled. For the
    others it is a step without shift, and uncoupled rows stay as they are, so that the
    lanes may be at different places without masks.
    """
    zero = zero_pair(shift)
    unity = splat(zero, 1)
    cut = splat(zero, delta * delta)
    floor = splat(zero, delta * delta / 16)
    slack = splat(zero, PIVOT_SLACK)
    lowest = tau = low = end = zero
    last = n - 1
    left = 10 * n + 30
    while last > 0 and left > 0:
        left -= 1
        step = where_less(zero, low, zero, tau)
        d = load_like(q, 0, zero) - step
        before = column = weight = trace = square = begin = zero
        next_low = next_sum = next_trace = next_square = zero
        end = splat(zero, -1)
        for k in range(last + 1):
            p = k * LANES
            here = splat(zero, k)
            after, right = load_like(e, p, zero), load_like(q, p + LANES, zero)
            sum = load_like(shift, p, zero) + step
            store(shift, p, sum)
            bottom = d + slack * sum
            lowest = where_less(bottom, lowest, bottom, lowest)
            d = where_less(d, floor, floor, d)
            new = d + after
            store(q, p, new)
            inverse = unity / new
            # Is the e before this row small? Both its neighbours are known now.
            both = before + new
            before = where_less(before * both, cut * (sum + both), zero, before)
            if k > 0:
                store(e, p - LANES, before)
            # The squares of the columns of the inverse bidiagonal add to the trace.
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
            # A new block begins after a zero; it gets the shift if it is the last.
            begins = where_less(
                here, low - unity, zero, where_less(low - unity, here, zero, tau)
            )
            step = where_less(zero, after, step, begins)
            d = where_less(zero, after, d * right * inverse - step, right - step)
        low = next_low
        size = end - low + unity
        spread = size * next_square * splat(zero, 1 + SPREAD_MARGIN)
        spread -= next_trace * next_trace
        spread = where_less(zero, spread, spread, zero)
        tau = size / (next_trace + sqrt((size - unity) * spread))
        tau -= splat(zero, SHIFT_MARGIN) * (next_sum + tau)
        # Down to where the sum with the shift is exact, so that it is rounded no more.
        tau = where_less(zero, tau, (next_sum + tau) - next_sum, zero)
        tau = where_less(end, zero, zero, tau)
        last = int(highest(end))
    return where_less(zero, end, unity, where_less(lowest, zero - cut, unity, zero))


@subroutine
def set_by_bisection(d, e, n, bad, out):
    """Set `out` in the lanes where `bad` is positive: slow, but cannot fail.

    They are eigenvalues of the tridiagonal matrix (Golub and Kahan) that has zeros on
    the diagonal and the d and e in turn beside it. All squares get a tiny bit larger,
    so that no zero is divided by zero.
    """
    zero = zero_pair(d)
    tiny = splat(zero, TINY)
    diagonal, squares = np.zeros(2 * n * LANES), np.zeros(2 * n * LANES)
    top = zero
    for p in range(0, n * LANES, LANES):
        x, y = load_like(d, p, zero), load_like(e, p, zero)
        store(squares, 2 * p, x * x + tiny)
        store(squares, 2 * p + LANES, y * y + tiny)
        top = where_less(top, x + y, x + y, top)
    for k in range(n):
        x = kth_eigenvalue(diagonal, squares, 2 * n, k, zero, top + top, BISECTIONS)
        known = load_like(out, k * LANES, zero)
        store(out, k * LANES, where_less(zero, load_like(bad, 0, zero), x, known))


@subroutine
def sort_descending(x, n):
    """Sort n vectors in every lane: bubbles, since they are nearly sorted as a rule."""
    zero = zero_pair(x)
    moved = 1.0
    while moved > 0:
        change = zero
        a = load_like(x, 0, zero)
        for p in range(LANES, n * LANES, LANES):
            b = load_like(x, p, zero)
            change = where_less(a, b, splat(zero, 1), change)
            store(x, p - LANES, where_less(a, b, b, a))
            a = where_less(a, b, a, b)
            store(x, p, a)
        moved = highest(change)


@subroutine
def bidiagonal_values(d, e, n, eps):
    """The singular values, descending, of LANES bidiagonal matrices.

    d is the diagonal and e what is right of it: (n, LANES), flat, in double precision;
    eps is that of the precision which they were computed in.
    """
    zero = zero_pair(d)
    unity, tiny = splat(zero, 1), splat(zero, TINY)
    # One vector more than there are rows: a sweep looks ahead.
    q, r = np.zeros((n + 1) * LANES), np.zeros((n + 1) * LANES)
    shift = np.zeros((n + 1) * LANES)
    top = zero
    for p in range(0, n * LANES, LANES):
        sum = load_like(d, p, zero) + load_like(e, p, zero)
        top = where_less(top, sum, sum, top)
    delta = eps / 4
    floor = splat(zero, delta * delta / 16)
    inverse = unity / where_less(tiny, top, top, tiny)
    for p in range(0, n * LANES, LANES):
        x, y = load_like(d, p, zero) * inverse, load_like(e, p, zero) * inverse
        store(q, p, where_less(floor, x * x, x * x, floor))
        store(r, p, y * y)
    bad = np.zeros(LANES)
    store(bad, 0, sweep(q, r, shift, n, delta))
    for p in range(0, n * LANES, LANES):
        x = load_like(q, p, zero) + load_like(shift, p, zero)
        store(q, p, sqrt(x) * top)
    if highest(load_like(bad, 0, zero)) > 0:
        set_by_bisection(d, e, n, bad, q)
    sort_descending(q, n)
    return q
