"""The compression bound of layers that pad with zeros, judged by the dense matrix."""

from dataclasses import replace

import numpy as np
import pytest
from oracles import norm_by_matrix
from random_layers import draw
from routes import norm_along

from convspectra import Geometry, operator_norm, top_vectors
from convspectra._arrays.array import normalized
from convspectra._layer.boundary import BOUNDARIES
from convspectra._layer.stencil import stencil_of
from convspectra._maps.symbol import phase_factors, symbol, taps_of
from convspectra._norm import compression, cut, cut_at_once, symbol_norms
from convspectra._norm.compression import Extent, extent_of
from convspectra._norm.cut import cut_to_box
from convspectra._norm.symbol_norms import SymbolNorms
from convspectra._norm.torus_norm import dilation_reduced

ROOM = 1e-13  # what the dense matrix's own norm may be off by


def compressed(weight, geometry, rtol=1e-4, *, is_screened=True, at_once=False):
    """The bound of a compression alone, axis by axis or on all axes at once."""
    double, scale = normalized(weight)
    found, _ = compression_of(
        double, geometry, rtol, is_screened=is_screened, at_once=at_once
    )
    return found.upper * scale if found else 0.0


def compressed_at_once(weight, geometry, rtol=1e-4):
    return compressed(weight, geometry, rtol, at_once=True)


def compression_of(weight, geometry, rtol, **options):
    """A compression, None if no row reads a column, and the taps that it is of."""
    stencil, real = stencil_of(weight, geometry), not np.iscomplexobj(weight)
    taps = taps_of(weight, stencil)
    reduced, _ = dilation_reduced(taps)
    extent = compression.extent_of(stencil, taps)
    if extent is None:
        return None, reduced
    is_screened = options.pop("is_screened")
    norms = compression.norms_for(reduced, extent, real=real, is_screened=is_screened)
    return compression.compression(
        norms, extent, real=real, rtol=rtol, **options
    ), reduced


def drawn(seeds):
    """Random layers with every option, but for the boundary."""
    for seed in seeds:
        weight, geometry = draw(np.random.default_rng(seed))
        geometry = replace(geometry, boundary="zeros")
        yield f"seed {seed}: {weight.shape} {geometry}", weight, geometry


def violations(seeds, bound=compressed):
    """The layers whose norm exceeds the bound, of those that are drawn."""
    return [
        said
        for said, weight, geometry in drawn(seeds)
        if norm_by_matrix(weight, geometry) * (1 - ROOM) > bound(weight, geometry)
    ]


@pytest.mark.parametrize("is_screened", [True, False])
def test_no_random_layer_exceeds_its_bound(is_screened):
    for said, weight, geometry in drawn(range(120)):
        norm = norm_by_matrix(weight, geometry)
        upper = compressed(weight, geometry, is_screened=is_screened)
        assert norm * (1 - ROOM) <= upper, said


def test_no_random_layer_exceeds_the_bound_of_all_axes_at_once():
    for said, weight, geometry in drawn(range(120)):
        norm, found = (
            norm_by_matrix(weight, geometry),
            compressed_at_once(weight, geometry),
        )
        assert norm * (1 - ROOM) <= found, said
        assert found <= compressed(weight, geometry) * (1 + 1e-4), said


def test_a_torus_too_small_by_one_is_noticed(monkeypatch):
    def too_small(stencil, taps):
        found = extent_of(stencil, taps)
        if found is None:
            return None
        sites = map(max, found.inputs, found.outputs)
        points = (max(n - 1, m) for n, m in zip(found.points, sites))
        return Extent(found.inputs, found.outputs, tuple(points))

    monkeypatch.setattr(compression, "extent_of", too_small)
    assert violations(range(300))


def test_a_box_too_small_by_one_is_noticed(monkeypatch):
    def too_small(a, sites, *, even):
        return cut_to_box(a, tuple(max(n - 1, 1) for n in sites), even=even)

    monkeypatch.setattr(compression, "cut_to_box", too_small)
    assert violations(range(100))


