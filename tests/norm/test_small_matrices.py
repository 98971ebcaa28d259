"""Norms by values: what these claim is certified by factors, or refused."""

import contextlib

import numpy as np
import pytest
from oracles import norm_by_matrix
from routes import norm_along

from convspectra import Geometry, singular_values
from convspectra._compiled import lanczos_batched, svdvals
from convspectra._layer.stencil import stencil_of
from convspectra._maps.split_complex import BatchedSymbols
from convspectra._maps.symbol import frequencies_of, grid_phases, symbol, taps_of
from convspectra._norm import small_matrices
from convspectra._norm.small_matrices import SmallMatrices

TORI = [
    ((6, 5, 3, 3), {"grid": 6}),
    ((4, 4, 3, 3), {"grid": 32}),
    ((16, 16, 3, 3), {"grid": 16}),  # so many that single precision comes first
    ((6, 3, 3, 3), {"grid": 8, "stride": 2, "groups": 2}),
    ((3, 4, 3, 3), {"grid": 6, "boundary": "zeros", "padding": 40}),
]
SEARCHES = [
    ((4, 4, 3, 3), {"grid": 128}),  # over boxes
    ((3, 3, 3), {"grid": None}),
]


@pytest.fixture
def change(monkeypatch):
    """Let a function change the values (side, count) that our routine has found."""

    def with_values(changed):
        found_by = svdvals.values_of_many

        def routine(re, im, values, start, stop):
            found_by(re, im, values, start, stop)
            changed(values)

        monkeypatch.setattr(svdvals, "values_of_many", routine)

    return with_values


@pytest.fixture
def mislead(monkeypatch):
    """Let a function change the squares of norms (count,) that Lanczos estimates."""

    def with_estimates(changed):
        found_by = lanczos_batched.top_triangles

        def routine(re, im, start, steps, squares):
            found_by(re, im, start, steps, squares)
            squares[:] = changed(squares)

        monkeypatch.setattr(lanczos_batched, "top_triangles", routine)

    return with_estimates


def inverse(squares):
    return 1 / squares


def half_where_large(squares):
    return np.where(squares > squares.mean(), squares / 4, squares)


@pytest.mark.parametrize("wrong", [np.zeros_like, inverse, half_where_large])
@pytest.mark.parametrize(("shape", "options"), TORI)
def test_estimates_that_are_wrong_leave_the_bounds_where_they_are(
    shape, options, wrong, mislead, rng
):
    weight, geometry = rng.standard_normal(shape), Geometry(**options)
    mislead(wrong)
    found = norm_along(weight, geometry, method="embedding")
    torus = Geometry(grid=8) if "boundary" in options else geometry
    want = float(singular_values(weight, torus).max())
    assert found.upper == pytest.approx(want, rel=1e-10)
    assert found.upper >= want * (1 - 1e-14)


@pytest.mark.parametrize(("shape", "options"), TORI)
def test_estimates_and_values_that_are_wrong_certify_nothing(
    shape, options, change, mislead, rng
):
    def turned(values):
        values[:] = 1 / values

    weight, geometry = rng.standard_normal(shape), Geometry(**options)
    mislead(inverse)
    change(turned)
    with pytest.raises(ArithmeticError, match="values and the Cholesky factor of a"):
        norm_along(weight, geometry, method="embedding")


@pytest.mark.parametrize("wrong", [0.5, 0.0])
@pytest.mark.parametrize(("shape", "options"), SEARCHES)
def test_values_that_are_wrong_at_the_peak_certify_nothing(
    shape, options, wrong, change, rng
):
    weight, geometry = rng.standard_normal(shape), Geometry(**options)
    want = norm_along(weight, geometry, method="embedding")
    upper = float(want.upper) / _scale(weight)

    def at_the_peak(values):
        values[:, values[0] > 0.9 * upper] *= wrong

    change(at_the_peak)
    with pytest.raises(ArithmeticError, match="values and the Cholesky factor of a"):
        norm_along(weight, geometry, method="embedding")


def _scale(weight):
    """The power of two that brings the largest entry next to 1."""
    return 2.0 ** np.round(np.log2(np.abs(weight).max()))


