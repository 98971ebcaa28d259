"""One channel with many taps: transforms of the whole grid, judged by the matrix."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from oracles import tolerance, values_by_matrix

from convspectra import Geometry, clip, dense_matrix, singular_values
from convspectra._compiled import svdvals
from convspectra._layer.stencil import stencil_of
from convspectra._maps import symbol, transform
from convspectra._maps.symbol import frequencies_of, pattern_of, taps_of
from convspectra._spectrum import values_of

LAYERS = {
    "one axis": ((1, 1, 20), {"grid": 24}),
    "taps past the grid": ((1, 1, 20), {"grid": 7}),
    "strided": ((1, 1, 40), {"grid": 12, "stride": 2}),
    "dilated with a common divisor": ((1, 1, 16), {"grid": 18, "dilation": 3}),
    "strided and dilated": ((1, 1, 50), {"grid": 12, "stride": 3, "dilation": 2}),
    "groups": ((3, 1, 50), {"grid": 9, "groups": 3}),
    "several outputs": ((2, 1, 33), {"grid": 8}),
    "several inputs": ((1, 2, 33), {"grid": 8}),
    "two axes": ((1, 1, 9, 9), {"grid": (11, 6)}),
    "three axes": ((1, 1, 3, 5, 4), {"grid": (3, 4, 2)}),
    "one axis of several": ((1, 1, 1, 20), {"grid": (3, 8)}),
    "transposed": ((1, 1, 40), {"grid": 6, "stride": 2, "transposed": True}),
}


@pytest.fixture(params=LAYERS)
def layer(request, rng):
    shape, options = LAYERS[request.param]
    weight, geometry = rng.standard_normal(shape), Geometry(**options)
    assert transform.transform_pays(taps_of(weight, stencil_of(weight, geometry)))
    return weight, geometry


def of_kind(weight, dtype, rng):
    if np.dtype(dtype).kind == "c":
        weight = weight + 1j * rng.standard_normal(weight.shape)
    return weight.astype(dtype)


def clipped_by_matrix(weight, geometry, bound):
    """The nearest kernel to the layer's matrix with its values clipped."""
    whole = dense_matrix(weight, geometry)
    u, s, vh = np.linalg.svd(whole, full_matrices=False)
    removed = (u * np.maximum(s - bound, 0)) @ vh
    units = np.eye(weight.size).reshape(-1, *weight.shape)
    basis = np.stack([dense_matrix(unit, geometry).ravel() for unit in units], axis=-1)
    change = np.linalg.lstsq(basis, removed.ravel())[0]
    return weight - change.reshape(weight.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_values_are_those_of_the_matrix(layer, dtype, rng):
    weight, geometry = of_kind(layer[0], dtype, rng), layer[1]
    want = values_by_matrix(weight, geometry)
    for values in (
        singular_values(weight, geometry),
        values_of(weight, stencil_of(weight, geometry), total_seconds=0.0),
    ):
        got = np.sort(values, axis=None)[::-1]
        assert got.dtype == weight.real.dtype
        np.testing.assert_allclose(got, want, atol=tolerance(want, dtype))


def test_values_stand_where_phase_factors_put_them(layer, monkeypatch):
    found = singular_values(*layer)
    monkeypatch.setattr("convspectra._spectrum.transform_pays", lambda taps: False)
    np.testing.assert_allclose(found, singular_values(*layer), atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_clips_are_those_of_the_matrix(layer, dtype, rng):
    weight, geometry = of_kind(layer[0], dtype, rng), layer[1]
    bound = 0.6 * values_by_matrix(weight, geometry).max()
    got = clip(weight, geometry, bound)
    want = clipped_by_matrix(weight, geometry, bound)
    np.testing.assert_allclose(got, want, atol=100 * np.finfo(dtype).eps)
    twice = clip(weight, geometry, bound, 2)
    again = clipped_by_matrix(want, geometry, bound)
    np.testing.assert_allclose(twice, again, atol=200 * np.finfo(dtype).eps)


def test_a_clip_above_the_norm_changes_nothing(layer):
    weight, geometry = layer
    bound = 1.01 * values_by_matrix(weight, geometry).max()
    np.testing.assert_array_equal(clip(weight, geometry, bound), weight)
    np.testing.assert_array_equal(clip(0 * weight, geometry, bound), 0 * weight)


def test_transforms_are_for_many_taps_of_one_channel(rng, monkeypatch):
    def none(*args):
        raise AssertionError

    monkeypatch.setattr(transform, "transforms", none)
    for shape, grid, groups in (
        ((1, 1, 3, 3), (16, 16), 1),
        ((2, 2, 64), 128, 1),
        ((64, 1, 7, 7), (16, 16), 64),
    ):
        singular_values(rng.standard_normal(shape), Geometry(grid, groups=groups))
    monkeypatch.undo()
    monkeypatch.setattr(svdvals, "values_of_many", none)
    singular_values(rng.standard_normal((1, 1, 64)), Geometry(128))


@pytest.mark.parametrize("job", [singular_values, partial(clip, max_norm=3.0)])
@pytest.mark.parametrize(
    ("shape", "grid"),
    [((1, 1, 1024), (2**14,)), ((2, 2, 256), (2**15,)), ((4, 4, 7, 7, 7), (32,) * 3)],
)
def test_phase_factors_are_made_in_portions(shape, grid, job, rng):
    """All together they would take 70 to 134 MB, and as much again several times."""
    weight, geometry = rng.standard_normal(shape, dtype=np.float32), Geometry(grid)
    job(weight, geometry)
    tracemalloc.start()
    try:
        job(weight, geometry)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**25


def test_portions_change_nothing(monkeypatch, rng):
    weight, geometry = rng.standard_normal((3, 2, 30)), Geometry(50)
    stencil = stencil_of(weight, geometry)
    want = singular_values(weight, geometry)
    monkeypatch.setattr("convspectra._maps.symbol_values.PHASE_FACTORS", 100)
    np.testing.assert_allclose(singular_values(weight, geometry), want, atol=1e-13)
    monkeypatch.setattr(symbol, "WORKING_SET", 1)
    found = values_of(weight, stencil, total_seconds=0.0)
    np.testing.assert_allclose(found, want, atol=1e-13)


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("kernel", [(1, 1, 1), (2, 1, 3), (3, 3, 3)])
@pytest.mark.parametrize("rows", [(1, 1, 1), (2, 5, 3), (4, 6, 1)])
def test_each_frequency_is_stood_for_by_one_with_its_values(rows, kernel, real, rng):
    weight = rng.standard_normal((2, 2, *kernel)) + (0 if real else 1j)
    stencil = stencil_of(weight, Geometry(rows))
    kept = frequencies_of(pattern_of(stencil), rows, real=real)
    every = np.moveaxis(np.fft.fftn(weight, rows, axes=(2, 3, 4)), (0, 1), (3, 4))
    if all(k <= n for k, n in zip(kernel, rows)):  # else NumPy cuts the kernel
        values = np.linalg.svd(every, compute_uv=False)
        places = np.moveaxis(kept.points[kept.representative], -1, 0)
        np.testing.assert_allclose(values[tuple(places)], values)
    counts = np.bincount(kept.representative.ravel(), minlength=len(kept))
    np.testing.assert_array_equal(kept.stands_for, counts)
    own = kept.representative[tuple(kept.points.T)]
    np.testing.assert_array_equal(own, np.arange(len(kept)))
