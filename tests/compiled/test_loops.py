"""Compiled routines for matrices in the lanes of vectors, against LAPACK."""

import importlib.util

import numba
import numpy as np
import pytest

from convspectra._compiled import cholesky_batched, cholesky_panels, dqds, jit, simd
from convspectra._compiled.cholesky_batched import (
    definite_triangles,
    gram_triangles,
)
from convspectra._compiled.cholesky_panels import (
    definite_panels,
    gram_panels,
    layout,
)
from convspectra._compiled.lanczos_batched import top_triangles
from convspectra._compiled.lanczos_panels import lanczos_panels
from convspectra._compiled.soft_threshold import soft_threshold
from convspectra._compiled.svdvals import values_of_large, values_of_many
from convspectra._compiled.tridiagonal import top_eigenvalues
from convspectra._compiled.weighted_sums import weighted_sums

REAL = {"float32": np.float32, "float64": np.float64}
SHAPES = [(1, 1), (2, 2), (5, 1), (3, 2), (7, 7), (16, 16), (19, 17), (40, 33)]
COUNTS = [1, 8, 16, 37]  # with lanes that are not filled


def unitary(rng, m, n):
    return np.linalg.qr(rng.standard_normal((m, n)) + 1j * rng.standard_normal((m, n)))[
        0
    ]


def with_values(rng, m, n, values):
    return unitary(rng, m, n) @ np.diag(values) @ unitary(rng, n, n).conj().T


FAMILIES = {
    "random": lambda rng, m, n: with_values(rng, m, n, np.sort(rng.random(n))),
    "zero": lambda rng, m, n: np.zeros((m, n), dtype=complex),
    "diagonal": lambda rng, m, n: np.eye(m, n) * (1.0 + np.arange(n)) / n + 0j,
    "all equal": lambda rng, m, n: unitary(rng, m, n),
    "rank one": lambda rng, m, n: with_values(rng, m, n, np.eye(n)[0]),
    "two values": lambda rng, m, n: with_values(
        rng, m, n, 0.5 + (np.arange(n) < n / 2)
    ),
    "graded": lambda rng, m, n: with_values(rng, m, n, 10.0 ** -np.linspace(0, 30, n)),
    "zero columns": lambda rng, m, n: (
        rng.standard_normal((m, n)) * (np.arange(n) % 2) + 0j
    ),
    "ones": lambda rng, m, n: np.ones((m, n), dtype=complex),
    "real": lambda rng, m, n: rng.standard_normal((m, n)) + 0j,
    "Kahan": lambda rng, m, n: np.eye(m, n) - 0.9 * np.triu(np.ones((m, n)), 1) + 0j,
}


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def batch(rng, family, shape, count):
    return np.stack([family(rng, *shape) for _ in range(count)])


def planar(x, dtype):
    moved = np.moveaxis(x, 0, -1)
    return (np.array(part, dtype, order="C") for part in (moved.real, moved.imag))


def close(dtype, x):
    """What LAPACK itself may miss by, in the precision of `dtype`."""
    norm = np.linalg.norm(x, 2, axis=(1, 2)).max()
    return 16 * np.finfo(dtype).eps * max(x.shape[1:]) ** 0.5 * norm + 1e-300


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_those_of_lapack(family, shape, dtype, rng):
    for count in COUNTS:
        x = batch(rng, family, shape, count)
        re, im = planar(x, dtype)
        found = np.full((shape[1], count), np.nan, dtype)
        values_of_many(re, im, found, 0, count)
        want = np.linalg.svd(x, compute_uv=False)
        np.testing.assert_allclose(found.T, want, rtol=0, atol=close(dtype, x))
        assert (np.diff(found, axis=0) <= 0).all()


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("shape", [*SHAPES, (131, 130)])
def test_values_of_large_matrices_are_those_of_lapack(family, shape, dtype, rng):
    x = batch(rng, family, shape, 3)
    re, im = np.ascontiguousarray(x.real, dtype), np.ascontiguousarray(x.imag, dtype)
    found = np.full((3, shape[1]), np.nan, dtype)
    values_of_large(re, im, found, 0, 3)
    want = np.linalg.svd(x, compute_uv=False)
    np.testing.assert_allclose(found, want, rtol=0, atol=close(dtype, x))


def test_matrices_in_other_lanes_change_nothing(rng):
    x = batch(rng, FAMILIES["random"], (9, 9), 40)
    x[3], x[20] = 0, 1e30  # overflows on the way, in its own lane
    re, im = planar(x, "float32")
    found = np.zeros((9, 40), np.float32)
    values_of_many(re, im, found, 0, 40)
    want = np.linalg.svd(x, compute_uv=False)
    others = np.delete(np.arange(40), 20)
    np.testing.assert_allclose(found.T[others], want[others], atol=1e-5)


