"""What a geometry accepts, what it refuses, and in which words."""

import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from convspectra import Geometry, Layer, dense_matrix, operator_norm, singular_values
from convspectra._layer.boundary import BOUNDARIES


def test_one_number_stands_for_every_axis():
    geometry = Geometry(grid=(8, 6), stride=2, padding=1)
    assert geometry.stride == (2, 2)
    assert geometry.dilation == (1, 1)
    assert geometry.padding == ((1, 1), (1, 1))


def test_numbers_wait_for_the_kernel_they_meet():
    geometry = Geometry(grid=6)
    assert geometry.grid == 6
    assert geometry.broadcast_to(3).grid == (6, 6, 6)
    for axes in (1, 2):
        weight = np.ones((2, 1, *[3] * axes))
        assert singular_values(weight, geometry).shape == (*[6] * axes, 1, 1)


@pytest.mark.parametrize(
    ("padding", "kept"),
    [
        ("same", "same"),
        ("valid", ((0, 0), (0, 0))),
        (2, ((2, 2), (2, 2))),
        ((1, 2), ((1, 1), (2, 2))),
        ([1, 2], ((1, 1), (2, 2))),
        (((0, 1), (2, 0)), ((0, 1), (2, 0))),
        ((1, (2, 0)), ((1, 1), (2, 0))),
    ],
)
def test_every_way_to_state_a_padding(padding, kept):
    assert Geometry((8, 8), padding=padding).padding == kept


@pytest.mark.parametrize(
    ("arguments", "kernel", "out"),
    [
        ({"grid": (7, 8), "stride": 2}, None, (4, 4)),
        ({"grid": 7, "stride": 2}, (3, 3), (4, 4)),
        ({"grid": (7, 8), "padding": "valid", "stride": 2}, 3, (3, 3)),
        ({"grid": (7, 8), "padding": 1, "dilation": 2}, 3, (5, 6)),
        ({"grid": (4, 5), "stride": 2, "transposed": True}, None, (8, 10)),
        ({"grid": (4, 5), "stride": 2, "padding": 1, "transposed": True}, 3, (7, 9)),
    ],
)
def test_output_grids(arguments, kernel, out):
    assert Geometry(**arguments).out_grid(kernel) == out


def test_the_torus_has_the_output_grid_times_the_stride():
    geometry = Geometry((7, 8), stride=2, padding=1, boundary="zeros")
    torus = geometry.torus((3, 3))
    assert (torus.grid, torus.boundary, torus.padding) == ((8, 8), "circular", "same")
    assert torus.stride == (2, 2)
    assert Geometry((7, 8), stride=2, boundary="zeros").torus().grid == (8, 8)
    assert Geometry((4, 4), stride=2, transposed=True).torus().grid == (4, 4)


def test_arrays_of_whole_numbers_are_tuples():
    geometry = Geometry(np.array([4, 5]), padding=np.array([1, 2]))
    assert (geometry.grid, geometry.padding) == ((4, 5), ((1, 1), (2, 2)))


def test_geometries_compare_and_hash_by_value():
    assert Geometry((8, 8), 2) == Geometry([8, 8], (2, 2))
    assert len({Geometry((8, 8), 2), Geometry((8, 8), (2, 2))}) == 1


def test_a_geometry_stays_as_it_is_and_can_be_copied():
    geometry = Geometry((8, 8), padding=1, boundary="zeros")
    with pytest.raises(FrozenInstanceError):
        geometry.stride = 2
    assert pickle.loads(pickle.dumps(geometry)) == geometry
    assert replace(geometry, stride=2) == Geometry((8, 8), 2, 1, 1, 1, "zeros")
    assert not hasattr(geometry, "__dict__")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"grid": 0}, ValueError, r"`grid` must be at least 1, got 0\."),
        ({"grid": (4, -1)}, ValueError, r"`grid` must be at least 1, got -1\."),
        ({"grid": 4.0}, TypeError, r"`grid` must be whole numbers, got 4\.0\."),
        ({"grid": True}, TypeError, r"`grid` must be whole numbers, got True\."),
        ({"grid": 10**20}, ValueError, r"`grid` must be below 2\*\*31, got 1000"),
        ({"grid": "4"}, TypeError, r"`grid` must be whole numbers, got '4'\."),
        ({"grid": ()}, ValueError, r"`grid` must have an entry per axis, got \(\)\."),
        ({"grid": 4, "stride": 0}, ValueError, "`stride` must be at least 1, got 0"),
        ({"grid": 4, "dilation": 0}, ValueError, "`dilation` must be at least 1"),
        ({"grid": 4, "groups": 0}, ValueError, "`groups` must be at least 1, got 0"),
        (
            {"grid": 4, "padding": -1},
            ValueError,
            "`padding` must be at least 0, got -1",
        ),
        ({"grid": 4, "padding": "full"}, ValueError, "a number per axis .* got 'full'"),
        (
            {"grid": (4, 4), "padding": ((1, 2, 3), 1)},
            ValueError,
            r"\(before, after\) on each axis, got \(1, 2, 3\)",
        ),
        (
            {"grid": (4, 4), "stride": (1, 1, 1)},
            ValueError,
            r"one entry per axis, got grid \(4, 4\), stride \(1, 1, 1\)",
        ),
        (
            {"grid": (4,), "padding": (1, 2)},
            ValueError,
            r"\(\(before, after\),\) is the one for a single axis",
        ),
        (
            {"grid": 4, "boundary": "wrap"},
            ValueError,
            f"one of {', '.join(BOUNDARIES)}, got 'wrap'",
        ),
        ({"grid": 4, "transposed": 1}, TypeError, "must be True or False, got 1"),
        (
            {"grid": 4, "output_padding": 1},
            ValueError,
            "must be 0 unless the layer is transposed with explicit padding, got 1",
        ),
        (
            {
                "grid": 4,
                "output_padding": 2,
                "stride": 2,
                "padding": 0,
                "transposed": True,
            },
            ValueError,
            "smaller than the stride or the dilation, got 2 with stride 2",
        ),
    ],
)
def test_what_a_geometry_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        Geometry(**arguments)


