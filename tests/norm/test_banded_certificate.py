"""The banded Cholesky factor of a layer as it is, against the dense matrix."""

import numpy as np
import pytest
from oracles import CASES, OTHERS, make, norm_by_matrix
from routes import machine, norm_along

from convspectra import Geometry, dense_matrix, operator_norm
from convspectra._layer.boundary import BOUNDARIES
from convspectra._layer.stencil import stencil_of
from convspectra._maps import tiling as tiling_module
from convspectra._maps.banded import PieceBlocks, _gram, banded_gram
from convspectra._maps.tiling import tiling
from convspectra._norm import banded_certificate, banded_norm, groups
from convspectra._norm.banded_certificate import Failure, certified
from convspectra._norm.banded_rounding import (
    BandedRounding,
    formed_gram,
    inverse_residual,
)
from convspectra._norm.norm_bounds import norm_bounds
from convspectra._route.norm import method_of, norm_route
from convspectra._route.records import NormRoute

EVERY_BOUNDARY = pytest.mark.parametrize("boundary", BOUNDARIES)
NEAR = 1e-9  # far above what rounding allows for in layers this small


@pytest.fixture(params=[5, 128])
def tile(request, monkeypatch):
    """Tiles so small that a line has several, and so large that they hold several."""
    monkeypatch.setattr(tiling_module, "LARGEST_TILE", request.param)
    monkeypatch.setattr(tiling_module, "SMALLEST_TILE", min(request.param, 32))


def eigenvalues(weight, stencil, *, on_rows):
    """Those of all pieces of the Gram matrix, put together from their blocks."""
    gram = _gram(stencil, on_rows=on_rows)
    groups = weight.reshape(stencil.groups, -1, *weight.shape[1:])
    found = []
    for piece in gram.pieces:
        blocks, b = PieceBlocks(gram, piece, groups), piece.block
        whole = np.zeros((stencil.groups, piece.side, piece.side), weight.dtype)
        for i in range(piece.lines):
            for j, block in blocks.line(i):
                whole[:, i * b : (i + 1) * b, j * b : (j + 1) * b] = block
        found.append(np.linalg.eigvalsh(whole).ravel())  # of the lower triangles
    return np.concatenate(found)