def test_only_the_matrices_that_are_asked_for_are_written(rng):
    re, im = planar(batch(rng, FAMILIES["random"], (4, 4), 40), "float64")
    found = np.full((4, 40), -1.0)
    values_of_many(re, im, found, 16, 32)
    assert (found[:, 16:32] >= 0).all()
    assert (found[:, :16] == -1).all()
    assert (found[:, 32:] == -1).all()


def test_the_last_resort_finds_the_values_too(rng):
    d, e = rng.random((2, 12, dqds.LANES))
    d[4] = e[7] = e[-1] = 0
    bad = np.arange(dqds.LANES) % 2.0
    found = np.full((12, dqds.LANES), -1.0)
    bisect = numba.njit(dqds.set_by_bisection.py_func)  # which Python can call
    bisect(d.ravel(), e.ravel(), 12, bad, found.reshape(-1))
    for lane in range(1, dqds.LANES, 2):
        matrix = np.diag(d[:, lane]) + np.diag(e[:-1, lane], 1)
        want = np.linalg.svd(matrix, compute_uv=False)
        np.testing.assert_allclose(found[:, lane], want, atol=1e-14)
    assert (found[:, ::2] == -1).all()


def soft_thresholded(x, bound, dtype):
    re, im = planar(x, dtype)
    soft_threshold(re, im, REAL[dtype](bound), 0, len(x))
    return np.moveaxis(re + 1j * im, -1, 0)


def soft_thresholded_by_svd(x, bound):
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    return (u * np.maximum(s - bound, 0)[:, None, :]) @ vh


