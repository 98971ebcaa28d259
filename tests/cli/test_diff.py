"""`convspectra diff` of two files that do not state the same of their layers."""

import json

import numpy as np
import pytest
from onnx_models import conv_model
from oracles import norm_by_matrix

from convspectra import Geometry
from convspectra._cli.main import main

DEPTHWISE = {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}
GEOMETRY = Geometry(6, stride=2, groups=4, padding=1, boundary="zeros")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Each test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def weight(here, rng):
    """A depthwise kernel, as an array, and three times that in a graph."""
    weight = rng.standard_normal((4, 1, 3, 3))
    np.savez("arrays.npz", w=weight)
    save(here / "graph.onnx", 3 * weight)
    return weight


def save(path, weight, grid=(6, 6), **attributes):
    model = conv_model(weight, grid, **(DEPTHWISE | attributes))
    path.write_bytes(model.SerializeToString())


def compared(capsys, *argv, code=0):
    """The one row of a comparison, and what is said beside it."""
    assert main(["diff", *map(str, argv), "--json"]) == code
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["kernels"]
    return row, err


@pytest.mark.parametrize(
    ("files", "growth", "code"),
    [
        (["arrays.npz", "graph.onnx"], 3, 1),
        (["graph.onnx", "arrays.npz"], 1 / 3, 0),
    ],
)
@pytest.mark.parametrize("options", [[], ["--grid", 9, "--stride", 1]])
def test_the_geometry_of_one_file_holds_for_both(
    capsys, weight, files, growth, code, options
):
    gate = ["--fail-above", 1.1]
    row, err = compared(capsys, *files, *options, *gate, code=code)
    assert row["growth_lower"] <= growth <= row["growth_upper"]
    assert row["growth_upper"] - row["growth_lower"] < 1e-3
    small = "before" if growth > 1 else "after"
    want = norm_by_matrix(weight, GEOMETRY)
    assert row[f"{small}_lower"] * (1 - 1e-9) <= want <= row[f"{small}_upper"]
    assert (row["groups"], row["stride"], row["grid"]) == (4, [2, 2], [6, 6])
    assert "Growth assumes" not in err
    assert "No input size" not in err


def test_what_neither_file_states_is_assumed_and_said(capsys, here, weight):
    np.savez("more.npz", w=weight)
    row, err = compared(capsys, "arrays.npz", "more.npz")
    assert (row["growth_lower"], row["growth_upper"]) == (1, 1)
    assert row["groups"] is None
    assert "Growth assumes stride 1, one group" in err
    save(here / "open.onnx", weight, grid=("H", "W"))
    for files in (["arrays.npz", "open.onnx"], ["open.onnx", "arrays.npz"]):
        row, err = compared(capsys, *files)
        assert (row["growth_lower"], row["growth_upper"]) == (1, 1)
        assert (row["grid"], row["before_lower"]) == (None, None)
        assert "No input size is stated" in err


def test_files_that_state_different_geometries_each_have_their_own(
    capsys, here, weight
):
    save(here / "dense.onnx", weight, strides=[1, 1])
    row, _ = compared(capsys, "dense.onnx", "graph.onnx")
    for side, geometry, scale in (
        ("before", Geometry(6, groups=4, padding=1, boundary="zeros"), 1),
        ("after", GEOMETRY, 3),
    ):
        want = scale * norm_by_matrix(weight, geometry)
        assert row[f"{side}_lower"] * (1 - 1e-9) <= want <= row[f"{side}_upper"]


def test_a_transposed_layer_is_completed_with_all_that_belongs_to_it(capsys, here, rng):
    weight = rng.standard_normal((2, 2, 3))
    attributes = {"strides": [2], "pads": [1, 1], "output_padding": [1]}
    model = conv_model(weight, (5,), "ConvTranspose", **attributes)
    (here / "up.onnx").write_bytes(model.SerializeToString())
    np.savez("up.npz", w=weight)
    row, _ = compared(capsys, "up.npz", "up.onnx")
    assert (row["growth_lower"], row["growth_upper"]) == (1, 1)
    assert (row["transposed"], row["output_padding"]) == (True, [1])


def test_the_arrays_of_two_npy_files_are_one_layer(capsys, rng):
    weight = rng.standard_normal((2, 2, 3, 3))
    np.save("before.npy", weight)
    np.save("after.npy", 3 * weight)
    row, _ = compared(capsys, "before.npy", "after.npy", "--grid", 6)
    assert row["name"] == "after"
    assert row["growth_lower"] <= 3 <= row["growth_upper"]


def test_without_a_pair_the_reason_is_said(capsys, rng):
    np.save("one.npy", np.ones((2, 2, 3, 3)))
    np.save("other.npy", np.ones((2, 2, 5, 5)))
    np.savez("arrays.npz", w=np.ones((2, 2, 3, 3)))
    assert main(["diff", "one.npy", "other.npy"]) == 2
    assert "'one' has a different shape in each file." in capsys.readouterr().err
    assert main(["diff", "one.npy", "arrays.npz"]) == 2
    assert "got none: 'one' is not in arrays.npz." in capsys.readouterr().err