@pytest.mark.parametrize("on_rows", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_pieces_have_the_eigenvalues_of_the_gram_matrix(case, dtype, on_rows, rng):
    weight, geometry = make(case, rng, dtype)
    found = eigenvalues(weight, stencil_of(weight, geometry), on_rows=on_rows)
    matrix = dense_matrix(weight, geometry)
    want = np.linalg.svd(matrix, compute_uv=False) ** 2
    atol = 1e-12 * want[0]
    # Equal pieces are there once: every value is there, and no other, but for zeros.
    assert np.abs(found[:, None] - want[want > atol]).min(axis=0).max() <= atol
    known = np.append(want, 0.0)
    assert np.abs(known[:, None] - found).min(axis=0).max() <= atol


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_there_is_a_factor_above_the_norm_and_none_below(case, dtype, tile, rng):
    weight, geometry = make(case, rng, dtype)
    gram = banded_gram(stencil_of(weight, geometry))
    norm = norm_by_matrix(weight, geometry)
    upper = certified(gram, weight, norm * (1 + NEAR))
    assert norm * (1 + NEAR) <= upper <= norm * (1 + 2 * NEAR)
    assert isinstance(certified(gram, weight, norm * (1 - NEAR)), Failure)


@EVERY_BOUNDARY
def test_bounds_meet_around_the_norm(boundary, tile, rng):
    shape, options = (6, 5, 3, 3), {"grid": (9, 7), "padding": ((2, 1), (0, 1))}
    geometry = Geometry(boundary=boundary, stride=(1, 2), **options)
    weight = rng.standard_normal(shape)
    norm = norm_by_matrix(weight, geometry)
    for rtol in (1e-2, 1e-4, 1e-8):
        found = norm_along(weight, geometry, rtol, method="banded")
        assert found.lower <= norm <= found.upper
        assert found.gap <= rtol


def test_a_layer_too_large_for_its_matrix_is_certified(rng):
    weight = rng.standard_normal((12, 12, 3, 3)).astype("float32")
    geometry = Geometry(grid=(12, 10), boundary="reflect")
    found = operator_norm(weight, geometry)
    assert found.method == "banded"
    assert found.gap <= 1e-4
    norm = norm_by_matrix(weight, geometry)
    assert found.lower <= norm <= found.upper


def test_dilation_leaves_residue_classes_apart(rng):
    weight = rng.standard_normal((16, 16, 3, 3))
    geometry = Geometry(grid=20, dilation=8, boundary="zeros")
    gram = banded_gram(stencil_of(weight, geometry))
    # Of 8 x 8 classes, those with the same sites of either axis are one: 3 or 2.
    assert sorted(piece.side for piece in gram.pieces) == [64, 96, 96, 144]
    found = operator_norm(weight, geometry)
    small = [Geometry(grid=(a, b), boundary="zeros") for a in (2, 3) for b in (2, 3)]
    norm = max(norm_by_matrix(weight, each) for each in small)
    assert found.lower <= norm <= found.upper
    assert found.gap <= 1e-4


def test_an_axis_without_neighbors_leaves_lines_apart(rng):
    weight = rng.standard_normal((4, 4, 1, 3))
    geometry = Geometry(grid=(7, 9), boundary="zeros")
    (piece,) = banded_gram(stencil_of(weight, geometry)).pieces
    assert piece.side == 4 * 9
    line = norm_by_matrix(weight[:, :, 0], Geometry(grid=9, boundary="zeros"))
    found = norm_along(weight, geometry, method="banded")
    assert found.lower <= line <= found.upper


def test_taps_that_read_nothing_are_left_out(rng):
    weight = rng.standard_normal((4, 4, 3, 5))
    geometry = Geometry(grid=(1, 2), boundary="zeros")
    gram = banded_gram(stencil_of(weight, geometry))
    assert gram.tap_products == (1 * 3 * 4) ** 2
    norm = norm_by_matrix(weight, geometry)
    assert norm <= certified(gram, weight, norm * (1 + NEAR)) <= norm * (1 + 2 * NEAR)


@pytest.mark.parametrize("largest", [0, 5, 11])
def test_many_groups_are_certified_together(largest, rng, monkeypatch):
    weight = rng.standard_normal((24, 2, 3, 3))
    weight[2 * largest : 2 * largest + 2] *= 1.5
    geometry = Geometry(grid=4, groups=12, boundary="zeros")
    norm = norm_by_matrix(weight, geometry)
    # As if another group had been taken for the largest.
    monkeypatch.setattr(banded_norm, "promising_groups", lambda *_: [7])
    monkeypatch.setattr(groups, "groups_come_first", lambda *_, **__: False)
    monkeypatch.setattr(banded_certificate, "GROUP_NUMBERS", 2**12)
    found = norm_along(weight, geometry, method="banded")
    assert found.lower <= norm <= found.upper
    assert found.gap <= 1e-4


@pytest.mark.parametrize("boundary", ["zeros", "reflect"])
def test_groups_that_are_smaller_than_another_need_no_factor(
    boundary, rng, monkeypatch
):
    weight = (
        rng.standard_normal((24, 2, 3, 3))
        * np.repeat([1, 3, 2.9, 1], 6)[:, None, None, None]
    )
    geometry = Geometry(grid=(6, 5), groups=12, boundary=boundary)
    factorized = []

    def counted(gram, kernel, threshold):
        factorized.append(len(kernel))
        return certified(gram, kernel, threshold)

    monkeypatch.setattr(groups, "groups_come_first", lambda *_, **__: True)
    monkeypatch.setattr(banded_norm, "certified", counted)
    norm = norm_by_matrix(weight, geometry)
    found = norm_along(weight, geometry, method="banded")
    assert found.lower <= norm <= found.upper
    assert found.gap <= 1e-4
    assert 2 <= factorized[0] <= 12
    # The derivative is that of the whole layer.
    stencil, step = stencil_of(weight, geometry), 1e-5
    bounds = norm_bounds(weight, stencil, 1e-9, route=NormRoute("banded", "banded"))
    direction = rng.standard_normal(weight.shape)
    ends = [norm_by_matrix(weight + s * direction, geometry) for s in (step, -step)]
    got = float(np.sum(bounds.derivative() * direction))
    assert got == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-3)


def test_where_lanczos_stops_early_the_bounds_still_hold(rng, monkeypatch):
    weight = rng.standard_normal((4, 4, 3, 3))
    geometry = Geometry(grid=8, boundary="zeros")
    top_pair_from = banded_norm.top_pair_from

    def first_steps(*layer, rtol, goal, patience):
        return top_pair_from(*layer, rtol=0.5, goal=goal, patience=patience)

    monkeypatch.setattr(banded_norm, "top_pair_from", first_steps)
    monkeypatch.setattr("convspectra._norm.lanczos.BASIS", 3)
    norm = norm_by_matrix(weight, geometry)
    found = norm_along(weight, geometry, method="banded")
    assert found.lower <= norm <= found.upper
    assert found.gap <= 0.1


