"""The bound by small matrices of the symbol, judged by the dense matrix."""

from dataclasses import replace

import numpy as np
import pytest
from random_layers import draw
from routes import norm_along

from convspectra import Geometry, dense_matrix
from convspectra._layer.stencil import stencil_of
from convspectra._maps.symbol import frequencies_of, taps_of
from convspectra._norm import block_compression as module
from convspectra._norm import kept_channels, kept_sites, schur
from convspectra._norm.block import block_of
from convspectra._norm.block_compression import block_compression
from convspectra._norm.compression import extent_of
from convspectra._norm.lanczos import Pair
from convspectra._route.norm import norm_route

ROOM = 1e-13  # what the dense matrix's own norm may be off by


def drawn(seeds):
    """Random real layers of one group that read zeros, and some column."""
    for seed in seeds:
        weight, geometry = draw(np.random.default_rng(seed))
        weight = weight[: len(weight) // geometry.groups].real
        geometry = replace(geometry, boundary="zeros", groups=1)
        stencil = stencil_of(weight, geometry)
        if extent_of(stencil, taps_of(weight, stencil)) is not None:
            yield f"seed {seed}: {weight.shape} {geometry}", weight, geometry


def bounded(weight, geometry, *, claimed=0.99, rtol=1e-3, directions=None):
    """The bound, and the norm; a pair that claims too little is to be found out."""
    stencil = stencil_of(weight, geometry)
    matrix = dense_matrix(weight, geometry)
    matrix = matrix.T if geometry.transposed else matrix
    left, values, right = np.linalg.svd(matrix)
    x = right[0].reshape(1, stencil.in_channels, *stencil.columns)
    y = left[:, 0].reshape(1, stencil.out_channels, *stencil.rows) * values[0]
    pair = Pair(claimed * values[0], x, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "directions_kept", lambda _: directions or 10**6)
        most = 1.2 * values[0]
        upper = block_compression(weight, stencil, pair, rtol, most)
    return upper or most, values[0]


def violations(seeds, **options):
    """The layers whose norm exceeds the bound, of those that are drawn, in turn."""
    for said, weight, geometry in drawn(seeds):
        for directions in (1, 2, None):
            upper, norm = bounded(weight, geometry, directions=directions, **options)
            if norm * (1 - ROOM) > upper:
                yield said


def test_no_random_layer_exceeds_its_bound():
    assert not list(violations(range(40)))


@pytest.mark.parametrize("claimed", [1.0, 0.9])
def test_nor_with_another_start(claimed):
    assert not list(violations(range(100, 120), claimed=claimed))


def test_the_layer_is_a_block_of_the_torus():
    """Entry by entry: the symbol transformed back, between the sites of the layer."""
    for said, weight, geometry in drawn(range(60)):
        stencil = stencil_of(weight, geometry)
        block = block_of(weight, stencil)
        every = range(len(block.frequencies))
        matrices = block.over_grid(np.stack([block.matrix(i) for i in every]))
        sizes = matrices.shape[:-2]
        matrices = matrices.reshape(-1, *matrices.shape[-2:])
        every = np.indices(sizes).reshape(len(sizes), -1).T
        # A row at r and a cell at c: the mean of H(f) exp(-2 pi i <f, r - c>).
        rows, cells = product(block.rows), product(block.cells)
        lag = rows[:, None, :] - cells[None, :, :]
        phases = np.exp(-2j * np.pi * ((lag / sizes) @ every.T))
        entries = np.einsum("rcf,foi->oric", phases, matrices) / len(every)
        found = entries.reshape(*entries.shape[:2], len(block.columns), -1, len(cells))
        dense = dense_matrix(weight, geometry)
        dense = dense.T if geometry.transposed else dense
        out, into = stencil.out_channels, stencil.in_channels
        dense = dense.reshape(out, -1, into, dense.shape[1] // into)
        row = np.ravel_multi_index(tuple(rows.T), stencil.rows)
        seen = np.zeros(dense.shape)
        for phase, own in enumerate(block.columns):
            there = own >= 0
            where = np.ix_(range(out), row, range(into), own[there])
            part = found[:, :, phase][..., there]
            np.testing.assert_allclose(part, dense[where], atol=1e-12, err_msg=said)
            seen[where] = dense[where]
        np.testing.assert_array_equal(seen, dense, err_msg=said)  # nothing is left out


def product(sites):
    """All combinations of the sites of the axes: (sites, axes)."""
    return np.stack([x.ravel() for x in np.meshgrid(*sites, indexing="ij")], axis=1)


def test_a_torus_too_small_by_one_is_noticed(monkeypatch):
    def too_small(weight, stencil):
        block = block_of(weight, stencil)
        sizes = tuple(max(n - 1, 1) for n in block.frequencies.representative.shape)
        fewer = frequencies_of(block.taps.pattern, sizes, real=True)
        return replace(block, frequencies=fewer)

    monkeypatch.setattr(module, "block_of", too_small)
    assert any(violations([7]))


def test_cells_that_are_off_by_one_are_noticed(monkeypatch):
    def off(weight, stencil):
        block = block_of(weight, stencil)
        return replace(block, cells=tuple(cells + 1 for cells in block.cells))

    monkeypatch.setattr(module, "block_of", off)
    assert any(violations([24]))


def test_a_cut_to_fewer_sites_is_noticed(monkeypatch):
    right = kept_sites._between_sites

    def fewer(lags, sites, counts):
        matrix = right(lags, sites, counts)
        for number in range(counts[0]):  # the last row couples with nothing
            last = (len(sites[0]) - 1) * counts[0] + number
            own = matrix[last, last]
            matrix[last], matrix[:, last], matrix[last, last] = 0, 0, own
        return matrix

    monkeypatch.setattr(kept_sites, "_between_sites", fewer)
    assert any(violations(range(6)))


@pytest.mark.parametrize("room", [kept_channels, kept_sites])
def test_more_than_is_left_is_noticed(room, monkeypatch):
    right = schur.eliminate

    def too_large(matrix, kept, added):
        left = right(matrix, kept, added)
        more = 0.01 * added / kept_channels.ADDED * np.eye(kept)
        return left and replace(left, matrix=left.matrix + more)

    monkeypatch.setattr(room, "eliminate", too_large)
    assert any(violations(range(6)))


@pytest.mark.parametrize("kind", [float, complex])
def test_what_is_left_of_a_matrix(kind, rng):
    """The largest matrix on the last numbers: the rest is semidefinite, and no more."""
    matrix = rng.standard_normal((6, 9)).astype(kind)
    if kind is complex:
        matrix = matrix + 1j * rng.standard_normal((6, 9))
    matrix = matrix @ matrix.conj().T
    matrix[4:, 4:] -= 20 * np.eye(2)
    left = schur.eliminate(matrix.copy(), 2, 50.0)
    rest = matrix.copy()
    rest[4:, 4:] -= left.matrix
    values = np.linalg.eigvalsh(rest)
    assert abs(values[:2]).max() < 1e-13 * values[-1]
    assert schur.eliminate(-matrix, 2, 50.0) is None


def test_all_directions_are_exact(rng):
    weight = rng.standard_normal((3, 2, 3))
    for options in ({}, {"stride": 2}, {"padding": 0}, {"padding": ((0, 2),)}):
        geometry = Geometry(10, boundary="zeros", **options)
        upper, norm = bounded(weight, geometry, claimed=1.0, rtol=1e-5)
        assert norm <= upper <= norm * (1 + 1e-5)


def test_it_closes_what_a_compression_leaves_open(rng):
    weight = rng.standard_normal((24, 24, 3, 3))
    geometry = Geometry((8, 8), boundary="zeros")
    alone = norm_along(weight, geometry, 1e-3, method="compression")
    closed = norm_along(
        weight, geometry, 1e-3, method="compression", closing="block compression"
    )
    norm = norm_along(weight, geometry, 1e-8, method="banded")
    assert alone.gap > 5e-3
    assert closed.gap < 1e-3
    assert closed.method == "block compression"
    assert closed.lower <= norm.upper
    assert norm.lower <= closed.upper


def test_it_comes_before_a_banded_factor_that_takes_longer(rng):
    weight = rng.standard_normal((6, 6, 3, 3))
    geometry = Geometry((16, 16), boundary="zeros")
    exact = norm_along(weight, geometry, 1e-5, method="banded")
    for rtol, method in ((1e-3, "block compression"), (1e-5, "banded")):
        found = norm_along(weight, geometry, rtol, method="block compression")
        assert found.method == method
        assert found.gap <= rtol
        assert found.lower <= exact.upper
        assert exact.lower <= found.upper
    for channels, grid, wanted in (
        (48, 16, "block compression"),
        (64, 8, "banded"),  # on which a compression is less close
        (16, 32, "banded"),  # whose band is narrow
    ):
        shape = (channels, channels, 3, 3)
        stencil = stencil_of(
            np.broadcast_to(np.float32(0), shape), Geometry(grid, boundary="zeros")
        )
        route = norm_route(stencil, real=True, on_host=True, rtol=1e-4)
        assert route.method == wanted
        exactly = norm_route(stencil, real=True, on_host=True, rtol=1e-6)
        assert (exactly.method, exactly.closing) == ("banded", None)


def test_layers_of_real_networks_get_it():
    for shape, grid, wanted in (
        ((256, 256, 3, 3), 14, "block compression"),
        ((512, 512, 3, 3), 7, "block compression"),
        ((64, 64, 3, 3), 200, None),  # has more sites than it is made for
    ):
        weight = np.broadcast_to(np.float32(0), shape)
        stencil = stencil_of(weight, Geometry((grid, grid), boundary="zeros"))
        route = norm_route(stencil, real=True, on_host=True, rtol=1e-3)
        assert (route.method, route.closing) == ("compression", wanted)
        assert norm_route(stencil, real=False, on_host=True).closing is None


def test_without_a_budget_it_is_kept_for_gaps_that_matter(rng):
    weight, geometry = rng.standard_normal((4, 4, 3, 3)), Geometry(24, boundary="zeros")
    stencil = stencil_of(
        np.broadcast_to(np.float32(0), (256, 256, 3, 3)), Geometry(14, boundary="zeros")
    )
    allowed = [
        norm_route(stencil, real=True, on_host=True, budget=budget).allowed_gap
        for budget in (None, 1e4)
    ]
    assert allowed == [1e-3, 0]
    methods = []
    for gap in (0.0, 0.1):
        found = norm_along(
            weight,
            geometry,
            method="compression",
            closing="block compression",
            allowed_gap=gap,
        )
        methods.append(found.method)
    assert 1e-4 < norm_along(weight, geometry, method="compression").gap < 0.1
    assert methods == ["block compression", "compression"]


def test_a_layer_that_reads_nothing_has_norm_zero(rng):
    weight = rng.standard_normal((4, 4, 1, 2))
    geometry = Geometry((1, 5), stride=(3, 1), padding=((1, 1), 0), boundary="zeros")
    found = norm_along(weight, geometry, method="block compression")
    assert found.lower == found.upper == 0
