"""Bounds of layers that are partly unknown, judged by all that they may be."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from oracles import norm_by_matrix

from convspectra import Geometry, Layer
from convspectra._layer.stencil import stencil_of
from convspectra._norm.norm_bounds import lower_bound
from convspectra._report.partly_known import NO_LOWER, norm_of, upper_if_depthwise

SLACK = 1e-9


def norms(weight, **fields):
    """The norms of all layers with one of each field's values, by their matrices."""
    found = []
    for values in product(*fields.values()):
        try:
            geometry = Geometry(**dict(zip(fields, values)))
            geometry.resolve_axes(weight.shape[2:])
        except ValueError:  # no output on so small a grid
            continue
        found.append(norm_by_matrix(weight, geometry))
    return found


def test_without_any_geometry_the_upper_bound_holds_for_all(rng):
    weight = rng.standard_normal((4, 2, 3))
    unknown = ("grid", "stride", "dilation", "groups", "padding", "boundary")
    norm = norm_of(Layer("k", weight, Geometry(None)), unknown, 1e-4)
    everything = norms(
        weight,
        grid=(1, 4, 9),
        stride=(1, 2),
        dilation=(1, 2),
        groups=(1, 2, 4),
        boundary=("circular", "zeros"),
    )
    assert norm.lower == NO_LOWER
    assert max(everything) <= norm.upper * (1 + SLACK)
    assert max(everything) > 0.8 * norm.upper


@pytest.mark.parametrize("groups_known", [False, True])
def test_one_tap_has_a_lower_bound_whatever_the_rest_is(rng, groups_known):
    weight = rng.standard_normal((4, 2, 1))
    unknown = ("grid", "stride", "boundary") + (() if groups_known else ("groups",))
    norm = norm_of(Layer("k", weight, Geometry(None, groups=1)), unknown, 1e-4)
    everything = norms(
        weight,
        grid=(1, 5),
        stride=(1, 2),
        padding=(0, "same"),
        groups=(1,) if groups_known else (1, 2, 4),
        boundary=("circular", "zeros"),
    )
    assert norm.lower == pytest.approx(min(everything), rel=1e-3)
    assert norm.lower <= min(everything) * (1 + SLACK)
    assert max(everything) <= norm.upper * (1 + SLACK)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("unknown", [("grid",), ("grid", "groups")])
def test_without_a_size_the_lower_bound_is_that_of_the_smallest(
    rng, unknown, padding, transposed
):
    weight = rng.standard_normal((4, 2, 4))
    known = Geometry(
        None, stride=2, padding=padding, boundary="zeros", transposed=transposed
    )
    norm = norm_of(Layer("k", weight, known), unknown, 1e-4)
    everything = norms(
        weight,
        grid=range(1, 9),
        stride=[2],
        padding=[padding],
        boundary=["zeros"],
        groups=(1, 2, 4) if "groups" in unknown else [1],
        transposed=[transposed],
    )
    assert 0 < norm.lower <= min(everything) * (1 + SLACK)
    assert norm.lower == pytest.approx(min(everything), rel=1e-3)
    assert max(everything) <= norm.upper * (1 + SLACK)


def test_groups_alone_unknown_on_a_stated_grid(rng):
    weight = rng.standard_normal((4, 2, 3))
    geometry = Geometry(6, boundary="zeros")
    norm = norm_of(Layer("k", weight, geometry), ("groups",), 1e-4)
    everything = [
        norm_by_matrix(weight, replace(geometry, groups=g)) for g in (1, 2, 4)
    ]
    assert norm.lower == pytest.approx(min(everything), rel=1e-3)
    assert norm.lower <= min(everything) * (1 + SLACK)
    assert max(everything) <= norm.upper * (1 + SLACK)


@pytest.mark.parametrize(
    ("boundary", "padding"),
    [
        ("circular", "same"),
        ("circular", 1),
        ("zeros", "same"),
        ("zeros", 1),
        ("zeros", 4),
    ],
)
@pytest.mark.parametrize("grid", [None, 4])
def test_a_layer_that_may_be_transposed(rng, grid, boundary, padding):
    unknown = ("groups", "transposed") + (() if grid else ("grid",))
    geometry = Geometry(grid, stride=2, padding=padding, boundary=boundary)
    # What the ends of the first kernel do cancels on a circle of 4 sites, not of 8.
    for weight in (np.array([[[1.0, 0, 0, 0, -1]]]), rng.standard_normal((4, 2, 3))):
        everything = norms(
            weight,
            grid=[grid] if grid else range(1, 9),
            stride=[2],
            padding=[padding],
            boundary=[boundary],
            groups=[1, len(weight)],
            transposed=[False, True],
            output_padding=[0, 1],
        )
        norm = norm_of(Layer("k", weight, geometry), unknown, 1e-4)
        assert norm.lower <= min(everything) * (1 + SLACK)
        assert max(everything) <= norm.upper * (1 + SLACK)


def test_a_boundary_that_wraps_can_have_no_lower_bound():
    layer = Layer("difference", np.array([[[1.0, -1.0]]]), Geometry(None))
    assert norm_by_matrix(layer.weight, Geometry(1)) == 0
    assert norm_of(layer, ("grid",), 1e-4).lower == NO_LOWER


