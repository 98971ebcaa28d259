"""Screening of Gram matrices: what it says holds, and it says something."""

import itertools

import numpy as np
import pytest

from convspectra import Geometry
from convspectra._compiled.packed import Panels
from convspectra._layer.stencil import stencil_of
from convspectra._maps import split_complex
from convspectra._maps.split_complex import ColumnSymbols
from convspectra._maps.symbol import phase_factors, symbol, taps_of
from convspectra._norm import gram_certificate, interpolation, rounding
from convspectra._norm.gram_certificate import DoublePass
from convspectra._norm.interpolation import Interpolation, Nodes
from convspectra._norm.rounding import lebesgue_constant
from convspectra._norm.screening import ScreeningPass
from convspectra._route.norm import norm_route

DEGREES = [[2], [0], [30], [2, 2], [4, 4], [10, 3], [0, 3], [2, 3, 1]]
CASES = {
    "plain": ((7, 6, 3, 3), {}),
    "tall": ((20, 6, 3, 3), {}),
    "large kernel": ((5, 7, 5, 6), {}),
    "strided": ((6, 5, 3, 3), {"stride": 2}),
    "tall, strided": ((23, 5, 3, 3), {"stride": 2}),
    "grouped": ((6, 2, 3, 3), {"groups": 3}),
    "depthwise": ((9, 1, 5, 5), {"groups": 9}),
    "line": ((40, 37, 4), {}),
    "many channels": ((70, 66, 3), {}),  # too many for a batch in lanes
}


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("degree", DEGREES)
def test_few_values_give_a_polynomial_everywhere(degree, real, rng):
    degree = np.array(degree)
    waves = np.array(list(itertools.product(*(range(-d, d + 1) for d in degree))))
    taps = rng.standard_normal((len(waves), 5)) + (0 if real else 1j)

    def values(cycles):
        return np.exp(2j * np.pi * cycles @ waves.T) @ taps

    nodes = Nodes(tuple(degree), real=real)
    assert len(nodes.frequencies) == (len(waves) // 2 + 1 if real else len(waves))
    known = values(nodes.frequencies / nodes.grid_sizes)
    found = Interpolation(nodes, 5)
    for part in (slice(0, 1), slice(1, len(known))):
        found.set(part, known.real[part], known.imag[part])
    size = np.abs(known).max()
    for grid_sizes in (
        np.array([24, 16, 9])[: len(degree)],
        np.full(len(degree), 2**40),
    ):
        frequencies = rng.integers(0, grid_sizes, (50, len(degree)))
        frequencies = frequencies[np.argsort(frequencies[:, 0])]
        weights = nodes.weights(frequencies, grid_sizes)
        want, got = values(frequencies / grid_sizes), np.full((50, 5), np.nan, complex)
        for start, stop in ((0, 13), (13, 50)):
            for part, re, im in found.at(frequencies, grid_sizes, 4)(start, stop):
                got[part] = re + 1j * im
        # The bound that certificates rely on, which is not much more than it must be.
        lebesgue = lebesgue_constant(nodes.grid_sizes)
        allowed = rounding.interpolation_error(nodes.terms, lebesgue) * size
        assert np.abs(got - want).max() <= allowed
        assert allowed < 1e-4 * size
        sums = np.prod([np.abs(w).sum(axis=1).max() for w in weights])
        assert sums <= lebesgue * (1 + 1e-12)


def test_pieces_hold_whole_runs(monkeypatch):
    monkeypatch.setattr(interpolation, "PARTIAL_BYTES", 1)
    nodes = Nodes((4, 4), real=True)
    frequencies = np.array([[0, 1], [0, 2], [3, 0], [5, 1], [5, 2]])
    pieces = Interpolation(nodes, 3).pieces(frequencies)
    assert pieces == [slice(0, 2), slice(2, 3), slice(3, 5)]


def layer(rng, case, dtype):
    shape, options = CASES[case]
    grid = tuple(12 for _ in shape[2:])
    weight = rng.standard_normal(shape)
    if dtype == "complex128":
        weight = weight + 1j * rng.standard_normal(shape)
    taps = taps_of(weight, stencil_of(weight, Geometry(grid=grid, **options)))
    grid_sizes = np.array(grid) // options.get("stride", 1)
    points = np.array(list(itertools.product(*map(range, grid_sizes))))
    return taps, points, grid_sizes


def norms_of(taps, points, grid_sizes):
    matrices = symbol(taps, phase_factors(taps.shifts, points, grid_sizes))
    return np.linalg.norm(matrices, 2, axis=(2, 3)).ravel()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_symbols_column_by_column_are_the_symbol(
    case, dtype, transposed, monkeypatch, rng
):
    monkeypatch.setattr(split_complex, "SMALL_BATCH_ENTRIES", 1)
    monkeypatch.setattr(split_complex, "LARGE_BATCH", 5)
    taps, points, grid_sizes = layer(rng, case, dtype)
    want = symbol(taps, phase_factors(taps.shifts, points, grid_sizes))
    want = want.reshape(-1, *want.shape[2:])
    want = want if transposed else want.swapaxes(1, 2)  # column by column
    groups, rows, seen = taps.channel_shape[0], want.shape[2], 0
    symbols = ColumnSymbols(taps, transposed=transposed, leading_dimension=rows + 3)
    for part, re, im in symbols.at(points, grid_sizes):
        here = slice(part.start * groups, part.stop * groups)
        np.testing.assert_allclose((re + 1j * im)[..., :rows], want[here], atol=1e-12)
        assert not re[..., rows:].any()
        assert not im[..., rows:].any()
        seen += part.stop - part.start
    assert seen == len(points)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_said_to_be_below_is_below(case, dtype, rng, monkeypatch):
    monkeypatch.setattr(gram_certificate, "THREAD_PRODUCTS", 1)
    taps, points, grid_sizes = layer(rng, case, dtype)
    norms, double = norms_of(taps, points, grid_sizes), DoublePass(taps, grid_sizes)
    screening = ScreeningPass(double)
    every = np.arange(len(norms))
    some = every[rng.random(len(norms)) < 0.3]
    for which in (every, some):
        for near in (-1e-2, -1e-6, -1e-9, 1e-9):
            squares = (norms[which] * (1 + near)) ** 2
            if near < 0:
                assert not screening.below(points, which, squares).any()
                assert not double.below(points, which, squares).any()
            else:
                assert double.below(points, which, squares).all()
        # Near the largest, where it matters, a little room is enough.
        large = which[norms[which] > 0.6 * norms.max()]
        assert screening.below(points, large, (norms[large] * 1.001) ** 2).all()
        for one in (screening, double):
            gains = one.estimates(points, which)
            assert (gains <= norms[which] + 1e-5 * norms.max()).all()
            assert (gains >= 0.8 * norms[which] - 1e-5 * norms.max()).all()


def test_what_a_factor_loses_is_taken_off(rng):
    taps, points, grid_sizes = layer(rng, "line", "float64")
    screening = ScreeningPass(DoublePass(taps, grid_sizes))
    [(_, re, im)] = screening.prepare(points, grid_sizes)(0, len(points))
    row, column = np.tril_indices(screening.side)
    matrices = np.zeros((len(points), screening.side, screening.side), complex)
    matrices[:, row, column] = (re + 1j * im).T
    largest = np.linalg.eigvalsh(matrices)[:, -1]  # of what single precision has made
    for part in (-0.01, 0.0, 0.5, 0.9, 2.0):
        squares = largest * (1 + part * screening.factor_error)
        squares = (squares + screening.interpolation_error) / screening.scale
        assert screening.certify(re, im, squares).all() == (part > 1)
        assert screening.certify(re, im, squares).any() == (part > 1)


def test_no_screening_where_it_would_save_nothing():
    def is_screened(channels, grid, *, real=True):
        weight = np.broadcast_to(np.float32(1), (channels, channels, 3, 3))
        stencil = stencil_of(weight, Geometry(grid=grid))
        return norm_route(stencil, real=real, on_host=True).is_screened

    # 5 x 5 nodes, of which 13 differ if the kernel is real.
    assert not is_screened(80, (4, 5))  # 12 frequencies
    assert is_screened(80, (4, 7))  # 16
    assert not is_screened(80, (5, 5), real=False)
    assert is_screened(80, (5, 6), real=False)
    # What is known at 25 nodes would take 288 MB, more than the kernel itself.
    assert not is_screened(1200, (64, 64), real=False)


def test_a_factor_that_is_too_large_to_be_trusted_is_not(rng, monkeypatch):
    taps, points, grid_sizes = layer(rng, "many channels", "float64")
    screening = ScreeningPass(DoublePass(taps, grid_sizes))
    every, squares = np.arange(len(points)), np.full(len(points), 1e6)
    assert screening.below(points, every, squares).all()
    monkeypatch.setattr(screening.storage, "factor_bound", 0.5)
    assert not screening.below(points, every, squares).any()


@pytest.mark.parametrize("side", [3, 16, 32, 70])
def test_nothing_is_below_what_rounding_may_be(side):
    weight = np.zeros((side, side, 3))
    weight[0, 0, 0] = 1.0
    weight[1:, 1:, 1] = 1e-30  # nearly zero
    taps = taps_of(weight, stencil_of(weight, Geometry(grid=9)))
    points, every = np.arange(9)[:, None], np.arange(9)
    screening = ScreeningPass(DoublePass(taps, np.array([9])))
    for part in (0.0, 0.5, 1.0):
        error = screening.interpolation_error / screening.scale
        assert not screening.below(points, every, np.full(9, part * error)).any()
    assert screening.below(points, every, np.full(9, 1.01)).all()


@pytest.mark.parametrize("gap", [0, 1e-8, 1e-3, 1])
@pytest.mark.parametrize("side", [1, 2, 17, 40, 65, 200])
def test_lanczos_finds_the_vector_of_the_top(side, gap, rng):
    values = rng.random(side)
    values[:2] = [1, 1 - gap][:side]
    basis = np.linalg.qr(rng.standard_normal((side, side, 2)) @ [1, 1j])[0]
    matrix = basis * np.sqrt(values)
    storage = Panels(side)
    columns = np.zeros((2, 1, side, storage.leading_dimension))
    columns[:, 0, :, :side] = matrix.real.T, matrix.imag.T
    gram = np.empty((2, 1, storage.entries))
    storage.set_products(*columns, gram)
    vector = storage.top_vector(*gram[:, 0])
    gain = np.linalg.norm(matrix.conj().T @ vector) / np.linalg.norm(vector)
    assert 1 - 1e-8 <= gain**2 <= 1 + 1e-12


def test_any_vector_is_on_top_of_nothing():
    storage = Panels(20)
    vector = storage.top_vector(*np.zeros((2, storage.entries)))
    assert np.linalg.norm(vector) == pytest.approx(1)