@pytest.mark.parametrize(("seed", "grid"), [(0, 12), (12, 12), (17, 8), (28, 8)])
@pytest.mark.parametrize("rtol", [1e-4, 1e-5])
def test_where_lanczos_is_misled_it_goes_on_until_bounds_agree(seed, grid, rtol):
    # Two singular values are so close that Lanczos stops for a while at the smaller.
    weight = np.random.default_rng(seed).standard_normal((8, 8, 3, 3))
    found = norm_along(weight, Geometry(grid, boundary="zeros"), rtol, method="banded")
    assert found.gap <= rtol


def test_a_layer_of_zeros_has_norm_zero():
    geometry = Geometry(grid=40, boundary="zeros")
    found = norm_along(np.zeros((2, 2, 3, 3)), geometry, method="banded")
    assert (found.lower, found.upper) == (0, 0)
    # Two taps that only ever read zeros: beside one of value zero, or on their own.
    unread = np.array([[[1.0, 0.0, 1.0]]])
    wide = Geometry(grid=1, padding=1, boundary="zeros")
    assert norm_along(unread, wide, method="banded").upper <= 1e-6
    apart = Geometry(grid=1, padding=1, dilation=2, boundary="zeros")
    assert norm_along(np.ones((1, 1, 2)), apart, method="banded").upper <= 1e-6


@pytest.mark.parametrize("case", OTHERS)
def test_rows_begin_where_the_gram_matrix_does(case, tile, rng):
    weight, geometry = make(case, rng)
    stencil = stencil_of(weight, geometry)
    gram = banded_gram(stencil)
    groups = weight.reshape(stencil.groups, -1, *weight.shape[1:])
    for piece in gram.pieces:
        blocks, tiles, b = PieceBlocks(gram, piece, groups), tiling(piece), piece.block
        whole = np.zeros((piece.side, piece.side))
        for i in range(piece.lines):
            for j, block in blocks.line(i):
                at = slice(i * b, (i + 1) * b), slice(j * b, (j + 1) * b)
                whole[at] = np.abs(block).sum(axis=0)
        below = np.tril(whole)
        assert tiles.ends[-1] == piece.side
        spans = list(zip(tiles.ends, tiles.ends[1:]))
        for (low, high), first in zip(spans, tiles.start):
            assert not below[low:high, : tiles.ends[first]].any()
        assert max(high - low for low, high in spans) == tiles.side


def test_tiles_of_a_band_and_of_an_arrow(rng):
    zeros, ring = (
        banded_gram(stencil_of(np.zeros((1, 1, 3)), geometry)).pieces[0]
        for geometry in (
            Geometry(grid=640, boundary="zeros"),
            Geometry(grid=640, boundary="circular", padding=2),
        )
    )
    # The last sites of a circle couple with the first ones.
    assert tiling(zeros).start == (0, *range(tiling(zeros).count - 1))
    assert tiling(ring).start[-1] == 0
    assert tiling(zeros).neighbors == 3
    assert tiling(ring).neighbors == tiling(ring).count
    assert tiling(ring).reach == 640
    assert tiling(zeros).numbers < tiling(ring).numbers < 640**2


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_what_an_inverse_loses_is_bounded(dtype, rng):
    extended = np.clongdouble
    for spread in (1.0, 1e-6):
        raw = rng.standard_normal((2, 40, 40, 2)) @ np.array([1, 1j])
        factor = np.tril(raw if dtype is np.complex128 else raw.real)
        factor[:, range(40), range(40)] = spread + rng.random((2, 40))
        inverse = np.linalg.inv(factor)
        below = rng.standard_normal((2, 70, 40)).astype(dtype)
        solved = below @ inverse.conj().swapaxes(1, 2)
        back = solved.astype(extended) @ factor.astype(extended).conj().swapaxes(1, 2)
        error = np.sqrt(np.sum(np.abs(back - below) ** 2, axis=(1, 2)).astype(float))
        allowed = inverse_residual(factor, inverse) * np.linalg.norm(below, axis=(1, 2))
        assert (error <= allowed).all()
        assert (inverse_residual(factor, inverse * (1 + 1e-6)) > 1e-6).all()


@EVERY_BOUNDARY
def test_a_wrong_inverse_makes_the_bound_wider_not_wrong(boundary, rng, monkeypatch):
    """With too small numbers in L there are factors at thresholds below the norm."""
    monkeypatch.setattr(tiling_module, "LARGEST_TILE", 5)
    weight = rng.standard_normal((3, 3, 3, 3))
    geometry = Geometry(grid=(6, 5), padding=1, stride=(1, 2), boundary=boundary)
    gram = banded_gram(stencil_of(weight, geometry))
    norm = norm_by_matrix(weight, geometry)
    inverse = np.linalg.inv
    monkeypatch.setattr(np.linalg, "inv", lambda x: 0.9 * inverse(x))
    found = [certified(gram, weight, norm * part) for part in np.linspace(0.8, 1, 20)]
    uppers = [upper for upper in found if not isinstance(upper, Failure)]
    assert uppers
    assert min(uppers) >= norm