def test_a_box_too_small_by_one_at_once_is_noticed(monkeypatch):
    right = cut_at_once.cut_at_once

    def too_small(a, sites, *, even):
        return right(a, tuple(max(n - 1, 1) for n in sites), even=even)

    monkeypatch.setattr(compression, "cut_at_once", too_small)
    assert violations(range(100), compressed_at_once)


def test_norms_a_thousandth_too_small_are_noticed(monkeypatch):
    class TooSmall(SymbolNorms):
        def _tighten(self, *args):
            super()._tighten(*args)
            self.uppers *= 0.999

    monkeypatch.setattr(compression, "SymbolNorms", TooSmall)
    assert violations(range(100))


@pytest.mark.parametrize("grid", [3, 4, 7, (3, 5), (6, 6), (4, 3, 3)])
@pytest.mark.parametrize("kind", ["alternating", "constant", "orthogonal", "rank one"])
def test_kernels_that_are_made_to_break_it(kind, grid, rng):
    axes = len(grid) if isinstance(grid, tuple) else 1
    shape = (3, 3, *(3,) * axes)
    weight = np.ones(shape)
    if kind == "alternating":  # the torus of the grid itself is no bound for this
        weight = (-1.0) ** np.indices(shape)[2:].sum(axis=0)
    elif kind == "orthogonal":
        weight = np.zeros(shape)
        weight[..., *(1,) * axes] = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    elif kind == "rank one":
        weight = np.ones(1)
        for n in shape:
            weight = np.multiply.outer(weight, rng.standard_normal(n))
        weight = weight[0]
    geometry = Geometry(grid, boundary="zeros")
    norm = norm_by_matrix(weight, geometry)
    upper = compressed(weight, geometry)
    assert norm * (1 - ROOM) <= upper
    if kind == "orthogonal":
        assert upper == pytest.approx(1, rel=2e-5)


def test_alternating_signs_on_three_sites():
    weight = np.array([[[1.0, -1.0, 1.0]]])
    geometry = Geometry(3, boundary="zeros")
    norm, torus = 1 + np.sqrt(2), 1 + np.sqrt(5) / 2 + 0.5
    upper = compressed(weight, geometry)
    assert norm <= upper < torus - 0.1


@pytest.mark.parametrize("weight", [np.zeros((2, 3, 3)), np.ones((2, 3, 1)) * 1e-200])
def test_zero_and_tiny_kernels(weight):
    geometry = Geometry(5, padding=2, boundary="zeros")
    norm = norm_by_matrix(weight, geometry)
    assert norm <= compressed(weight, geometry) <= norm * (1 + 1e-3)


def test_where_no_row_reads_a_column_the_norm_is_zero():
    geometry = Geometry(1, stride=9, padding=((4, 9),), boundary="zeros")
    weight = np.ones((1, 1, 3))
    assert norm_by_matrix(weight, geometry) == 0
    assert norm_along(weight, geometry, method="compression").upper == 0


@pytest.mark.parametrize(
    ("options", "sites"),
    [
        ({}, ((9,), (9,), (11,))),
        ({"stride": 2}, ((5,), (5,), (6,))),
        ({"dilation": 3}, ((3,), (3,), (5,))),  # three layers of three sites each
        ({"padding": 0}, ((9,), (7,), (11,))),
        ({"padding": 2}, ((9,), (11,), (11,))),
        ({"padding": 7}, ((9,), (11,), (11,))),  # further rows read nothing
        ({"padding": ((0, 2),)}, ((9,), (9,), (11,))),
        ({"stride": 4, "padding": 0}, ((2,), (2,), (2,))),  # which skips columns
    ],
)
def test_the_sites_that_count(options, sites):
    weight, geometry = np.ones((1, 1, 3)), Geometry(9, boundary="zeros", **options)
    stencil = stencil_of(weight, geometry)
    found = extent_of(stencil, taps_of(weight, stencil))
    if options.get("stride") == 4:  # taps share a shift: sites are all alike
        assert found == Extent((1,), (1,), (1,))
    else:
        assert found == Extent(*sites)


