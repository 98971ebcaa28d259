"""Each fast path is really taken where it should be, and gives the plain answer."""

import sys

import numpy as np
import pytest
from oracles import norm_by_matrix, tolerance, values_by_matrix
from routes import norm_along

from convspectra import (
    Geometry,
    _spectrum,
    clip,
    operator_norm,
    singular_values,
    top_vectors,
)
from convspectra._arrays import array
from convspectra._bound import clip as clipping
from convspectra._compiled import packed, soft_threshold, svdvals
from convspectra._layer.stencil import stencil_of
from convspectra._maps import split_complex, symbol
from convspectra._norm import (
    gram_certificate,
    one_matrix,
    screening,
    search,
    small_matrices,
)
from convspectra._norm import operator_norm as norms
from convspectra._norm.rounding import of_stated_matrix
from convspectra._route.norm import norm_route
from convspectra._route.records import NormRoute


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of functions, given as (owner, name)."""

    def count(*functions):
        seen = []
        for owner, name in functions:
            real = getattr(owner, name)

            def counted(*args, name=name, real=real, **kwargs):
                seen.append(name)
                return real(*args, **kwargs)

            monkeypatch.setattr(owner, name, counted)
        return seen

    return count


def kernel(rng, *shape, dtype="float64"):
    return rng.standard_normal(shape).astype(dtype)


def clipped_plainly(weight, grid, bound):
    """The paper's clip by its definition, in double precision."""
    spectrum = np.fft.fft2(weight.astype(np.float64), grid)
    matrices = np.moveaxis(spectrum, (0, 1), (2, 3))
    u, s, vh = np.linalg.svd(matrices, full_matrices=False)
    matrices = (u * np.minimum(s, bound)[..., None, :]) @ vh
    spectrum = np.moveaxis(matrices, (2, 3), (0, 1))
    return np.fft.ifft2(spectrum).real[..., : weight.shape[2], : weight.shape[3]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "grid", "taken"),
    [
        ((6, 5, 3, 3), (4, 5), "values_of_many"),
        ((3, 7, 3, 3), (4, 5), "values_of_many"),
        ((130, 129, 1, 2), (1, 3), "values_of_large"),
        ((2, 2, 3, 3), (1, 2), "values_of_large"),  # fewer than a vector is worth
    ],
)
def test_values_come_from_our_kernels(shape, grid, taken, dtype, calls, rng):
    names = ("values_of_many", "values_of_large")
    seen = calls(*((svdvals, name) for name in names))
    weight, geometry = kernel(rng, *shape, dtype=dtype), Geometry(grid=grid)
    got = np.sort(singular_values(weight, geometry), axis=None)[::-1]
    want = values_by_matrix(weight, geometry)
    np.testing.assert_allclose(got, want, atol=tolerance(want, dtype))
    assert set(seen) == {taken}


def test_one_tap_is_one_real_decomposition(calls, rng):
    seen = calls((_spectrum, "svdvals"), (symbol, "symbol"), (_spectrum, "symbol"))
    weight, geometry = kernel(rng, 5, 4, 1, 1), Geometry(grid=(3, 4))
    got = singular_values(weight, geometry)
    want = np.linalg.svd(weight[:, :, 0, 0], compute_uv=False)
    np.testing.assert_allclose(got, np.broadcast_to(want, (3, 4, 1, 4)))
    assert seen == ["svdvals"]


@pytest.mark.parametrize("groups", [1, 2])
def test_outputs_that_outnumber_what_is_read_are_compressed(groups, calls, rng):
    seen = calls((np.linalg, "qr"))
    weight = kernel(rng, 40, 2, 3)  # 20 or 40 outputs that read 6 numbers
    geometry = Geometry(grid=8, groups=groups)
    got = np.sort(singular_values(weight, geometry), axis=None)[::-1]
    want = values_by_matrix(weight, geometry)
    np.testing.assert_allclose(got, want, atol=tolerance(want, "float64"))
    assert seen == ["qr"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 3, 7, 5), (2, 2, 5, 5, 2)])
