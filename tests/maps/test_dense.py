"""The judge, judged by the frameworks' own convolutions on a basis."""

import numpy as np
import pytest
from oracles import IN_TORCH, basis, make, torch_matrix

from convspectra import Geometry, dense_matrix


@pytest.mark.parametrize("case", IN_TORCH)
def test_the_matrix_is_what_torch_computes(case, rng, torch):
    weight, geometry = make(case, rng)
    want = torch_matrix(torch, weight, geometry)
    np.testing.assert_allclose(dense_matrix(weight, geometry), want, atol=1e-12)


def test_output_padding_is_torch_s(rng, torch):
    weight = rng.standard_normal((3, 2, 3, 3))
    layer = torch.nn.ConvTranspose2d(3, 2, 3, 2, 1, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.asarray(weight))
        want = layer(torch.asarray(basis((3, 4, 5)))).flatten(1).T.numpy()
    geometry = Geometry(
        (4, 5), 2, padding=1, boundary="zeros", output_padding=1, transposed=True
    )
    np.testing.assert_allclose(dense_matrix(weight, geometry), want, atol=1e-12)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [5, 6, 7])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_same_and_valid_are_those_of_jax(stride, size, padding, rng, jax):
    weight = rng.standard_normal((3, 2, 4, 3))
    want = jax.lax.conv_general_dilated(
        jax.numpy.asarray(basis((2, size, 8))),
        jax.numpy.asarray(weight),
        (stride, stride),
        padding.upper(),
        rhs_dilation=(1, 2),
    )
    want = np.asarray(want).reshape(want.shape[0], -1).T
    geometry = Geometry(
        (size, 8), stride, dilation=(1, 2), padding=padding, boundary="zeros"
    )
    np.testing.assert_allclose(dense_matrix(weight, geometry), want, atol=1e-12)


def test_the_transposed_layer_is_the_transposed_matrix(rng):
    weight = rng.standard_normal((3, 2, 3, 3))
    there = dense_matrix(weight, Geometry(8, stride=2))
    back = dense_matrix(weight, Geometry(4, stride=2, transposed=True))
    np.testing.assert_array_equal(back, there.T)


def test_reflection_goes_on_past_the_other_end():
    weight = np.ones((1, 1, 1))
    geometry = Geometry(3, padding=((5, 4),), boundary="reflect")
    row = dense_matrix(weight, geometry) @ np.arange(3.0)
    want = np.pad(np.arange(3.0), (5, 4), mode="reflect")
    np.testing.assert_array_equal(row, want)


def test_the_matrix_comes_from_the_library_of_the_weight(xp, rng):
    weight, geometry = make("strided", rng)
    matrix = dense_matrix(xp.asarray(weight), geometry)
    assert type(matrix) is type(xp.asarray(weight))
    np.testing.assert_array_equal(np.asarray(matrix), dense_matrix(weight, geometry))


def test_a_matrix_that_is_too_large_is_refused():
    weight = np.ones((64, 64, 3, 3), dtype="float32")
    with pytest.raises(
        ValueError, match=r"at most 16777216 entries, got 65536 x 65536"
    ):
        dense_matrix(weight, Geometry(32))