@pytest.mark.parametrize(
    "unknown",
    [
        ("grid",),  # as in a first look
        ("stride",),
        ("stride", "dilation", "groups"),
        ("stride", "dilation", "groups", "transposed"),
    ],
)
@pytest.mark.parametrize("padding", [((3, 4),), 1])
def test_a_known_circle_may_repeat_outputs(rng, unknown, padding):
    weight = rng.standard_normal((4, 2, 3))
    known = {"padding": padding, "boundary": "circular"}
    everything = norms(
        weight,
        grid=range(1, 9) if {"grid", "transposed"} & set(unknown) else [2],
        stride=(1, 2, 3) if "stride" in unknown else [1],
        dilation=(1, 2, 3) if "dilation" in unknown else [1],
        groups=(1, 4) if "groups" in unknown else [1],
        transposed=(False, True) if "transposed" in unknown else [False],
        **{field: [value] for field, value in known.items()},
    )
    norm = norm_of(Layer("k", weight, Geometry(2, **known)), unknown, 1e-4)
    assert max(everything) <= norm.upper * (1 + SLACK)
    least = 0.4 if padding == 1 else 0.3  # on a circle of one site all taps add up
    assert max(everything) > least * norm.upper


def test_a_transposed_circle_without_a_size(rng):
    weight = rng.standard_normal((2, 2, 4))
    options = {"stride": 2, "padding": 1, "transposed": True}
    norm = norm_of(Layer("k", weight, Geometry(None, **options)), ("grid",), 1e-4)
    for grid in range(1, 9):
        assert norm_by_matrix(weight, Geometry(grid, **options)) <= norm.upper


@pytest.mark.parametrize("boundary", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("padding", ["same", 70, 140])
def test_a_wide_dilation_without_a_size(boundary, padding, rng):
    for weight in (np.ones((1, 1, 3)), rng.standard_normal((2, 2, 3))):
        geometry = Geometry(None, dilation=70, padding=padding, boundary=boundary)
        if (boundary, padding) == ("circular", 140):  # whose rows would be repeated
            with pytest.raises(ValueError, match="padding"):
                norm_of(Layer("k", weight, geometry), ("grid",), 1e-4)
            continue
        norm = norm_of(Layer("k", weight, geometry), ("grid",), 1e-4)
        for grid in (1, 71, 142, 150, 300):
            try:
                found = norm_by_matrix(weight, replace(geometry, grid=grid))
            except ValueError:  # of reflections beyond the grid
                continue
            assert norm.lower <= found * (1 + SLACK)
            assert found <= norm.upper * (1 + SLACK)


@pytest.mark.parametrize("padding", [3, 40])
def test_a_wide_dilation_of_a_transposed_layer_without_a_size(padding, rng):
    weight = rng.standard_normal((2, 2, 3))
    options = {"padding": padding, "boundary": "zeros", "transposed": True}
    geometry = Geometry(None, 2, 70, output_padding=1, **options)
    norm = norm_of(Layer("k", weight, geometry), ("grid",), 1e-4)
    for grid in (1, 9, 80, 200):
        found = norm_by_matrix(weight, replace(geometry, grid=grid))
        assert norm.lower <= found * (1 + SLACK)
        assert found <= norm.upper * (1 + SLACK)


def test_a_wide_dilation_whose_boundary_nobody_states():
    layer = Layer("k", np.ones((1, 1, 3)), Geometry(8, dilation=70, padding=140))
    norm = norm_of(layer, ("boundary", "groups", "stride", "grid"), 1e-4)
    zeros = replace(layer.geometry, boundary="zeros")
    assert norm_by_matrix(layer.weight, zeros) <= norm.upper < 3.001


def test_a_boundary_that_repeats_inputs_has_no_bound_without_its_padding():
    layer = Layer("k", np.ones((1, 1, 3)), Geometry(None, boundary="replicate"))
    with pytest.raises(ValueError, match="padding and dilation must be known"):
        norm_of(layer, ("grid", "padding", "dilation"), 1e-4)
    with pytest.raises(ValueError, match="'replicate' repeats inputs as often as"):
        norm_of(layer, ("padding",), 1e-4)
    assert norm_of(layer, ("grid", "stride", "groups"), 1e-4).upper > 3


def test_a_kernel_of_one_input_channel_may_be_depthwise(rng):
    weight = rng.standard_normal((8, 1, 3))
    layer, unknown = Layer("k", weight, Geometry(None)), ("grid", "groups", "boundary")
    upper = upper_if_depthwise(layer, unknown, 1e-4)
    want = norm_by_matrix(weight, Geometry(64, groups=8))
    assert want <= upper <= 1.01 * want
    assert upper < norm_of(layer, unknown, 1e-4).upper
    assert upper_if_depthwise(layer, ("grid",), 1e-4) is None


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 1e-200])
def test_a_lower_bound_alone_is_attained(groups, scale, rng):
    weight = scale * rng.standard_normal((6, 6 // groups, 3, 3))
    geometry = Geometry((4, 5), stride=2, groups=groups, boundary="zeros")
    norm = norm_by_matrix(weight / scale, geometry) * scale
    lower = lower_bound(weight, stencil_of(weight, geometry), 1e-4)
    assert norm * (1 - 1e-3) <= lower <= norm * (1 + SLACK)
