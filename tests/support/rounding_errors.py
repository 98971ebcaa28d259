"""The error of each step of a certificate against extended precision.

Extended means np.longdouble, with 64 bits where double precision has 53. Steps have the
names that they have on docs/mathematics.md; `seen` and `allowed` are relative to the
same thing.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from convspectra import Geometry
from convspectra._compiled.packed import Panels
from convspectra._layer.stencil import stencil_of
from convspectra._maps.matrix_free import operator_of
from convspectra._maps.split_complex import BatchedSymbols, ColumnSymbols
from convspectra._maps.symbol import phase_factors, symbol, taps_of
from convspectra._norm import rounding
from convspectra._norm.gram_certificate import DoublePass, top_singular_vectors
from convspectra._norm.lanczos import unit_pair
from convspectra._norm.rounding import UNIT_DOUBLE, UNIT_SINGLE
from convspectra._norm.screening import ScreeningPass
from convspectra._norm.small_matrices import SmallMatrices

EXTENDED = np.clongdouble
ROWS = (
    24  # of large matrices that are looked at, of entries that are bounded one by one
)

SHAPES = {
    "one channel": ((1, 1, 3), {"grid": 9}),
    "line": ((3, 5, 4), {"grid": 11}),
    "plane": ((6, 4, 3, 3), {"grid": (8, 7)}),
    "16 channels": ((16, 16, 3, 3), {"grid": 8}),
    "large kernel": ((4, 3, 5, 6), {"grid": 12}),
    "strided": ((5, 4, 3, 3), {"grid": 8, "stride": 2}),
    "grouped": ((6, 2, 3, 3), {"grid": 7, "groups": 3}),
    "space": ((3, 3, 3, 3, 3), {"grid": 5}),
    "fine grid": ((3, 2, 3, 3), {"grid": (5000, 6007)}),
}


def gaussian(rng, shape):
    return rng.standard_normal(shape)


def complex_valued(rng, shape):
    return rng.standard_normal((*shape, 2)) @ np.array([1, 1j])


def orthogonal(rng, shape):
    """One tap, with equal singular values: every Cholesky pivot is next to zero."""
    weight = np.zeros(shape)
    square = rng.standard_normal((max(shape[:2]), max(shape[:2])))
    weight[(..., *(k // 2 for k in shape[2:]))] = np.linalg.qr(square)[0][
        : shape[0], : shape[1]
    ]
    return weight


def constant(rng, shape):
    return np.full(shape, rng.random())


def cancelling(rng, shape):
    """Taps that add up to nearly nothing at frequency 0."""
    weight = rng.standard_normal(shape)
    axes = tuple(range(2, weight.ndim))
    return weight - weight.mean(axis=axes, keepdims=True) * (1 + 1e-12)


def badly_scaled(rng, shape):
    """Channels, and taps, of very different sizes."""
    sizes = 10.0 ** rng.uniform(-8, 0, (shape[0], *(1 for _ in shape[1:])))
    return rng.standard_normal(shape) * sizes * 10.0 ** rng.uniform(-4, 0, shape)


def rank_one(rng, shape):
    row, column = rng.standard_normal(shape[0]), rng.standard_normal(shape[1:])
    return np.multiply.outer(row, column)


def positive(rng, shape):
    """No sum cancels: roundings add up."""
    return rng.random(shape)


KERNELS = (
    gaussian,
    complex_valued,
    orthogonal,
    constant,
    cancelling,
    badly_scaled,
    rank_one,
    positive,
)


@dataclass(frozen=True, slots=True)
class Seen:
    step: str
    seen: float
    allowed: float


def largest(found: Iterator[Seen]) -> dict[str, Seen]:
    """For each step the one that came closest to what is allowed."""
    steps = defaultdict(list)
    for one in found:
        steps[one.step].append(one)
    return {
        step: max(each, key=lambda one: one.seen / one.allowed)
        for step, each in steps.items()
    }


def errors(weight, options, rng) -> Iterator[Seen]:
    """The errors of all steps for one kernel, at a few frequencies."""
    geometry = Geometry(**options)
    stencil = stencil_of(weight, geometry)
    taps = taps_of(weight, stencil)
    grid_sizes = np.array(stencil.rows)
    points = rng.integers(0, grid_sizes, (3, len(grid_sizes)))
    points[0] = 0
    yield from symbol_errors(taps, points, grid_sizes)
    yield from gram_errors(taps, points, grid_sizes)
    yield from screening_errors(taps, points, grid_sizes)
    if weight.size < 10**4:
        yield from decisions_on_small_matrices(taps, points, grid_sizes)
    if np.prod(stencil.rows) < 10**4:  # not on the fine grid
        yield from layer_errors(weight, stencil, rng)


def exact_symbol(taps, points, grid_sizes):
    """The symbol, and the same of absolute values, in extended precision."""
    pi = 4 * np.arctan(np.longdouble(1))
    cycles = np.zeros((len(points), len(taps.shifts)), np.longdouble)
    for f, shift, n in zip(points.T, taps.shifts.T, grid_sizes):
        cycles += np.multiply.outer(f, shift) % n / np.longdouble(n)
    phase = np.exp(EXTENDED(-2j) * pi * cycles)
    weight = taps.weight.astype(EXTENDED)
    found = [
        [
            np.tensordot(left[:, own], right[own], axes=1).reshape(
                -1, *taps.channel_shape
            )
            for own in taps.phases
        ]
        for left, right in ((phase, weight), (abs(phase) * 0 + 1, abs(weight)))
    ]
    return [np.concatenate(each, axis=-1) for each in found]


def ratio(error, size) -> float:
    """The largest error over a size, entry by entry; 0 / 0 is no error."""
    error, size = np.abs(error), np.abs(size)
    assert not error[size == 0].any()
    return float(np.max(error[size > 0] / size[size > 0], initial=0.0))


def symbol_errors(taps, points, grid_sizes) -> Iterator[Seen]:
    want, sizes = exact_symbol(taps, points, grid_sizes)
    got = symbol(taps, phase_factors(taps.shifts, points, grid_sizes))
    allowed = rounding.symbol_entries(taps, UNIT_DOUBLE)
    yield Seen("symbol, double", ratio(got - want, sizes), allowed)
    _, out, _ = taps.channel_shape
    columns = ColumnSymbols(taps, transposed=True, leading_dimension=taps.columns)
    for part, re, im in columns.at(points, grid_sizes):
        got = (re + 1j * im).reshape(-1, *want.shape[1:])
        error = ratio(got - want[part], sizes[part])
        yield Seen("symbol, double", error, allowed)
    for dtype, name in ((np.complex128, "double"), (np.complex64, "single")):
        batched = BatchedSymbols(
            type(taps)(taps.weight.astype(dtype), taps.pattern, taps.channel_shape)
        )
        phases = batched.phases(points, grid_sizes)
        re, im = batched.at(phases, batched.workspace(len(points)))
        got = (re + 1j * im).reshape(out, taps.columns, len(points), -1)
        error = ratio(got.transpose(2, 3, 0, 1) - want, sizes)
        unit = float(np.finfo(dtype).eps) / 2
        allowed = rounding.symbol_entries(taps, unit)
        yield Seen(f"symbol, {name}", error, allowed)


def gram_errors(taps, points, grid_sizes) -> Iterator[Seen]:
    """Products, factors, decisions and gains in double precision."""
    matrices = symbol(taps, phase_factors(taps.shifts, points, grid_sizes))
    for h in matrices.reshape(-1, *matrices.shape[2:]):
        h = h if h.shape[0] <= h.shape[1] else h.T
        side, columns = h.shape
        rows = some_rows(side)
        wide, sizes = h.astype(EXTENDED), abs(h)
        storage, gram = Panels(side), panels_of(h)
        got = matrix_of(storage, *gram)
        error = np.tril(got[rows] - wide[rows] @ wide.conj().T, rows.start)
        error = ratio(error, sizes[rows] @ sizes.T)
        allowed = rounding.gram_entries(columns, UNIT_DOUBLE)
        yield Seen("Gram matrix, double", error, allowed)
        norm = exact_norm(h)
        if not norm:
            continue
        for near in (1e-9, 1e-3, 1.0):
            square = np.float64((norm * (1 + near)) ** 2)
            factor = [x.copy() for x in gram]
            if storage.has_factor(*factor, np.array([square])).all():
                lower = np.tril(matrix_of(storage, *factor))
                error = factor_error(got, lower, square)
                allowed = rounding.cholesky_error(storage.additions, UNIT_DOUBLE)
                yield Seen("Cholesky factor, double", error, allowed)
        allowed = rounding.certificate(side, columns, UNIT_DOUBLE)
        ladder = ladder_for(side)
        below = [
            storage.has_factor(*(x.copy() for x in gram), np.array([t * t]))[0]
            for t in (norm * np.maximum(1 - allowed * ladder, 0)).astype(float)
        ]
        yield Seen("threshold, double", accepted(below, ladder, allowed), allowed)
        left, _, gain = top_singular_vectors(h, exact=True)
        exact = exact_length(left.conj() @ wide) / exact_length(left)
        error = abs(float(gain - exact)) / float(norm)
        yield Seen(
            "gain, double", error, rounding.gain_error(side, columns, UNIT_DOUBLE)
        )


def ladder_for(side):
    """Multiples of an allowance by which thresholds are below the norm."""
    return 0.5 ** np.arange(-10, 20, 1 if side <= 64 else 3)


def some_rows(side):
    """All rows of small matrices, the last ones of large ones."""
    return slice(0 if side <= 64 else side - ROWS, side)


def panels_of(h):
    """H H^H as our routine makes it, in panels."""
    side, columns = h.shape
    storage = Panels(side)
    parts = np.zeros((2, 1, columns, storage.leading_dimension))
    parts[:, 0, :, :side] = h.real.T, h.imag.T
    gram = np.empty((2, 1, storage.entries))
    storage.set_products(parts[0], parts[1], gram)
    return gram


def matrix_of(storage, re, im):
    """The matrix, its lower triangle at least, of one that lies in panels."""
    numbers = re[0] + 1j * im[0]
    found = np.zeros((storage.side, storage.side), numbers.dtype)
    for first, width, place, stride in storage.layout:
        for k in range(min(width, storage.side - first)):
            rows = slice(first + k, storage.side)
            at = place + k * stride + k
            count = storage.side - first - k
            found[rows, first + k] = numbers[at : at + count]
    return found


def factor_error(gram, factor, square) -> float:
    """|L L^H - (t - G)| over |L| |L|^H, for some rows; with the root of each pivot."""
    side = len(gram)
    rows = some_rows(side)
    wide = factor.astype(EXTENDED)
    want = np.longdouble(square) * np.eye(side) - gram.astype(EXTENDED)
    np.fill_diagonal(want, want.diagonal().real)  # all that the factorization reads
    error = np.tril(wide[rows] @ wide.conj().T - want[rows], rows.start)
    return ratio(error, abs(factor)[rows] @ abs(factor).T)


def exact_length(x):
    return np.sqrt(np.sum(abs(x.astype(EXTENDED)) ** 2))


def exact_norm(h):
    """The norm: a Rayleigh quotient in extended precision, off by a square."""
    wide = h.astype(EXTENDED)
    h = h.astype(complex)
    x = h.conj().T @ np.linalg.eigh(h @ h.conj().T)[1][:, -1]
    for _ in range(3):
        y = wide @ (x / (exact_length(x) or 1))
        x = wide.conj().T @ y
    return exact_length(y)


def accepted(below, ladder, allowed) -> float:
    """How far below the norm a threshold was accepted."""
    return float(np.max(ladder[np.array(below)], initial=0.0)) * allowed


def decisions_on_small_matrices(taps, points, grid_sizes) -> Iterator[Seen]:
    """Decisions with Gram matrices that are made on the way, in both precisions."""
    small = SmallMatrices(taps, phase_factors(taps.shifts, points, grid_sizes))
    every = np.arange(len(points))
    for batched, unit in ((small.double, UNIT_DOUBLE), (small.single, UNIT_SINGLE)):
        name = "double" if unit == UNIT_DOUBLE else "single"
        side, columns = sorted((taps.channel_shape[1], taps.columns))
        allowed = rounding.certificate(side, columns, unit)
        re, im = batched.at(small.phases, batched.workspace(len(points)))
        groups = taps.channel_shape[0]
        h = (re + 1j * im).transpose(2, 0, 1)[: len(points) * groups]
        norms = np.array([exact_norm(each) for each in h])
        norms = norms.reshape(-1, groups).max(axis=1)
        if not norms.all():
            continue
        ladder = ladder_for(side)
        found = np.zeros((len(ladder), len(points)), dtype=bool)
        for k, part in enumerate(ladder):
            squares = (norms * max(1 - part * allowed, 0)) ** 2
            squares = squares.astype(batched.dtype).astype(float)
            found[k] = small._have_factors(batched, every, squares[:, None])
        seen = accepted(found.any(axis=1), ladder, allowed)
        yield Seen(f"threshold, {name}", seen, allowed)


def screening_errors(taps, points, grid_sizes) -> Iterator[Seen]:
    """Interpolated Gram matrices in single precision, and decisions on them."""
    if not np.abs(taps.weight).max():
        return
    screening = ScreeningPass(DoublePass(taps, grid_sizes))
    matrices = symbol(taps, phase_factors(taps.shifts, points, grid_sizes))
    h = matrices.reshape(-1, *matrices.shape[2:])
    h = h.swapaxes(1, 2) if h.shape[1] > h.shape[2] else h
    want = h @ h.conj().swapaxes(1, 2) * screening.scale
    nodes = screening.interpolation.nodes
    size = screening.interpolation_error / rounding.interpolation_error(
        nodes.terms, rounding.lebesgue_constant(nodes.grid_sizes)
    )
    order = np.lexsort(points.T[::-1])  # frequencies come in order
    for part, re, im in screening.prepare(points[order], grid_sizes)(0, len(points)):
        groups = screening.groups
        own = [
            order[p] * groups + g
            for p in range(len(points))[part]
            for g in range(groups)
        ]
        for k, number in enumerate(own):
            one = [np.take(x, [k], axis=screening.storage.axis) for x in (re, im)]
            got = screened(screening.storage, *one)
            error = np.linalg.norm(got - want[number]) / size
            yield Seen(
                "interpolated Gram matrix, single",
                error,
                screening.interpolation_error / size,
            )
            top, ladder = np.linalg.eigvalsh(got)[-1], ladder_for(screening.side)
            below = [
                screening.storage.has_trusted_factor(
                    *(x.copy() for x in one), np.array([threshold])
                )[0]
                for threshold in top
                * np.maximum(1 - screening.factor_error * ladder, 0)
            ]
            if top > 0:
                seen = accepted(below, ladder, screening.factor_error)
                yield Seen(
                    "interpolated threshold, single", seen, screening.factor_error
                )


def screened(storage, re, im):
    """One Hermitian matrix of those that screening has made."""
    if storage.axis == 0:
        lower = matrix_of(storage, re.astype(float), im.astype(float))
    else:
        lower = np.zeros((storage.side, storage.side), complex)
        lower[np.tril_indices(storage.side)] = re[:, 0] + 1j * im[:, 0].astype(float)
    strict = np.tril(lower, -1)
    return strict + strict.conj().T + np.diag(lower.diagonal().real)


def layer_errors(weight, stencil, rng) -> Iterator[Seen]:
    """The gain of the layer itself, by its windows in extended precision."""
    operator = operator_of(weight, stencil)
    shape = (stencil.groups, stencil.in_channels, *stencil.columns)
    pair = unit_pair(operator.apply, rng.standard_normal(shape).astype(weight.dtype))
    wide = operator_of(weight.astype(EXTENDED), stencil)
    x = pair.x.astype(EXTENDED)
    y = np.zeros_like(pair.y, EXTENDED)
    for axis, extend in enumerate(operator.extend, start=2):
        x = extend.apply(x, axis)
    for t, window in enumerate(operator._windows()):
        flat = x[window].reshape(*x.shape[:2], -1)
        y = y + (wide.taps[t] @ flat).reshape(y.shape)
    numbers = pair.x.size + pair.y.size
    allowed = rounding.of_layer(weight, stencil, numbers)
    error = abs(float(pair.gain - exact_length(y) / exact_length(pair.x)))
    if pair.gain:
        budget = pair.gain * allowed.gain + allowed.absolute
        yield Seen("gain of a layer, double", error / pair.gain, budget / pair.gain)
