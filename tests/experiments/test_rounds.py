"""Rounds of projections, judged by a clip written out and by the true projection."""

import numpy as np
import pytest

import convspectra as cs
from experiments import rounds


def clipped_values(weight, grid, max_norm):
    """The projection of a kernel as large as its grid onto the norm ball."""
    h = np.moveaxis(np.fft.fft2(weight), (0, 1), (-2, -1))
    u, s, vh = np.linalg.svd(h, full_matrices=False)
    h = (u * np.minimum(s, max_norm)[..., None, :]) @ vh
    return np.fft.ifft2(np.moveaxis(h, (-2, -1), (0, 1))).real


def dykstra_written_out(weight, grid, max_norm, count):
    x = np.zeros((*weight.shape[:2], *grid))
    k = weight.shape[2:]
    x[..., : k[0], : k[1]] = weight
    p, q = np.zeros_like(x), np.zeros_like(x)  # corrections of both sets
    for _ in range(count):
        y = clipped_values(x + p, grid, max_norm)
        p = x + p - y
        z = y + q
        x = np.zeros_like(x)
        x[..., : k[0], : k[1]] = z[..., : k[0], : k[1]]
        q = z - x
    return x[..., : k[0], : k[1]]


@pytest.mark.parametrize("grid", [(4, 4), (5, 4)])
def test_dykstra_is_the_algorithm_written_out(grid, rng):
    weight = rng.standard_normal((3, 2, 3, 2))
    found = rounds.dykstra(weight, cs.Geometry(grid=grid), 2.0, (1, 3))
    for kernel, count in zip(found, (1, 3), strict=True):
        want = dykstra_written_out(weight, grid, 2.0, count)
        np.testing.assert_allclose(kernel, want, atol=1e-12)


def test_dykstra_ends_at_the_nearest_kernel(rng):
    weight, geometry = rng.standard_normal((2, 2, 3)), cs.Geometry(grid=(6,))
    bound = 0.7 * float(cs.operator_norm(weight, geometry).upper)
    (kernel,) = rounds.dykstra(weight, geometry, bound, (300,))
    nearest = cs.project(weight, geometry, bound, rtol=1e-6)
    np.testing.assert_allclose(kernel, nearest.weight, atol=2e-2)


def test_every_method_is_measured_by_the_norm_and_the_distance(rng, monkeypatch):
    monkeypatch.setattr(rounds, "ROUNDS", (1, 2))
    weight, geometry = rng.standard_normal((2, 2, 3, 3)), cs.Geometry(grid=(4, 4))
    bound = 0.5 * float(cs.operator_norm(weight, geometry).upper)
    found = rounds.compare(weight, geometry, bound)
    assert found["alternating"][0] == pytest.approx(found["Dykstra"][0])
    twice = cs.clip(weight, geometry, bound, rounds=2)
    matrix = cs.dense_matrix(twice, geometry)
    point = found["alternating"][1]
    assert point["excess"] == pytest.approx(np.linalg.norm(matrix, 2) / bound - 1)
    moved = np.linalg.norm(twice - weight) / found["project"]["distance"]
    assert point["distance"] == pytest.approx(moved)
    assert found["project"]["excess"] <= 0
