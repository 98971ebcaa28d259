"""Layers on large grids: as close as on others, in little memory and time."""

import tracemalloc

import numpy as np
import pytest
from oracles import norm_by_matrix

from convspectra import Geometry, operator_norm
from convspectra._layer.stencil import stencil_of
from convspectra._maps import tiling
from convspectra._norm import zero_padding
from convspectra._norm.part import part_that_attains
from convspectra._price import NOMINAL, of_lanczos, of_matrix_norm
from convspectra._route.norm import norm_route


def peak_memory(call):
    """What the call returns, and the most bytes that it held."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_of_a_large_kernel_two_axes_of_phase_factors_are_held(rng):
    weight = rng.standard_normal((1, 1, 24, 24))
    geometry = Geometry((384, 384))
    found, peak = peak_memory(lambda: operator_norm(weight, geometry))
    want = np.abs(np.fft.fft2(weight[0, 0], s=geometry.grid)).max()
    assert found.lower * (1 - 1e-12) <= want <= found.upper * (1 + 1e-12)
    every_tap = 16 * 24**2 * 384**2 // 2
    assert peak < every_tap / 3


@pytest.mark.parametrize(
    ("shape", "grid", "options"),
    [
        ((2, 3, 3, 3), (600, 620), {}),
        ((2, 3, 3, 3), (1200, 1100), {"stride": 2}),
        ((4, 1, 3, 3), (640, 600), {"groups": 4}),
        ((2, 2, 3), (2**18 + 1,), {"dilation": 2}),
    ],
)
def test_zero_padding_beyond_what_is_cut_is_attained_by_a_part(
    shape, grid, options, rng, monkeypatch
):
    """A wave of the part attains the lower bound; the torus bounds every grid."""
    parts = []

    def seen(*args):
        parts.append(part_that_attains(*args))
        return parts[-1]

    monkeypatch.setattr(zero_padding, "part_that_attains", seen)
    weight = rng.standard_normal(shape)
    geometry = Geometry(grid, padding=1, boundary="zeros", **options)
    found = operator_norm(weight, geometry)
    assert (found.method, len(parts)) == ("embedding", 1)
    assert found.gap <= 1e-4
    assert parts[0].columns < geometry.grid
    every = operator_norm(
        weight, Geometry(None, padding=1, boundary="zeros", **options), 1e-6
    )
    assert found.lower <= every.upper
    assert every.lower <= found.upper


def test_no_tiles_are_made_of_a_band_that_is_too_long(monkeypatch):
    def never(piece):
        raise AssertionError(piece)

    monkeypatch.setattr(tiling, "tiling", never)
    stencil = stencil_of(np.ones((4, 4, 3, 3)), Geometry((771, 771), boundary="zeros"))
    route = norm_route(stencil, real=True, on_host=True, rtol=1e-4)
    assert route.method == "embedding"


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("padding", [1, 2])
def test_some_row_of_a_part_reads_all_taps(stride, padding, rng):
    """Also where a kernel is no longer than its stride, and one site would do."""
    weight = rng.standard_normal((6, 5, 2, 2))
    geometry = Geometry(24, stride, padding=padding, boundary="zeros")
    stencil = stencil_of(weight, geometry)
    degree = np.array([1, 1]) // stride
    part = part_that_attains(stencil, degree, 1e-4)
    for axis in part.known_axes:
        first = stride * np.arange(axis.rows) - axis.pad_before  # that a row reads
        assert np.any((first >= 0) & (first + 2 <= axis.columns))
    found = operator_norm(weight, geometry)
    assert found.gap <= 1e-4
    assert found.lower <= norm_by_matrix(weight, geometry) * (1 + 1e-12)


def test_a_small_matrix_costs_milliseconds():
    """As measured: 3 to 22 ms for sides of 25 to 576, on two machines."""
    for channels, grid in ((1, 5), (4, 8), (8, 8)):
        weight = np.ones((channels, channels, 3, 3))
        stencil = stencil_of(weight, Geometry((grid, grid), boundary="zeros"))
        assert 2e-3 < of_matrix_norm(stencil, NOMINAL).seconds < 4e-2
    hurried = norm_route(stencil, real=True, on_host=True, rtol=1e-4, budget=1.0)
    assert hurried.method == "matrix"


def test_lanczos_is_priced_by_the_part_that_it_is_given():
    def price(grid):
        geometry = Geometry((grid, grid), padding=1, boundary="zeros")
        stencil = stencil_of(np.ones((8, 8, 3, 3)), geometry)
        return of_lanczos(stencil, 20, NOMINAL).seconds

    assert price(256) < price(400) == price(4000)


def test_a_dilated_layer_is_cut_as_its_residue_classes_are(rng):
    """Each of 1000 classes of sites is the same layer without dilation, on 16 sites."""
    weight = rng.standard_normal((4, 4, 3))
    found = operator_norm(
        weight, Geometry(16_000, padding=1000, dilation=1000, boundary="zeros")
    )
    norm = norm_by_matrix(weight, Geometry(16, padding=1, boundary="zeros"))
    assert found.method == "compression"
    assert found.lower <= norm * (1 + 1e-12)
    assert norm <= found.upper <= (1 + 3e-3) * norm