def test_methods_that_need_a_grid_or_a_kernel_say_so():
    with pytest.raises(ValueError, match="A grid is needed here, got grid None"):
        Geometry(None).out_grid()
    with pytest.raises(ValueError, match=r"kernel must be known unless `padding` is"):
        Geometry(8, padding=1).torus()
    with pytest.raises(ValueError, match=r"must have an output, got none on axis 0"):
        Geometry((3, 9), padding="valid").out_grid(5)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        ([[[1.0]]], TypeError, "must be a NumPy, .* array, got list"),
        ("kernel", TypeError, "must be a NumPy, .* array, got str"),
        (np.ones((2, 2, 3), int), TypeError, "must be floating point .* got int64"),
        (np.ones((2, 2, 3), bool), TypeError, "must be floating point .* got bool"),
        (np.full((2, 2, 3), "a"), TypeError, "must be floating point"),
        (np.full((2, 2, 3), np.nan), ValueError, "must be finite, got NaN or inf"),
        (np.full((2, 2, 3), -np.inf), ValueError, "must be finite, got NaN or inf"),
        (np.ones((2, 2)), ValueError, r"got shape \(2, 2\).*`weight\[:, :, None\]`"),
        (np.ones((0, 2, 3)), ValueError, r"must not be empty, got shape \(0, 2, 3\)"),
        (np.ones((2, 0, 3)), ValueError, r"must not be empty, got shape \(2, 0, 3\)"),
        (np.ones((2, 2, 0)), ValueError, r"must not be empty, got shape \(2, 2, 0\)"),
    ],
)
@pytest.mark.parametrize("function", [singular_values, operator_norm, dense_matrix])
def test_what_a_weight_must_be(function, weight, error, message):
    with pytest.raises(error, match=message):
        function(weight, Geometry(4))


def test_a_weight_and_a_geometry_must_fit():
    with pytest.raises(
        ValueError, match=r"groups` must divide the out channels.* 3 gr"
    ):
        singular_values(np.ones((4, 2, 3)), Geometry(4, groups=3))
    with pytest.raises(ValueError, match=r"groups` must divide the in channels"):
        singular_values(np.ones((4, 2, 3)), Geometry(4, groups=3, transposed=True))
    with pytest.raises(ValueError, match=r"got 2 \(grid \(4, 4\).* kernel with 1"):
        singular_values(np.ones((4, 2, 3)), Geometry((4, 4)))
    with pytest.raises(TypeError, match="must be a Geometry, got tuple"):
        singular_values(np.ones((4, 2, 3)), (4, 4))


def test_a_tensor_without_numbers_is_refused(torch):
    weight = torch.ones(2, 2, 3, device="meta")
    with pytest.raises(ValueError, match="got a tensor on the meta device"):
        singular_values(weight, Geometry(4))


def test_the_two_layouts_make_the_same_layer(xp, rng):
    weight = rng.standard_normal((5, 2, 3, 4))
    geometry = Geometry(6)
    first = Layer.from_oihw("conv", xp.asarray(weight), geometry)
    moved = xp.asarray(np.ascontiguousarray(weight.transpose(2, 3, 1, 0)))
    second = Layer.from_hwio("conv", moved, geometry)
    np.testing.assert_array_equal(np.asarray(first.weight), np.asarray(second.weight))
    assert first.geometry == second.geometry == geometry.broadcast_to(2)


def test_a_layer_is_checked_at_birth():
    with pytest.raises(ValueError, match="must be finite"):
        Layer("conv", np.full((1, 1, 3), np.nan), Geometry(4))
    with pytest.raises(TypeError, match="`name` must be a string, got 3"):
        Layer(3, np.ones((1, 1, 3)), Geometry(4))
    with pytest.raises(TypeError, match=r"must be a NumPy, .* array, got list"):
        Layer.from_hwio("conv", [1.0], Geometry(4))