def test_large_kernels_are_transformed_axis_by_axis(shape, dtype, calls, rng):
    seen = calls((split_complex.BatchedSymbols, "_set_axis_by_axis"))
    weight, geometry = (
        kernel(rng, *shape, dtype=dtype),
        Geometry(grid=(6,) * (len(shape) - 2)),
    )
    got = np.sort(singular_values(weight, geometry), axis=None)[::-1]
    want = values_by_matrix(weight, geometry)
    np.testing.assert_allclose(got, want, atol=tolerance(want, dtype))
    norm = operator_norm(weight, geometry)
    assert norm.lower <= want[0] * (1 + 1e-6)
    assert norm.upper >= want[0] * (1 - 1e-6)
    assert len(seen) > 1


@pytest.mark.parametrize("screened", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "grid", "stride"),
    [
        ((6, 5, 3, 3), (6, 6), 1),
        ((5, 6, 7, 5), (20, 9), 1),
        ((60, 52, 2, 2), (6, 6), 1),  # the shorter side is the input
        ((52, 60, 3, 3), (24, 24), 2),
        ((260, 258, 2), (12,), 1),
        ((52, 52, 3, 3), (4, 4), 1),  # as many frequencies as nodes
        ((200, 200, 2), (1,), 1),  # both taps on one site
    ],
)
def test_every_frequency_is_certified_with_screening_and_without(
    shape, grid, stride, dtype, screened, calls, rng
):
    seen = calls((screening.ScreeningPass, "certify"))
    exact = calls((gram_certificate.DoublePass, "certify"))
    weight = kernel(rng, *shape, dtype=dtype)
    geometry = Geometry(grid=grid, stride=stride)
    found = norm_along(
        weight, geometry, algorithm="every frequency", is_screened=screened
    )
    want = float(singular_values(weight.astype(np.float64), geometry).max())
    assert found.lower <= want * (1 + 1e-12)
    assert found.upper >= want * (1 - 1e-12)
    assert found.gap <= 1e-8
    assert bool(seen) == screened
    assert exact  # the largest is never below by single precision alone


@pytest.mark.parametrize(
    ("shape", "grid", "algorithm", "screened"),
    [
        ((24, 24, 3, 3), 8, "small matrices", False),
        ((24, 24, 3, 3), 56, "every frequency", True),
        ((64, 64, 3, 3), 16, "every frequency", True),
        ((64, 64, 9, 9), 16, "small matrices", False),  # as many nodes as frequencies
        ((65, 66, 3, 3), 8, "every frequency", True),
        ((8, 8, 3, 3), 128, "search by values", False),
        ((40, 40, 3, 3), 128, "search", True),
        ((8, 8, 1, 1), 128, "one matrix", False),
    ],
)
def test_the_route_is_the_cheapest(shape, grid, algorithm, screened, rng):
    weight, geometry = kernel(rng, *shape), Geometry(grid=(grid, grid))
    stencil = stencil_of(weight, geometry)
    found = norm_route(stencil, real=True, on_host=True)
    assert found == NormRoute("frequencies", algorithm, screened)
    elsewhere = norm_route(stencil, real=True, on_host=False)  # on a GPU
    assert elsewhere.algorithm in ("every frequency", "search")
    assert not elsewhere.is_screened


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("grid", [(2, 2), (6, 10), None])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (9, 4), (70, 90), (200, 66)])
def test_one_matrix_stands_for_all_frequencies(shape, stride, grid, dtype, calls, rng):
    seen = calls((one_matrix, "norm_of_matrix"), (norms, "norm_of_matrix"))
    weight = kernel(rng, *shape, 1, 1, dtype=dtype)
    geometry = Geometry(grid=grid, stride=stride)
    want = np.linalg.norm(weight[:, :, 0, 0].astype(np.float64), 2)
    for count, rtol in enumerate((1e-4, 1e-8), start=1):
        found = operator_norm(weight, geometry, rtol)
        assert found.lower <= want <= found.upper
        assert found.gap <= rtol
        assert len(seen) == count
    if grid is not None:
        top = top_vectors(weight, geometry)
        np.testing.assert_allclose(top.gain, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "options", "taken"),
    [
        ((4, 3, 2, 2), {"grid": 6, "stride": 2}, True),  # patches side by side
        ((4, 3, 2, 2), {"grid": 6, "stride": 3}, True),
        ((3, 4, 1, 1), {"grid": 5, "transposed": True}, True),
        ((4, 3, 1, 1), {"grid": 5, "boundary": "zeros"}, True),
        ((4, 3, 2, 2), {"grid": 6}, False),
        ((4, 3, 1, 1), {"grid": 6, "groups": 2}, False),
    ],
)
def test_one_matrix_where_no_tap_reaches_another_site(
    shape, options, taken, calls, rng
):
    seen = calls((one_matrix, "norm_of_matrix"), (norms, "norm_of_matrix"))
    weight, geometry = kernel(rng, *shape), Geometry(**options)
    found = operator_norm(weight, geometry, 1e-12)
    want = norm_by_matrix(weight, geometry)
    assert found.lower <= want * (1 + 1e-14)
    assert found.upper >= want * (1 - 1e-14)
    assert found.gap <= 3e-12  # near what rounding leaves
    assert bool(seen) == taken


