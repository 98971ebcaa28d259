"""Projecting while a network trains: certified, and nearly the nearest."""

import numpy as np
import pytest
from oracles import TORUS, make, norm_by_matrix

from convspectra import Geometry, operator_norm, project
from convspectra._bound import separation
from convspectra._bound.blocks import torus_blocks
from convspectra._bound.cuts import Cuts, nonnegative_minimum
from convspectra._bound.cutting_planes import nearly_nearest
from convspectra._bound.enforce import enforce
from convspectra._bound.nearest import nearest
from convspectra._layer.stencil import stencil_of


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("part", [0.4, 0.97])
@pytest.mark.parametrize("case", TORUS)
def test_the_kernel_is_inside_and_little_further_than_the_nearest(
    case, part, dtype, rng
):
    weight, geometry = make(case, rng, dtype)
    bound = part * norm_by_matrix(weight, geometry)
    found = enforce(weight, [geometry], bound, "project", in_training=True)
    assert found.is_changed
    assert found.weight.dtype == weight.dtype
    assert norm_by_matrix(found.weight, geometry) <= found.after <= bound
    least = float(project(weight, geometry, bound, rtol=1e-6).distance)
    moved = np.linalg.norm(found.weight.astype(np.float64) - weight)
    # A squared distance that is 0.1 above the least, and what single precision loses.
    assert least * (1 - 1e-3) <= moved <= least / np.sqrt(0.9) + 3e-6 * bound


def test_many_channels_take_other_routines(rng, monkeypatch):
    weight = rng.standard_normal((40, 40, 3, 3))
    geometry = Geometry(4, boundary="zeros")
    norm = float(operator_norm(weight, Geometry(6)).upper)
    found = enforce(weight, [geometry], 0.8 * norm, "project", in_training=True)
    monkeypatch.setattr(separation, "DENSE_CUTS_SIDE", 16)
    other = enforce(weight, [geometry], 0.8 * norm, "project", in_training=True)
    least = project(weight, Geometry(6), 0.8 * norm).distance
    for each in found, other:
        assert norm_by_matrix(each.weight, geometry) <= each.after <= 0.8 * norm
        assert np.linalg.norm(each.weight - weight) <= 1.06 * least


def test_a_kernel_inside_is_the_same_and_its_norm_is_known(rng):
    weight = rng.standard_normal((3, 4, 3, 3)).astype("float32")
    geometry = Geometry(7)
    bound = 1.0001 * norm_by_matrix(weight, geometry)
    found = enforce(weight, [geometry], bound, "project", in_training=True)
    assert found.weight is weight
    assert not found.is_changed
    assert norm_by_matrix(weight, geometry) <= found.before == found.after <= bound


def test_no_kernel_within_the_bound_is_nearer_than_the_cuts_say(rng, monkeypatch):
    weight, stencil = rng.standard_normal((4, 6, 3, 3)), None
    stencil = stencil_of(weight, Geometry(8))
    told = []
    change = Cuts.change
    monkeypatch.setattr(
        Cuts,
        "change",
        lambda cuts, taps: told.append(cuts.distance) or change(cuts, taps),
    )
    nearly_nearest(weight, stencil, 5.0)
    exact = nearest(torus_blocks(weight, stencil), 5.0, rtol=1e-8, max_rounds=100)
    least = np.linalg.norm(exact.kernel - torus_blocks(weight, stencil).start) ** 2 / 2
    assert told == sorted(told)  # every round knows more
    assert 0.85 * least < told[-1] < least * (1 + 1e-5)


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("seed", range(5))
def test_the_minimum_with_signs_satisfies_its_conditions(size, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((size, max(2, size // 2)))  # singular products
    gram, b = vectors @ vectors.T, vectors @ rng.standard_normal(vectors.shape[1])
    x = nonnegative_minimum(gram, b, np.zeros(size))
    assert (x >= 0).all()
    slope = gram @ x - b
    scale = np.abs(b).max()
    assert slope.min() > -1e-3 * scale
    assert np.abs(x * slope).max() < 1e-3 * scale * max(x.max(), 1)
