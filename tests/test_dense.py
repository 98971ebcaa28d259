"""The judge, judged by the frameworks' own convolutions on a basis."""

import numpy as np
import pytest
from oracles import CASES, basis, make

from convspectra import Geometry, dense_matrix

TORCH_MODE = {"circular": "circular", "reflect": "reflect", "replicate": "replicate"}


def input_shape(weight, geometry):
    channels = weight.shape[0] if geometry.transposed else weight.shape[1]
    full = geometry.on(weight.ndim - 2)
    times = 1 if geometry.transposed else geometry.groups
    return (channels * times, *full.grid)


def pads(weight, geometry):
    """(before, after) on each axis, read off the definition of the output size."""
    full = geometry.on(weight.ndim - 2)
    if full.padding != "same":
        return full.padding
    found = []
    for n, k, s, d in zip(full.grid, weight.shape[2:], full.stride, full.dilation):
        columns = n * s if geometry.transposed else n
        outputs = n if geometry.transposed else -(-n // s)
        total = max((outputs - 1) * s + d * (k - 1) + 1 - columns, 0)
        found.append((total // 2, total - total // 2))
    return tuple(found)


def torch_matrix(torch, weight, geometry):
    """The layer as torch computes it, one column per unit image."""
    full, axes = geometry.on(weight.ndim - 2), weight.ndim - 2
    kernel = torch.asarray(weight)
    x = torch.asarray(basis(input_shape(weight, geometry)))
    sides = pads(weight, geometry)
    functional = torch.nn.functional
    if geometry.transposed:
        convolve = getattr(functional, f"conv_transpose{axes}d")
        before = [a for a, _ in sides]
        y = convolve(
            x, kernel, None, full.stride, 0, 0, full.groups, full.dilation
        )  # everything, to be cropped and extended by hand
        for axis, (size, skip) in enumerate(
            zip(geometry.out_grid(weight.shape[2:]), before), start=2
        ):
            missing = max(skip + size - y.shape[axis], 0)
            shape = list(y.shape)
            shape[axis] = missing
            y = torch.cat([y, y.new_zeros(shape)], dim=axis).narrow(axis, skip, size)
    else:
        flat = [side for pair in reversed(sides) for side in pair]
        mode = TORCH_MODE.get(full.boundary, "constant")
        y = functional.pad(x, flat, mode=mode)
        convolve = getattr(functional, f"conv{axes}d")
        y = convolve(y, kernel, None, full.stride, 0, full.dilation, full.groups)
    return y.flatten(1).T.numpy()


@pytest.mark.parametrize(
    "case",
    [
        case
        for case, (_, geometry) in CASES.items()
        # torch transposes zero padding only, and pads a torus once round at most
        if not (geometry.get("transposed") and geometry.get("boundary") != "zeros")
        and case not in ("grid-of-one", "kernel-past-grid")
    ],
)
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
