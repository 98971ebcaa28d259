"""Products and reflections of complex matrices, one per lane.

Loops are unrolled by four columns or two rows, over which matrices are padded with
zeros.
"""

from .jit import subroutine
from .simd import lanes, load, splat, store
from .split_complex import get, inner, minus, put, scale

DEPTH = 36  # terms of a sum at a time: the factors' entries stay in the cache


@subroutine
def four(a):
    S = 2 * lanes(a)
    return get(a, 0), get(a, S), get(a, 2 * S), get(a, 3 * S)


@subroutine
def put_four(a, x0, x1, x2, x3):
    S = 2 * lanes(a)
    put(a, 0, x0)
    put(a, S, x1)
    put(a, 2 * S, x2)
    put(a, 3 * S, x3)


@subroutine
def multiply(x, y, out, m, n, depth, row, x_steps, y_steps, upper):
    """Set `out` to conj(x) y: x has m rows, y n columns, and sums have `depth` terms.

    x_steps and y_steps are the distances from an entry to the next one below it and to
    the right of it. If `upper`, what is below the diagonal is left undefined.
    """
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


@subroutine
def unreflect(z, row, count, n, a, f, cross):
    """Apply the reflections V1 of `bidiagonalize` to the first `count` rows of z.

    The rows of z are conjugates of vectors. Reflections go two at a time, the last ones
    first; `cross` is workspace for n entries.
    """
    W = lanes(z)
    S = 2 * W
    none = splat(load(z, 0), 0), splat(load(z, 0), 0)
    # With a zero in front, a reflection has the columns of the one before it. An odd
    # one at the end is paired with none.
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
