"""Every boundary of the table, and what happens to one that is not in it."""

from types import SimpleNamespace

import numpy as np
import pytest

import convspectra._layer.geometry
import convspectra._norm.operator_norm
from convspectra import (
    Geometry,
    baselines,
    clip,
    dense_matrix,
    operator_norm,
    plan,
    project,
    scale_to,
    singular_values,
    top_vectors,
)
from convspectra._layer.boundary import BOUNDARIES, boundary_of
from convspectra._layer.stencil import columns_read, embedding, stencil_of
from convspectra._maps.symbol import taps_of
from convspectra._norm.torus_norm import norm_on_torus
from convspectra._route.torus import torus_route


def padded_identity(n, before, after, boundary):
    """A layer that pads its input and does nothing else."""
    geometry = Geometry((n,), padding=((before, after),), boundary=boundary)
    return np.ones((1, 1, 1)), geometry


PADDINGS = [(n, b, a) for n in (1, 2, 3, 5) for b in (0, 1, 4) for a in (0, 2, 7)]


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_what_is_read_is_what_the_judge_reads(boundary):
    for n, before, after in PADDINGS:
        weight, geometry = padded_identity(n, before, after, boundary)
        read = columns_read(stencil_of(weight, geometry), 0)
        matrix = dense_matrix(weight, geometry)
        np.testing.assert_array_equal(read[:, None] == np.arange(n), matrix)
        np.testing.assert_array_equal(read[before : before + n], np.arange(n))


@pytest.mark.parametrize("boundary", [b for b in BOUNDARIES if b != "circular"])
def test_no_site_is_read_more_often_than_stated(boundary):
    for n, before, after in PADDINGS:
        columns = dense_matrix(*padded_identity(n, before, after, boundary)).sum(axis=0)
        assert columns.max() <= boundary_of(boundary).repeats(before + after)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("kernel", [np.ones(3), np.array([1.0, -1.0, 1.0, 1.0, -1.0])])
def test_what_holds_on_every_grid_holds_on_each(boundary, kernel):
    weight = kernel.reshape(1, 1, -1)
    every = operator_norm(weight, Geometry(None, boundary=boundary))
    for n in range(1, 12):
        matrix = dense_matrix(weight, Geometry(n, boundary=boundary))
        assert np.linalg.norm(matrix, 2) <= every.upper * (1 + 1e-14)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid", 3])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_torus_holds_the_layer(boundary, padding, stride, rng):
    for n in (3, 4, 7):
        weight = rng.standard_normal((2, 2, 3))
        geometry = Geometry(n, stride, padding=padding, boundary=boundary)
        torus, factor = embedding(stencil_of(weight, geometry))
        route = torus_route("embedding", torus, real=True, on_host=True)
        taps = taps_of(weight, torus)
        peak = norm_on_torus(taps, torus.rows, route, real=True, rtol=1e-4)
        norm = np.linalg.norm(dense_matrix(weight, geometry), 2)
        assert norm <= factor * peak.upper * (1 + 1e-14)


@pytest.mark.parametrize("grid", [3, 4096, None])  # by matrix, torus, all sizes
@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize(
    "function",
    [
        operator_norm,
        top_vectors,
        singular_values,
        dense_matrix,
        plan,
        baselines.fantastic_four,
        baselines.gram_iteration,
        lambda weight, geometry: clip(weight, geometry, 0.5),
        lambda weight, geometry: project(weight, geometry, 0.5),
        lambda weight, geometry: scale_to(weight, geometry, 0.5),
    ],
)
def test_of_a_boundary_that_is_a_name_alone_nothing_is_certified(
    function, taps, grid, monkeypatch
):
    names = (*BOUNDARIES, "unstated")
    monkeypatch.setattr(convspectra._layer.geometry, "BOUNDARIES", names)
    geometry = Geometry(grid, boundary="unstated")
    with pytest.raises(ValueError, match=r"one of circular, .* got 'unstated'"):
        function(np.ones((1, 1, taps)), geometry)


def test_the_judge_does_not_guess_either(monkeypatch):
    names = (*BOUNDARIES, "unstated")
    monkeypatch.setattr(convspectra._layer.geometry, "BOUNDARIES", names)
    unchecked = SimpleNamespace(known_axes=())
    monkeypatch.setattr(convspectra._maps.dense, "stencil_of", lambda *_: unchecked)
    with pytest.raises(ValueError, match="'unstated' the judge knows nothing"):
        dense_matrix(np.ones((1, 1, 3)), Geometry(3, boundary="unstated"))