@pytest.mark.parametrize("grid", [4, 14])
def test_what_a_factor_loses_is_bounded(grid, rng):
    """LAPACK's factor of the whole matrix, by the bound of the factor in tiles."""
    weight = rng.standard_normal((8, 8, 3))
    geometry = Geometry(grid=grid, boundary="zeros")
    (piece,) = banded_gram(stencil_of(weight, geometry)).pieces
    matrix = dense_matrix(weight, geometry)
    square = norm_by_matrix(weight, geometry) ** 2 * (1 + 1e-6)
    away = square * np.eye(len(matrix)) - matrix.T @ matrix
    factor = np.linalg.cholesky(away).astype(np.longdouble)
    error = np.linalg.norm((factor @ factor.T - away).astype(float), 2)
    rounding = BandedRounding(formed=0.0, square=square)
    assert 0 < error <= rounding.factor(tiling(piece), 0.0) <= 1e-9 * square


@pytest.mark.parametrize("case", OTHERS)
def test_what_the_gram_matrix_loses_is_bounded(case, rng):
    weight, geometry = make(case, rng)
    stencil = stencil_of(weight, geometry)
    gram = banded_gram(stencil)
    groups = weight.reshape(stencil.groups, -1, *weight.shape[1:])
    error = 0.0
    for piece in gram.pieces:
        got = PieceBlocks(gram, piece, groups)
        want = PieceBlocks(gram, piece, groups.astype(np.longdouble))
        for i in range(piece.lines):
            for (_, one), (_, other) in zip(got.line(i), want.line(i)):
                size = np.linalg.norm((one - other).astype(float), axis=(1, 2))
                error = max(error, float(size.max()))
    assert error * len(gram.pieces) <= formed_gram(weight, gram)


@pytest.mark.parametrize(
    ("channels", "grid", "options", "method", "upper_only"),
    [
        (64, 16, {}, "banded", "embedding"),
        (64, 16, {"boundary": "replicate"}, "banded", "embedding"),
        (64, 17, {"stride": 2}, "banded", "embedding"),
        (64, 56, {}, "compression", "embedding"),
        (64, 56, {"boundary": "replicate"}, "embedding", "embedding"),
        (4, 6, {}, "matrix", "matrix"),
    ],
)
def test_a_band_is_factorized_where_that_takes_two_seconds(
    channels, grid, options, method, upper_only
):
    geometry = Geometry(grid=grid, **{"boundary": "zeros", **options})
    stencil = stencil_of(np.zeros((channels, channels, 3, 3)), geometry)
    options = {"real": True, "on_host": True}
    with machine(4e10, cores=2):
        assert method_of(stencil) == method
        assert norm_route(stencil, **options, upper_only=True).method == upper_only


def test_products_are_those_of_a_band():
    stencil = stencil_of(np.zeros((8, 8, 3, 3)), Geometry(64, boundary="zeros"))
    gram = banded_gram(stencil)
    width = 2 * 8 * 64 + 2 * 8
    assert gram.products == pytest.approx(8 * 64**2 * width**2, rel=0.05)


def test_taps_that_read_nothing_do_not_count(rng):
    weight = rng.standard_normal((8, 8, 3, 3))
    weight[:, :, 1] *= 1e-9  # the only row of taps that reads one of the input
    found = norm_along(weight, Geometry((1, 30), boundary="zeros"), method="banded")
    alone = weight * np.array([0, 1, 0])[:, None]
    assert found.lower <= norm_by_matrix(alone, Geometry((1, 30), boundary="zeros"))
    assert found.upper <= found.lower * (1 + 1e-3)


def test_a_factor_that_is_no_number_certifies_nothing(monkeypatch, rng):
    weight = rng.standard_normal((2, 2, 3, 3))
    gram = banded_gram(stencil_of(weight, Geometry(6, boundary="zeros")))
    assert not isinstance(certified(gram, weight, 100.0), Failure)
    none = np.array(np.nan)
    monkeypatch.setattr(np.linalg, "cholesky", lambda x: np.broadcast_to(none, x.shape))
    assert isinstance(certified(gram, weight, 100.0), Failure)
    with pytest.raises(ArithmeticError, match="LAPACK has failed"):
        norm_along(weight, Geometry(6, boundary="zeros"), method="banded")