@pytest.mark.parametrize(("shape", "options"), SEARCHES)
def test_values_that_are_no_numbers_certify_nothing_that_is_false(
    shape, options, change, rng
):
    weight, geometry = rng.standard_normal(shape), Geometry(**options)
    want = norm_along(weight, geometry, method="embedding")

    def some(values):
        values[:, values[0] > 0.9 * values[0].max()] = np.nan

    change(some)
    # The first of them counts as the largest, and may even be so.
    with contextlib.suppress(ArithmeticError):
        assert norm_along(weight, geometry, method="embedding").upper >= want.lower


@pytest.mark.parametrize("screened", [0, 2**60])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((6, 5, 3, 3), {"grid": 6}),
        ((4, 7, 3), {"grid": 9}),
        ((6, 3, 3, 3), {"grid": 8, "stride": 2, "groups": 2}),
        ((8, 1, 3), {"grid": 9, "groups": 8}),
    ],
)
def test_what_is_below_is_told_in_both_precisions(
    shape, options, dtype, screened, rng, monkeypatch
):
    weight = rng.standard_normal(shape).astype(dtype)
    geometry = Geometry(**options)
    stencil = stencil_of(weight, geometry)
    taps = taps_of(weight, stencil)
    kept = frequencies_of(taps.pattern, stencil.rows, real=dtype == "float64")
    small = SmallMatrices(taps, grid_phases(taps.pattern, kept))
    norms = small.norms().max(axis=1, keepdims=True)  # few: in double precision
    monkeypatch.setattr(small_matrices, "SINGLE_PRODUCTS", screened)
    assert small.norms().max() == pytest.approx(norms.max(), rel=1e-6)
    assert norms.max() == pytest.approx(norm_by_matrix(weight, geometry), rel=1e-13)
    every = np.arange(len(norms))
    for near in (1e-11, 1e-2):
        assert small.are_below(every, (norms * (1 + near)) ** 2).all()
        assert not small.are_below(every, (norms * (1 - near)) ** 2).any()
    assert not small.are_below(every, 0 * norms).any()
    some, middle = every[::-2], (norms.min() + norms.max()) / 2
    below = small.are_below(some, np.full((len(some), 1), middle**2))
    np.testing.assert_array_equal(below, norms[some, 0] < middle)
    each = small.norms(every)  # of every group, where SINGLE_PRODUCTS allows it
    largest = np.argmax(each, axis=1)[:, None]
    squares = (each * (1 + 1e-2)) ** 2
    assert small.are_below(every, squares).all()
    np.put_along_axis(squares, largest, (norms * (1 - 1e-2)) ** 2, axis=1)
    assert not small.are_below(every, squares).any()


@pytest.mark.parametrize("imaginary", [0.0, 1e-60, 1.0])
@pytest.mark.parametrize("groups", [1, 2])
def test_matrices_of_many_taps_are_told_by_their_factors(
    groups, imaginary, rng, monkeypatch
):
    shape = (6, 6 // groups, 5, 6)
    weight = rng.standard_normal(shape) + 1j * imaginary * rng.standard_normal(shape)
    geometry = Geometry(grid=(7, 8), groups=groups)
    stencil = stencil_of(weight, geometry)
    taps = taps_of(weight, stencil)
    kept = frequencies_of(taps.pattern, stencil.rows, real=False)
    whole = grid_phases(taps.pattern, kept)
    values = np.linalg.svd(symbol(taps, whole), compute_uv=False)[..., 0]
    want = values.max(axis=1, keepdims=True)
    monkeypatch.setattr(small_matrices, "SINGLE_PRODUCTS", 0)
    few, every = np.array([2, 17, 30]), np.arange(len(want))
    for phases in (whole, whole[:, BatchedSymbols(taps).taps_needed]):
        small = SmallMatrices(taps, phases)
        for which in (few, every):
            assert small.are_below(which, (want[which] * (1 + 1e-11)) ** 2).all()
            assert not small.are_below(which, (want[which] * (1 - 1e-11)) ** 2).any()