@pytest.mark.parametrize("cut_by", [cut_to_box, cut_at_once.cut_at_once])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("sites", [(1,), (3,), (6,), (2, 5), (4, 1), (3, 2, 3)])
def test_a_multiplication_cut_to_a_box(sites, even, cut_by, rng):
    points = tuple(n + 2 for n in sites)
    a = rng.random(points)
    if even:
        a = a + a[np.ix_(*(-np.arange(n) for n in points))]
    found = cut_by(a, sites, even=even)
    # The same as one matrix, with a row for each site of the box.
    index = np.indices(sites).reshape(len(sites), -1)
    apart = (index[:, :, None] - index[:, None, :]) % np.array(points)[:, None, None]
    top = np.linalg.eigvalsh(np.fft.ifftn(a)[tuple(apart)])[-1]
    assert top * (1 - 1e-14) <= found.upper <= a.max()
    assert found.weights.sum() == pytest.approx(1)
    if len(sites) == 1 and cut_by is cut_to_box:
        assert found.upper == pytest.approx(top, rel=1e-12)
    if cut_by is not cut_to_box:
        assert found.upper <= top * (1 + 2e-5)
        # The weights are those of the top eigenvector: they give the eigenvalue.
        assert np.sum(found.weights * a) == pytest.approx(top, rel=1e-5)


def test_where_lapack_is_wrong_a_line_counts_with_its_largest_number(monkeypatch, rng):
    a = rng.random(7)
    right = cut_to_box(a, (5,), even=False).upper

    def too_small(matrices):
        values, vectors = np.linalg.eigh(matrices)
        return values * (1 - 1e-9), vectors

    monkeypatch.setattr(cut, "eigh", too_small)
    assert right < a.max() == cut_to_box(a, (5,), even=False).upper


def test_where_lanczos_is_wrong_the_bound_is_that_of_one_axis_after_the_other(
    monkeypatch, rng
):
    a = rng.random((6, 7))
    right = cut_at_once.cut_at_once(a, (4, 5), even=False).upper
    monkeypatch.setattr(
        cut_at_once, "_top_vector", lambda block, *_: np.eye(len(block))[0]
    )
    found = cut_at_once.cut_at_once(a, (4, 5), even=False).upper
    assert right < found == cut_to_box(a, (4, 5), even=False).upper


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("height", [0.97, 0.98, 0.985, 0.99])
def test_a_cut_at_once_finds_the_top_also_if_it_is_not_at_the_highest_peak(
    height, even
):
    # A sharp peak, and a broad one that is lower, but loses less when it is cut.
    points, sites = (24, 24), (20, 20)
    i, j = np.meshgrid(*(np.arange(n) / n for n in points), indexing="ij")
    sharp = np.sin(np.pi * (i - 0.25)) ** 2 + np.sin(np.pi * (j - 0.25)) ** 2
    broad = np.sin(np.pi * (i - 0.75)) ** 2 + np.sin(np.pi * (j - 0.5)) ** 2
    a = np.maximum(np.maximum(1 - 2 * sharp, height - 0.1 * broad), 0)
    if even:
        a = np.maximum(a, a[np.ix_(*(-np.arange(n) for n in points))])
    index = np.indices(sites).reshape(2, -1)
    apart = (index[:, :, None] - index[:, None, :]) % np.array(points)[:, None, None]
    top = np.linalg.eigvalsh(np.fft.ifftn(a)[tuple(apart)])[-1]
    found = cut_at_once.cut_at_once(a, sites, even=even)
    assert top * (1 - 1e-14) <= found.upper <= top * (1 + 2e-5)
    assert np.sum(found.weights * a) == pytest.approx(top, rel=1e-5)


def test_a_cut_at_once_is_closer_than_axis_by_axis(rng):
    weight = rng.standard_normal((4, 4, 3, 3))
    geometry = Geometry((24, 22), boundary="zeros")
    found = norm_along(weight, geometry, method="compression", rtol=1e-4)
    assert found.upper == pytest.approx(compressed_at_once(weight, geometry), rel=1e-6)
    assert found.upper < compressed(weight, geometry) * (1 - 1e-4)


