"""Kernels that have their norm at every frequency: bounds hold, and are close."""

import itertools

import numpy as np
import pytest

from convspectra import Geometry, operator_norm, singular_values
from convspectra._layer.stencil import stencil_of
from convspectra._maps.symbol import taps_of
from convspectra._norm.boxes import CONTINUOUS, first_boxes
from convspectra._norm.flat_spectrum import flat_groups, smallest_squares
from convspectra._norm.rounding import UNIT_DOUBLE, of_symbol
from convspectra._norm.search import Search
from convspectra._route.records import NormRoute


def orthogonal(rng, channels, size, axes=2):
    """A kernel whose matrices are unitary: a product of factors P + (1 - P) shift."""
    kernel = np.linalg.qr(rng.standard_normal((channels, channels)))[0]
    kernel = kernel.reshape(channels, channels, *[1] * axes)
    for _, axis in itertools.product(range(size - 1), range(axes)):
        vectors = np.linalg.qr(rng.standard_normal((channels, channels // 2)))[0]
        inside = vectors @ vectors.T
        here, there = (
            np.tensordot(p, kernel, 1) for p in (inside, np.eye(channels) - inside)
        )
        pad = [(0, 0)] * kernel.ndim
        pad[2 + axis] = (0, 1)
        kernel = np.pad(here, pad)
        pad[2 + axis] = (1, 0)
        kernel += np.pad(there, pad)
    return kernel


def perturbed(rng, channels, size, axes, amount):
    kernel = orthogonal(rng, channels, size, axes)
    bump = rng.standard_normal(kernel.shape)
    return kernel + amount * bump / np.sqrt(bump[0].size)


SHAPES = [(4, 3, 2), (6, 5, 1), (8, 3, 2), (4, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("amount", [0.0, 1e-5, 1e-2, 0.1, 0.3])
def test_no_singular_value_is_below_the_bound(rng, shape, amount):
    kernel = perturbed(rng, *shape, amount)
    axes = shape[2]
    stencil = stencil_of(kernel, Geometry((64,) * axes))
    taps = taps_of(kernel.astype(complex), stencil)
    fine = singular_values(kernel, Geometry((60,) * axes if axes < 3 else (24,) * axes))
    boxes = first_boxes(taps.degree, np.full(axes, CONTINUOUS), real=True)
    only, allowance = np.array([0]), of_symbol(taps, UNIT_DOUBLE)
    found = smallest_squares(taps, only, boxes, 0.0, allowance)[0]
    assert amount > 0.1 or flat_groups(taps, fine.max()).tolist() == [0]
    assert found <= fine.min() ** 2
    if amount <= 1e-2:  # then it is of use
        assert found >= fine.max() ** 2 * (1 - 10 * amount - 1e-9)


@pytest.mark.parametrize("grid", [None, 96])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("amount", [0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1])
def test_norms_of_nearly_orthogonal_kernels(rng, shape, grid, amount):
    kernel = perturbed(rng, *shape, amount)
    axes = shape[2]
    points = 24 if axes == 3 else 96
    found = operator_norm(kernel, Geometry(grid and (points,) * axes))
    sampled = singular_values(kernel, Geometry((points,) * axes)).max()
    assert found.lower <= found.upper <= found.lower * (1 + 1e-4)
    assert sampled <= found.upper
    if grid is not None:
        assert found.lower <= sampled * (1 + 1e-12)
    elif amount == 0:
        assert found.lower <= 1 + 1e-12 <= found.upper + 2e-12


def test_one_loud_frequency_among_equal_ones(rng):
    """The largest norm is between the centers of the first boxes."""
    kernel = orthogonal(rng, 8, 3)
    left, right = np.linalg.svd(kernel.sum(axis=(2, 3)))[::2]
    wave = np.cos(2 * np.pi * (0.13 * np.arange(3)[:, None] + 0.29 * np.arange(3)))
    kernel = kernel + 2e-3 * np.multiply.outer(np.outer(left[:, 0], right[0]), wave)
    found = operator_norm(kernel, Geometry(None))
    assert singular_values(kernel, Geometry((200, 200))).max() <= found.upper


def test_random_kernels_are_not_flat(rng):
    kernel = rng.standard_normal((16, 16, 3, 3))
    taps = taps_of(kernel.astype(complex), stencil_of(kernel, Geometry((8, 8))))
    norm = singular_values(kernel, Geometry((8, 8))).max()
    assert not len(flat_groups(taps, norm))


@pytest.mark.parametrize("algorithm", ["search", "search by values"])
def test_groups_may_be_flat_at_different_levels(algorithm, rng):
    """Each has a smallest square of its own, or none if it is far from flat."""
    levels = (0.3, 1.0, 0.0, 0.9)
    kernels = [level * orthogonal(rng, 4, 2, 3) for level in levels]
    kernels.append(0.05 * rng.standard_normal(kernels[0].shape))
    kernel, groups = np.concatenate(kernels), np.arange(5)
    stencil = stencil_of(kernel, Geometry((64,) * 3, groups=5))
    taps = taps_of(kernel, stencil)
    assert flat_groups(taps, 1.0).tolist() == [1, 3]
    boxes = first_boxes(taps.degree, np.full(3, CONTINUOUS), real=True)
    allowance = of_symbol(taps, UNIT_DOUBLE)
    found = smallest_squares(taps, groups, boxes, 0.0, allowance)
    np.testing.assert_allclose(found[:4], np.square(levels), atol=1e-9)
    assert (found[:4] <= np.square(levels)).all()
    assert found[4] == 0
    peak = Search(taps, boxes, NormRoute("supremum", algorithm), 1e-4).run()
    assert peak.group == 1
    assert 1 - 1e-12 <= peak.lower <= 1 + 1e-12 <= peak.upper <= 1 + 1e-4


@pytest.mark.parametrize("algorithm", ["search", "search by values"])
def test_a_search_that_would_hardly_end_has_bounds_further_apart(algorithm, rng):
    """At every frequency one value is 1, and another is anything below."""
    kernel = np.zeros((8, 8, 3, 3))
    kernel[:4, :4] = orthogonal(rng, 4, 3)
    kernel[4:, 4:] = 0.05 * rng.standard_normal((4, 4, 3, 3))
    fine = singular_values(kernel, Geometry((60, 60)))
    assert fine.max() == pytest.approx(1)
    assert fine.min() < 0.3
    taps = taps_of(kernel, stencil_of(kernel, Geometry((64, 64))))
    boxes = first_boxes(taps.degree, np.full(2, CONTINUOUS), real=True)
    search = Search(taps, boxes, NormRoute("supremum", algorithm), 1e-4)
    search.most_boxes = 4 * len(boxes)
    peak = search.run()
    assert peak.lower <= 1 + 1e-12 <= peak.upper
    assert 1e-3 < peak.upper / peak.lower - 1 < 0.05
    patient = Search(taps, boxes, NormRoute("supremum", algorithm), 1e-4).run()
    assert patient.upper <= patient.lower * (1 + 1e-4)