def test_small_matrices_that_are_many_come_as_close_as_asked(calls, rng):
    seen = calls((screening.ScreeningPass, "certify"))
    weight, geometry = kernel(rng, 64, 64, 3, 3), Geometry(16)
    found = operator_norm(weight, geometry, 1e-10)
    want = float(singular_values(weight, geometry).max())
    assert found.lower <= want * (1 + 1e-13)
    assert found.upper >= want * (1 - 1e-13)
    assert found.gap <= 1e-10
    assert seen


@pytest.mark.parametrize("side", [3, 80])
def test_one_matrix_whose_values_are_all_the_same_or_zero(side, rng):
    flat = np.linalg.qr(rng.standard_normal((side, side)))[0][:, :, None]
    found = operator_norm(flat, Geometry(grid=4))
    assert found.lower <= 1 <= found.upper
    assert found.gap <= 1e-8
    found = operator_norm(0 * flat, Geometry(grid=4))
    assert found.lower == found.upper == 0


SPECTRA = {
    "random": lambda side, rng: rng.random(side),
    "flat": lambda side, _: np.ones(side),
    "close": lambda side, _: np.linspace(1, 0.99, side),
    "graded": lambda side, _: 0.1 ** np.arange(side),
    "one": lambda side, _: np.append(1.0, np.zeros(side - 1)),
}


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("side", [1, 2, 8, 33, 80])
def test_a_high_power_bounds_the_norm(side, spectrum, rng):
    """However loose it may be: what is too loose is left to others."""
    values = SPECTRA[spectrum](side, rng)
    left, right = (
        np.linalg.qr(rng.standard_normal((n, side)))[0] for n in (side, side + 3)
    )
    for scale in (1e-50, 1.0, 1e50):
        matrix = scale * (left * values) @ right.T
        found = one_matrix._by_power(
            matrix, matrix @ matrix.T, of_stated_matrix(*matrix.shape), 0.1
        )
        want, room = np.linalg.norm(matrix, 2), 1e-14 * scale
        assert found.lower - room <= want <= found.upper + room
        assert found.upper <= want * side ** (1 / 256) * (1 + 1e-11)
        gains = np.linalg.norm(found.x @ matrix) / np.linalg.norm(found.x)
        assert gains == pytest.approx(found.lower, rel=1e-11)


def test_one_tap_of_any_size_or_none_is_as_before():
    geometry, weight = Geometry(grid=4), np.ones((2, 3, 1))
    for scale in (0.0, 1e-300, 1e-100, 1e100, 1e300):
        found = operator_norm(scale * weight, geometry)
        assert found.lower <= scale * np.sqrt(6) * (1 + 1e-15)
        assert scale * np.sqrt(6) <= found.upper * (1 + 1e-15)
        assert found.gap <= 1e-12
    for wrong in (np.nan, np.inf):
        weight[1, 1] = wrong
        with pytest.raises(ValueError, match="finite"):
            operator_norm(weight, geometry)


def test_where_iteration_misses_a_matrix_is_decomposed(rng, monkeypatch):
    monkeypatch.setattr(one_matrix, "top_eigenvector", lambda _: np.eye(80)[0])
    weight = kernel(rng, 80, 100, 1)
    found = operator_norm(weight, Geometry(grid=4), 1e-12)  # too close for a power
    want = np.linalg.norm(weight[:, :, 0], 2)
    assert found.lower <= want <= found.upper
    assert found.gap <= 1e-8