@pytest.mark.parametrize("part", [0.0, 1e-5, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_soft_threshold_is_that_of_an_svd(family, shape, dtype, part, rng):
    for count in (1, 21):
        x = batch(rng, family, shape, count)
        bound = part * np.linalg.norm(x, 2, axis=(1, 2)).max()
        found, want = (
            soft_thresholded(x, bound, dtype),
            soft_thresholded_by_svd(x, bound),
        )
        np.testing.assert_allclose(found, want, rtol=0, atol=2 * close(dtype, x))
        if part > 1:
            assert not found.any()


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("shape", [(2, 1), (6, 6), (37, 36), (75, 70), (81, 39)])
def test_the_soft_threshold_by_the_gram_matrix_or_without_it(shape, dtype, rng):
    n = shape[1]
    values = np.where(np.arange(n) < 1, 1, 0.15 + 1e-6 * rng.random(n))
    x = np.stack([with_values(rng, *shape, values) for _ in range(3)])
    for bound in (0.149, 0.15, 0.2, 0.9):
        found, near, far = (
            soft_thresholded(np.concatenate([x, mate * x[:1]]), bound, dtype)[:3]
            for mate in (0, 0.1, 100)
        )
        want = soft_thresholded_by_svd(x, bound)
        np.testing.assert_allclose(found, want, rtol=0, atol=2 * close(dtype, x))
        np.testing.assert_allclose(far, want, rtol=0, atol=2 * close(dtype, x))
        # A fourth matrix in the vector changes nothing, unless the bound is small
        # against its norm: then all of them go the other way.
        np.testing.assert_array_equal(near, found)
        assert n == 1 or (far != found).any()


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("bound", [0.01, 0.5])
def test_the_soft_threshold_of_nan_is_nan(bound, dtype, rng):
    x = batch(rng, FAMILIES["random"], (7, 5), 40)
    want = soft_thresholded_by_svd(x, bound)
    x[3, 2, 1], x[6, 0, 0] = np.nan, np.inf
    found = soft_thresholded(x, bound, dtype)
    others = np.delete(np.arange(40), [3, 6])
    atol = 2 * close(dtype, x[others])
    np.testing.assert_allclose(found[others], want[others], rtol=0, atol=atol)
    assert np.isnan(found[[3, 6]]).all()


def in_panels(matrices, dtype):
    """Hermitian matrices as the kernels have them; above the pivots stands nonsense."""
    count, side, _ = matrices.shape
    panels, numbers, rows = layout(side)
    planes = np.zeros((2, count, numbers), dtype)
    for first, width, place, stride in panels:
        for k in range(min(width, side - first)):
            column = matrices[:, first:, first + k].copy()
            column[:, :k] = 1e3 + 1e3j
            room = planes[:, :, place + k * stride :][:, :, : side - first]
            room[...] = column.real, column.imag
    return *planes, panels, rows


def grams_and_levels(count, side, dtype, rng):
    """Gram matrices, their top eigenvalues, and levels of which some are above."""
    x = rng.standard_normal((count, side, side + 2, 2)) @ [1, 1j]
    grams = x @ x.conj().swapaxes(1, 2)
    top = np.linalg.eigvalsh(grams)[:, -1]
    above = np.arange(count) % 3 > 0
    near = 20 * np.finfo(dtype).eps * side
    return grams, top, above, (top * np.where(above, 1 + near, 1 - near)).astype(dtype)


def from_panels(re, im, side):
    found = np.zeros((len(re), side, side), complex)
    for first, width, place, stride in layout(side)[0]:
        for k in range(min(width, side - first)):
            room = slice(place + k * stride, place + k * stride + side - first)
            found[:, first:, first + k] = re[:, room] + 1j * im[:, room]
    return found


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("side", [1, 2, 15, 16, 17, 31, 33, 48, 64, 65, 100, 129])
def test_panels_and_what_is_read_off_them(side, dtype, rng):
    count, eps = 7, np.finfo(dtype).eps
    grams, top, above, squares = grams_and_levels(count, side, dtype, rng)
    re, im, panels, rows = in_panels(grams, dtype)
    sizes = np.empty(count, dtype)
    definite_panels(re, im, panels, rows, squares, sizes)
    np.testing.assert_array_equal(np.isfinite(sizes), above)
    factors, levels = from_panels(re, im, side)[above], squares[above, None, None]
    back = factors @ factors.conj().swapaxes(1, 2)
    want = levels * np.eye(side) - grams[above]
    np.testing.assert_allclose(back, want, atol=20 * eps * side * top.max())
    # What fills up the last panel has pivots of its own.
    least = np.sqrt(squares[above]) * (side % 4 > 0)
    columns, lines = (np.abs(factors).sum(axis=k).max(axis=1) for k in (1, 2))
    sums = np.maximum(columns, least) * np.maximum(lines, least)
    np.testing.assert_allclose(sizes[above], sums, rtol=100 * side * eps)

    re, im, panels, rows = in_panels(grams, dtype)
    steps = min(16, side)
    basis = np.zeros((steps + 1, 2 * rows), dtype)
    basis[0, :side] = 1 / np.sqrt(side)
    diagonal, beside = np.empty((2, count, steps), dtype)
    lanczos_panels(re, im, panels, basis, diagonal, beside)
    of_last = basis[:-1, :side] + 1j * basis[:-1, rows : rows + side]
    image = of_last.conj() @ grams[-1] @ of_last.T
    atol = 20 * eps * side * top[-1]
    np.testing.assert_allclose(np.diag(image), diagonal[-1], atol=atol)
    estimates = np.empty(count, dtype)
    top_eigenvalues(diagonal, beside, estimates)
    assert (estimates <= top * (1 + 100 * eps)).all()
    assert (estimates >= 0.9 * top).all()


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("columns", [1, 31, 32, 70])
@pytest.mark.parametrize("side", [1, 2, 15, 16, 17, 33, 64, 65, 129])
def test_products_of_matrices_with_their_adjoints(side, columns, dtype, rng):
    panels, numbers, rows = layout(side)
    parts = np.zeros((2, 3, columns, rows + 5), dtype)
    parts[..., :side] = rng.standard_normal((2, 3, columns, side))
    both = np.full((2, 4 * numbers), -0.0, dtype)
    re, im = both[:, : 3 * numbers].reshape(2, 3, numbers)
    re[...] = im[...] = np.nan
    gram_panels(*parts, panels, rows, re, im)
    assert np.signbit(both[:, 3 * numbers :]).all()  # not even 0 was added there
    matrices = (parts[0] + 1j * parts[1])[..., :side].swapaxes(1, 2)
    want = np.tril(matrices @ matrices.conj().swapaxes(1, 2))
    atol = 20 * columns * np.finfo(dtype).eps
    found = from_panels(re, im, side)
    np.testing.assert_allclose(np.tril(found), want, atol=atol)
    # All that fills up is zero.
    assert np.count_nonzero(re) == np.count_nonzero(found.real)
    assert np.count_nonzero(im) == np.count_nonzero(found.imag)


@pytest.fixture
def with_other_registers(monkeypatch):
    """A module compiled for registers that this machine does not have."""

    def imported(module):
        monkeypatch.setattr(simd, "ONE_REGISTER", not simd.ONE_REGISTER)
        # Nothing of it is kept on disk: no process could import that module again.
        monkeypatch.setattr(jit._SourceCache, "_path", lambda *_: None)
        spec = importlib.util.spec_from_file_location(
            f"{module.__name__}_elsewhere", module.__file__
        )
        elsewhere = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(elsewhere)
        return elsewhere

    return imported


def test_products_of_panels_with_other_registers(with_other_registers, rng):
    elsewhere = with_other_registers(cholesky_panels)
    for side, columns in ((1, 1), (17, 5), (33, 32), (40, 70), (129, 33)):
        panels, numbers, rows = layout(side)
        parts = np.zeros((2, 2, columns, rows + 5))
        parts[..., :side] = rng.standard_normal((2, 2, columns, side))
        re, im = np.full((2, 2, numbers), np.nan)
        elsewhere.gram_panels(*parts, panels, rows, re, im)
        matrices = (parts[0] + 1j * parts[1])[..., :side].swapaxes(1, 2)
        want = np.tril(matrices @ matrices.conj().swapaxes(1, 2))
        found = np.tril(from_panels(re, im, side))
        np.testing.assert_allclose(found, want, atol=1e-14 * columns)


def test_factors_of_products_with_other_registers(with_other_registers, rng):
    elsewhere = with_other_registers(cholesky_batched)
    for side, columns in ((1, 1), (2, 3), (3, 1), (6, 6), (17, 33), (32, 4)):
        re, im = rng.standard_normal((2, side, columns, 21))
        top = np.linalg.norm((re + 1j * im).transpose(2, 0, 1), 2, axis=(1, 2)) ** 2
        above, found = np.arange(21) % 3 > 0, np.full(21, np.nan)
        squares = top * np.where(above, 1 + 1e-11, 1 - 1e-11)
        triangles = np.full((2, side * (side + 1) // 2, 21), np.nan)
        elsewhere.gram_triangles(re, im, *triangles)
        elsewhere.definite_triangles(*triangles, side, squares, found)
        np.testing.assert_array_equal(found, above)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("terms", [1, 9, 22])
@pytest.mark.parametrize("count", [1, 3, 4, 7, 9])
def test_weighted_sums(count, terms, dtype, rng):
    weights = rng.standard_normal((count, terms)).astype(dtype)
    arrays = rng.standard_normal((terms, 16 * 67 + 5)).astype(dtype)
    out = np.full((count, 16 * 67 + 5), np.nan, dtype)
    weighted_sums(weights, arrays, out)
    np.testing.assert_allclose(
        out, weights @ arrays, atol=20 * terms * np.finfo(dtype).eps
    )


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 6, 17, 31, 64])
def test_triangles_and_what_is_read_off_them(side, dtype, rng):
    count, eps = 37, np.finfo(dtype).eps  # neither one vector nor whole ones
    grams, top, above, squares = grams_and_levels(count, side, dtype, rng)
    triangles = grams[:, *np.tril_indices(side)].T
    re, im = (np.ascontiguousarray(x, dtype) for x in (triangles.real, triangles.imag))
    found = np.full(count, np.nan, dtype)
    definite_triangles(re, im, side, squares, found)
    np.testing.assert_array_equal(found, above)
    # What is no number, zero or negative is not definite, nor does it harm others.
    squares[1::3] = np.resize([np.nan, 0, -1], len(squares[1::3]))
    definite_triangles(re, im, side, squares, found)
    np.testing.assert_array_equal(found, np.arange(count) % 3 > 1)

    start = np.zeros((2, side), dtype)
    start[0] = 1 / np.sqrt(side)
    top_triangles(re, im, start, min(16, side), found)
    assert (found <= top * (1 + 100 * eps)).all()
    assert (found >= 0.9 * top).all()


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("columns", [1, 6, 33])
@pytest.mark.parametrize("side", [1, 2, 3, 5, 6, 17, 32])
def test_triangles_of_products(side, columns, dtype, rng):
    count = 37
    re, im = rng.standard_normal((2, side, columns, count)).astype(dtype)
    matrices = (re + 1j * im).astype(np.complex128).transpose(2, 0, 1)
    grams = matrices @ matrices.conj().swapaxes(1, 2)
    found = np.full((2, side * (side + 1) // 2, count), np.nan, dtype)
    gram_triangles(re, im, *found)
    want = grams[:, *np.tril_indices(side)].T
    error = 10 * columns * np.finfo(dtype).eps
    np.testing.assert_allclose(found[0] + 1j * found[1], want, atol=error)


@pytest.mark.parametrize("size", [1, 2, 9, 24])
def test_top_eigenvalues_of_tridiagonal_matrices(size, rng):
    diagonal, beside = rng.standard_normal((2, 30, size))
    beside[:5] = 0
    full = np.zeros((30, size, size))
    at = np.arange(size)
    full[:, at, at] = diagonal
    full[:, at[1:], at[:-1]] = beside[:, :-1]
    want = np.linalg.eigvalsh(full)[:, -1]
    found = np.empty(30)
    top_eigenvalues(diagonal, beside, found)
    assert (found <= want + 1e-14).all()
    np.testing.assert_allclose(found, want, atol=1e-5)