@pytest.mark.parametrize("is_screened", [True, False])
@pytest.mark.parametrize("kind", [float, complex])
def test_norms_at_all_frequencies_are_bounded_closely(kind, is_screened, rng):
    weight = rng.standard_normal((2 * 5, 4, 3, 3)).astype(kind)
    if kind is complex:
        weight = weight + 1j * rng.standard_normal(weight.shape)
    geometry = Geometry((9, 7), groups=2, boundary="zeros")
    stencil = stencil_of(weight, geometry)
    taps, _ = dilation_reduced(taps_of(weight, stencil))
    kept = compression.frequencies_of(taps.pattern, (11, 9), real=kind is float)
    norms = SymbolNorms(taps, kept, is_screened=is_screened)
    phases = phase_factors(taps.shifts, kept.points, kept.grid_sizes)
    want = np.linalg.svd(symbol(taps, phases), compute_uv=False)[..., 0]
    assert (norms.uppers >= want).all()
    assert (norms.uppers <= want + 1.5e-2 * want.max()).all()
    norms.sharpen(np.arange(0, len(kept), 2), 1)
    assert (norms.uppers >= want).all()
    assert (norms.uppers[::2, 1] <= want[::2, 1] + 2e-4 * want.max()).all()


def test_estimates_that_are_much_too_small_cost_tightness_alone(monkeypatch, rng):
    weight, geometry = rng.standard_normal((3, 3, 3)), Geometry(9, boundary="zeros")
    usual = symbol_norms.ScreeningPass.estimates
    monkeypatch.setattr(
        symbol_norms.ScreeningPass,
        "estimates",
        lambda *args: usual(*args) * rng.random(len(args[2])),
    )
    norm = norm_by_matrix(weight, geometry)
    assert norm <= compressed(weight, geometry) <= 1.05 * norm


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2}, {"groups": 2}, {"dilation": 2}, {"padding": 0}, {"padding": 2}],
)
def test_large_layers_are_certified_closely(options, rng):
    groups = options.get("groups", 1)
    weight = rng.standard_normal((8 * groups, 8, 3, 3))
    geometry = Geometry((28, 30), boundary="zeros", **options)
    rtol = 1e-2 if options else 1e-3
    found = operator_norm(weight, geometry, rtol)
    assert found.method == "compression"
    gain = float(top_vectors(weight, geometry).gain)
    assert found.lower <= gain * (1 + 1e-6)
    assert gain <= found.upper <= gain * 1.01
    assert found.gap <= rtol


def test_the_bound_has_the_derivative_that_differences_have(rng):
    weight, geometry = (
        rng.standard_normal((3, 2, 3, 3)),
        Geometry((9, 8), boundary="zeros"),
    )
    direction = rng.standard_normal(weight.shape)
    double, _ = normalized(weight)
    found, taps = compression_of(double, geometry, 1e-5, is_screened=False)
    got = float(np.sum(found.derivative(taps, double) * direction))
    step = 1e-3
    ends = [compressed(weight + s * direction, geometry, 1e-5) for s in (step, -step)]
    assert got == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=3e-2)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("rtol", [0.3, 1e-2, 1e-3])
def test_a_border_that_is_not_read_does_not_count(boundary, stride, rtol, rng):
    # With one channel and a kernel of rank one the layer is a Kronecker product.
    for sides in ([1.0, 1, 1], [1.0, 2, 3], rng.standard_normal(3)):
        line = Geometry(59, stride, padding="valid", boundary=boundary)
        norm = norm_by_matrix(np.array(sides)[None, None], line) ** 2
        plane = Geometry((59, 59), stride, padding="valid", boundary=boundary)
        found = operator_norm(np.outer(sides, sides)[None, None], plane, rtol)
        assert found.lower <= norm * (1 + 1e-12)
        assert norm <= found.upper * (1 + 1e-12)
        assert found.gap <= rtol