@pytest.mark.parametrize("side", [2, 49, 130])
@pytest.mark.parametrize("top", [1.0, 1 + 1e-3, 2.0])
def test_the_top_eigenvector_by_inverse_iteration(top, side, rng):
    vectors = np.linalg.qr(rng.standard_normal((side, side)))[0]
    values = np.append(rng.random(side - 2), [1.0, top])
    gram = (vectors * values) @ vectors.T
    found = one_matrix.top_eigenvector(gram)
    assert np.linalg.norm(found) == pytest.approx(1, rel=1e-12)
    quotient = found @ gram @ found
    if top < 1.01 and abs(quotient - 1) < 1e-9:  # the next one is as near to the start
        return
    assert quotient == pytest.approx(top, rel=1e-9)


def test_vectors_that_are_no_top_eigenvectors_do_no_harm(monkeypatch):
    # The quotient of this one is an eigenvalue: there is nothing to invert.
    x, squares = np.array([0.5, 0.5, 0, 0.5, 0.5]), np.array([1.0, 1, 2, 3, 3])
    monkeypatch.setattr(one_matrix, "_by_squaring", lambda _: x)
    np.testing.assert_array_equal(one_matrix.top_eigenvector(np.diag(squares)), x)
    monkeypatch.setattr(one_matrix, "DECOMPOSED_SIDE", 2)
    weight = np.diag(np.sqrt(squares))[:, :, None]
    bounds = operator_norm(weight, Geometry(grid=4))
    assert bounds.lower <= np.sqrt(3) <= bounds.upper
    assert bounds.gap <= 1e-8


@pytest.mark.parametrize(
    ("shape", "taken"), [((6, 5, 3, 3), "norms"), ((40, 36, 3, 3), "certify")]
)
def test_searches_over_boxes_look_at(shape, taken, calls, rng):
    seen = calls(
        (screening.ScreeningPass, "certify"), (small_matrices.SmallMatrices, "norms")
    )
    weight, geometry = kernel(rng, *shape), Geometry(grid=(128, 128))
    found = operator_norm(weight, geometry)
    want = float(singular_values(weight, geometry).max())
    assert found.lower <= want * (1 + 1e-12)
    assert found.upper >= want * (1 - 1e-12)
    assert found.gap <= 1e-4
    assert set(seen) == {taken}


def test_hardly_a_matrix_is_made_in_double_precision(rng, monkeypatch):
    made = []
    products = packed.Panels.set_products

    def counted(self, re, im, found):
        made.append(len(re))
        products(self, re, im, found)

    monkeypatch.setattr(packed.Panels, "set_products", counted)
    weight, geometry = kernel(rng, 80, 80, 3, 3), Geometry(grid=(32, 32))
    found = operator_norm(weight, geometry)
    want = float(singular_values(weight, geometry).max())
    assert found.lower <= want * (1 + 1e-12)
    assert found.upper >= want * (1 - 1e-12)
    assert 13 < sum(made) < 30  # the nodes, and a few that were in doubt, of 514


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((6, 5, 3, 3), {"grid": (6, 7)}),
        ((6, 3, 3, 3), {"grid": (8, 8), "stride": 2, "groups": 2}),
        ((8, 1, 3), {"grid": 9, "groups": 8}),
    ],
)
def test_norms_of_small_matrices_take_a_product_and_a_factor_each(
    shape, options, dtype, calls, rng
):
    seen = calls(
        (small_matrices.SmallMatrices, "estimates"),
        (small_matrices.SmallMatrices, "norms"),
        (search, "DoublePass"),
    )
    weight, geometry = kernel(rng, *shape, dtype=dtype), Geometry(**options)
    found = operator_norm(weight, geometry)
    want = values_by_matrix(weight, geometry)[0]
    assert found.lower <= want * (1 + 1e-14)
    assert found.upper >= want * (1 - 1e-14)
    assert found.gap <= 1e-10
    assert seen == ["estimates"]


def test_the_largest_matrices_are_not_decomposed(calls, rng):
    seen = calls((gram_certificate, "eigh"), (packed.Panels, "top_vector"))
    weight, geometry = kernel(rng, 80, 90, 3, 3), Geometry(grid=(8, 8))
    found = operator_norm(weight, geometry)
    want = float(singular_values(weight, geometry).max())
    assert found.lower <= want * (1 + 1e-12)
    assert found.upper >= want * (1 - 1e-12)
    assert found.gap <= 2e-9
    assert set(seen) == {"top_vector"}


