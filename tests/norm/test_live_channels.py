"""Channels that are all zero, as pruning leaves them, do not change a norm."""

import numpy as np
import pytest
from oracles import CASES, make, norm_by_matrix

from convspectra import Geometry, operator_norm
from convspectra._layer.stencil import stencil_of
from convspectra._norm import norm_bounds as followed
from convspectra._norm.norm_bounds import norm_bounds


@pytest.fixture
def shapes(monkeypatch):
    """The shapes of the weights that some route was followed for."""
    found, follow = [], followed._follow

    def recording(route, weight, stencil, **options):
        found.append(weight.shape)
        return follow(route, weight, stencil, **options)

    monkeypatch.setattr(followed, "_follow", recording)
    return found


def pruned(weight, groups, out, into):
    """The weight with these channels of every group set to 0."""
    kernels = weight.copy().reshape(groups, -1, *weight.shape[1:])
    kernels[:, out] = 0
    kernels[:, :, into] = 0
    return kernels.reshape(weight.shape)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_the_norm_is_that_of_the_matrix(case, dtype, rng):
    """Channels are added to each case, some of them dead."""
    weight, geometry = make(case, rng, dtype)
    groups = geometry.groups
    kernels = weight.reshape(groups, -1, *weight.shape[1:])
    wide = np.zeros(
        (groups, kernels.shape[1] + 2, kernels.shape[2] + 3, *kernels.shape[3:]), dtype
    )
    wide[:, 1:-1, 2:-1] = kernels
    wide = wide.reshape(-1, *wide.shape[2:])
    found = operator_norm(wide, geometry)
    norm = norm_by_matrix(wide, geometry)
    assert norm == pytest.approx(norm_by_matrix(weight, geometry), rel=1e-12)
    assert found.lower <= norm * (1 + 1e-13)
    assert norm <= found.upper * (1 + 1e-13)
    assert found.gap <= 1e-4


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_dead_channels_are_left_out(groups, transposed, shapes, rng):
    boundary = "zeros" if transposed else "circular"
    geometry = Geometry((5, 6), groups=groups, boundary=boundary, transposed=transposed)
    weight = rng.standard_normal((5 * groups, 4, 3, 3))
    operator_norm(pruned(weight, groups, [0, 3], [2]), geometry)
    operator_norm(weight, geometry)
    assert shapes == [(3 * groups, 3, 3, 3), weight.shape]


@pytest.mark.parametrize("weight", [np.zeros((2, 3, 3)), np.ones((2, 3, 3))])
def test_all_or_nothing_is_left_as_it_is(weight, shapes):
    operator_norm(weight, Geometry(7))
    assert shapes == [weight.shape]


def test_channels_that_are_dead_in_one_group_are_kept(shapes, rng):
    weight = rng.standard_normal((6, 2, 3, 3))
    weight[0] = weight[3:, 1] = 0
    geometry = Geometry((5, 6), groups=2)
    found = operator_norm(weight, geometry)
    assert shapes == [weight.shape]
    norm = norm_by_matrix(weight, geometry)
    assert found.lower <= norm * (1 + 1e-13) <= found.upper * (1 + 1e-12)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("boundary", ["circular", "zeros"])
def test_the_derivative_is_that_of_the_whole_layer(boundary, groups, rng):
    weight = rng.standard_normal((5 * groups, 4, 3, 3))
    weight = pruned(weight, groups, [1], [0, 2])
    geometry = Geometry((4, 5), groups=groups, boundary=boundary)
    bounds = norm_bounds(weight, stencil_of(weight, geometry), 1e-9)
    assert bounds.derivative().shape == weight.shape
    # Dead channels have no part in the top vectors: to revive them changes nothing yet.
    direction = rng.standard_normal(weight.shape)
    ends = [norm_by_matrix(weight + s * direction, geometry) for s in (1e-5, -1e-5)]
    got = float(np.sum(bounds.derivative() * direction))
    assert got == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3)


def test_what_is_left_of_a_layer_has_the_route_of_its_size(rng):
    """64 channels on 20x20 have too wide a band; the four that are left have not."""
    weight = np.zeros((64, 64, 3, 3))
    weight[:4, 60:] = rng.standard_normal((4, 4, 3, 3))
    geometry = Geometry((20, 20), boundary="zeros")
    found = operator_norm(weight, geometry)
    alone = operator_norm(weight[:4, 60:], geometry)
    assert found == alone
    assert found.gap <= 1e-4
