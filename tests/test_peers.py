"""Where other tools are wrong: each case by name, the dense matrix judging."""

import numpy as np
import pytest
from oracles import norm_by_matrix

from convspectra import (
    Geometry,
    clip,
    operator_norm,
    project,
    scale_to,
    singular_values,
)


def kernel(rng, *shape):
    return rng.standard_normal(shape)


def assert_exact(weight, geometry):
    norm = norm_by_matrix(weight, geometry)
    found = operator_norm(weight, geometry)
    assert found.lower <= norm <= found.upper
    assert found.gap <= 1e-4
    assert singular_values(weight, geometry).max() == pytest.approx(norm)


@pytest.mark.parametrize("groups", [4, 8])
def test_groups_take_the_largest_norm_not_the_product(groups, rng):
    weight = kernel(rng, 8, 8 // groups, 3, 3)
    assert_exact(weight, Geometry(8, groups=groups))
    each = [operator_norm(part, Geometry(8)).upper for part in np.split(weight, groups)]
    together = operator_norm(weight, Geometry(8, groups=groups))
    assert together.upper == pytest.approx(max(each), rel=1e-4)


@pytest.mark.parametrize(("size", "padding"), [(3, 2), (2, 1)])
def test_circular_padding_that_repeats_rows(size, padding, rng):
    weight = kernel(rng, 3, 3, size, size)
    geometry = Geometry(6, padding=padding)
    assert_exact(weight, geometry)
    assert operator_norm(weight, geometry).lower > operator_norm(
        weight, Geometry(6)
    ).upper * (1 + 1e-3)


def test_rectangular_inputs_keep_both_sizes(rng):
    assert_exact(kernel(rng, 3, 3, 3, 3), Geometry((4, 9)))


def test_without_an_input_size_the_norm_is_that_of_all_sizes(rng):
    weight = kernel(rng, 3, 3, 3, 3)
    every = operator_norm(weight, Geometry(None))
    assert every.lower > operator_norm(weight, Geometry(3)).upper
    assert every.upper >= operator_norm(weight, Geometry(50)).lower


def test_a_kernel_larger_than_the_grid_wraps_and_is_not_cropped(rng):
    weight = kernel(rng, 3, 3, 5, 5)
    assert_exact(weight, Geometry(3))
    cropped = np.linalg.svd(
        np.fft.fft2(weight, (3, 3)).transpose(2, 3, 0, 1), compute_uv=False
    ).max()
    assert operator_norm(weight, Geometry(3)).lower > 1.1 * cropped


def test_stride_counts(rng):
    weight = kernel(rng, 4, 4, 3, 3)
    assert_exact(weight, Geometry(8, stride=2))
    dense = operator_norm(weight, Geometry(8)).lower
    assert operator_norm(weight, Geometry(8, stride=2)).upper < dense


def test_the_adjoint_of_a_strided_layer_drops_no_rows(rng):
    for boundary in ("circular", "zeros"):
        assert_exact(kernel(rng, 4, 4, 3, 3), Geometry(7, stride=2, boundary=boundary))


def test_dilation_counts_where_it_shares_a_divisor_with_the_grid(rng):
    assert_exact(kernel(rng, 3, 3, 3, 3), Geometry(8, dilation=4))
    # Eight steps round eight points lead back: both taps of (1, -1) meet.
    difference = np.array([[[1.0, -1.0]]])
    values = singular_values(difference, Geometry(8, dilation=4)).ravel()
    np.testing.assert_allclose(values, [0, 2] * 4, atol=1e-15)
    assert not singular_values(difference, Geometry(8, dilation=8)).any()


def test_the_reshaped_kernel_is_not_the_operator():
    # A constant 3x3 kernel: its sum against the root of its sum of squares.
    weight = np.ones((1, 1, 3, 3))
    assert operator_norm(weight, Geometry(6)).upper == pytest.approx(9, rel=1e-4)
    assert np.linalg.norm(weight.reshape(1, -1), 2) == pytest.approx(3)


def test_the_imaginary_part_of_the_transform_counts():
    # (1, -1) has the values |1 - exp(i t)|, 2 at the highest frequency.
    values = singular_values(np.array([[[1.0, -1.0]]]), Geometry(4)).ravel()
    np.testing.assert_allclose(values, [0, np.sqrt(2), 2, np.sqrt(2)], atol=1e-15)


def test_the_adjoint_turns_the_kernel_round(rng):
    weight = kernel(rng, 1, 1, 3, 3)  # not symmetric
    found = operator_norm(weight, Geometry((40, 40), boundary="zeros"))
    assert found.lower <= found.upper <= found.lower * 1.02


def test_the_zero_kernel_gives_zero_and_not_nan():
    weight, geometry = np.zeros((2, 2, 3, 3)), Geometry(4)
    assert operator_norm(weight, geometry).upper == 0
    assert not singular_values(weight, geometry).any()
    assert not project(weight, geometry, 1.0).weight.any()
    assert not clip(weight, geometry, 1.0).any()


def test_one_clip_leaves_the_ball_and_the_projection_does_not(rng):
    weight, geometry = kernel(rng, 8, 8, 3, 3), Geometry(8)
    bound = float(0.6 * operator_norm(weight, geometry).lower)
    assert norm_by_matrix(clip(weight, geometry, bound), geometry) > 1.05 * bound
    assert norm_by_matrix(project(weight, geometry, bound).weight, geometry) <= bound


@pytest.mark.parametrize("method", [clip, scale_to, lambda *a: project(*a).weight])
def test_small_layers_are_not_raised_to_the_bound(method, rng):
    weight, geometry = 0.01 * kernel(rng, 3, 3, 3, 3), Geometry(6)
    np.testing.assert_allclose(method(weight, geometry, 1.0), weight, atol=1e-15)