def test_a_doubt_of_single_precision_is_settled_in_double(monkeypatch, rng):
    monkeypatch.setattr(small_matrices, "SINGLE_PRODUCTS", 0)
    weight = kernel(rng, 4, 4, 1, 3)
    weight[..., 1:] *= 1e-9  # all norms are the same, but for the last digits
    geometry = Geometry(grid=(1, 64))
    found = operator_norm(weight, geometry)
    want = values_by_matrix(weight, geometry)[0]
    assert found.lower <= want * (1 + 1e-14)
    assert found.upper >= want * (1 - 1e-14)
    assert found.gap <= 1e-11


def test_taps_that_cancel_are_not_relied_on(rng):
    # On a grid of two sites the taps of a pair meet, and cancel to almost nothing.
    weight = kernel(rng, 60, 60, 4)
    weight[:, :, 2:] = -weight[:, :, :2] * (1 + 1e-5)
    geometry = Geometry(grid=2)
    found, want = operator_norm(weight, geometry), norm_by_matrix(weight, geometry)
    assert found.lower <= want <= found.upper
    assert found.gap < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "taken"),
    [
        ((6, 5, 3, 2), "soft_threshold"),
        ((4, 7, 3, 2), "soft_threshold"),
        ((260, 258, 1, 2), "eigh"),
    ],
)
def test_clips_come_from(shape, taken, dtype, calls, rng):
    seen = calls((soft_threshold, "soft_threshold"), (clipping, "eigh"))
    weight = kernel(rng, *shape, dtype=dtype)
    geometry = Geometry(grid=(3, 4))
    bound = 0.6 * float(singular_values(weight, geometry).max())
    got = clip(weight, geometry, bound)
    want = clipped_plainly(weight, (3, 4), bound)
    np.testing.assert_allclose(got, want, atol=30 * np.finfo(dtype).eps * bound)
    assert set(seen) == {taken}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_last_vector_that_is_nearly_empty_goes_to_lapack(dtype, calls, rng):
    seen = calls((soft_threshold, "soft_threshold"), (clipping, "eigh"))
    weight = kernel(rng, 66, 66, 1, 2, dtype=dtype)
    geometry = Geometry(grid=(2, 32))  # 17 frequencies: 1 more than whole vectors
    bound = 0.3 * float(singular_values(weight, geometry).max())
    got = clip(weight, geometry, bound)
    want = clipped_plainly(weight, (2, 32), bound)
    np.testing.assert_allclose(got, want, atol=30 * np.finfo(dtype).eps * bound)
    assert set(seen) == {"soft_threshold", "eigh"}


def test_matrices_that_are_real_are_the_ones_that_lapack_gets(monkeypatch, rng):
    seen, eigh = [], clipping.eigh

    def watched(x):
        seen.append(x.dtype)
        return eigh(x)

    monkeypatch.setattr(clipping, "eigh", watched)
    weight = kernel(rng, 66, 66, 3, 3)
    geometry = Geometry(grid=(8, 8))  # 34 frequencies, 4 of which are their own mirrors
    bound = 0.3 * float(singular_values(weight, geometry).max())
    got = clip(weight, geometry, bound)
    want = clipped_plainly(weight, (8, 8), bound)
    np.testing.assert_allclose(got, want, atol=1e-14 * bound)
    assert seen == [np.float64, np.float64]


def test_frequencies_below_the_bound_are_not_decomposed(calls, rng):
    seen = calls((clipping, "eigh"))
    weight = kernel(rng, 260, 260, 2) / 100
    weight[:, :, 1] = weight[:, :, 0] + 1e-3 * weight[:, :, 1]  # loud at frequency 0
    geometry = Geometry(grid=8)
    values = singular_values(weight, geometry)
    clip(weight, geometry, 1.01 * float(values[3:6].max()))
    assert len(seen) == 3  # of 5: frequencies 0, 1 and 2


def test_what_torch_has_is_used_only_when_it_is_there(monkeypatch, rng):
    torch = pytest.importorskip("torch")
    weight = kernel(rng, 130, 130, 2, dtype="float32")
    geometry = Geometry(grid=4)
    used = []
    real = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda x: used.append(1) or real(x))
    bound = 0.5 * float(singular_values(weight, geometry).max())
    threads = torch.get_num_threads()
    with_torch = clip(weight, geometry, bound)
    assert used
    assert torch.get_num_threads() == threads
    monkeypatch.delitem(sys.modules, "torch")
    used.clear()
    without = clip(weight, geometry, bound)
    assert not used
    np.testing.assert_allclose(with_torch, without, atol=1e-5)
    assert array.is_host(without)
