"""The command: numbers, messages, exit codes, and nothing half-written."""

import json
import math
import subprocess
import sys
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from oracles import norm_by_matrix, tolerance, values_by_matrix

import convspectra._cli.render
from convspectra import Geometry, clip, dense_matrix, project
from convspectra._checkpoint import FORMATS, Format, read_network, suffixes
from convspectra._cli import progress
from convspectra._cli.main import COMMANDS, main, run
from convspectra._layer.boundary import BOUNDARIES
from convspectra.baselines import fantastic_four

BOUND = ["--grid", "4", "--max-norm", "1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Each test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def kernel(rng):
    weight = rng.standard_normal((3, 2, 3, 3))
    np.save("k.npy", weight)
    return weight


@pytest.fixture
def model(rng):
    """A small checkpoint, as arrays and as files of two formats."""
    arrays = {
        "conv1.weight": rng.standard_normal((3, 2, 3, 3)).astype("float32"),
        "conv1.bias": np.ones(3, "float32"),
        "conv2.weight": rng.standard_normal((2, 3, 3, 3)).astype("float32"),
        "steps": np.arange(4).reshape(1, 2, 2),
    }
    np.savez("model.npz", **arrays)
    safetensors.numpy.save_file(arrays, "model.safetensors", metadata={"format": "pt"})
    return arrays


def ask(capsys, *argv, code=0):
    """Run the command with --json and return its document."""
    assert main([*map(str, argv), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def refuse(capsys, *argv):
    """Run a command that cannot run, and return what it says."""
    assert main([*map(str, argv)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


# Numbers


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_norm_is_that_of_the_matrix_where_the_kernel_exceeds_the_grid(
    capsys, rng, boundary
):
    weight = rng.standard_normal((2, 2, 5, 5))
    np.save("wide.npy", weight)
    options = ["--grid", "3x3", "--boundary", boundary]
    (row,) = ask(capsys, "norm", "wide.npy", *options)["kernels"]
    matrix = dense_matrix(weight, Geometry(grid=3, boundary=boundary))
    want = np.linalg.norm(matrix, 2)
    slack = 1e-4 * want
    assert want - slack <= row["lower"] <= want + tolerance(want, "float64")
    assert want - tolerance(want, "float64") <= row["upper"] <= want + slack


@pytest.mark.parametrize(
    ("options", "geometry"),
    [
        ("--grid 6", {"grid": 6}),
        ("--grid 6x4 --stride 2", {"grid": (6, 4), "stride": 2}),
        ("--grid 6x4 --stride 2x1", {"grid": (6, 4), "stride": (2, 1)}),
        ("--grid 7 --dilation 2x3", {"grid": 7, "dilation": (2, 3)}),
        ("--grid 4 --groups 2", {"grid": 4, "groups": 2}),
        ("--grid 5 --padding valid", {"grid": 5, "padding": "valid"}),
        ("--grid 5 --padding 2", {"grid": 5, "padding": 2}),
        ("--grid 5 --padding 1x2", {"grid": 5, "padding": (1, 2)}),
        ("--grid 5 --padding 0:1x2:0", {"grid": 5, "padding": ((0, 1), (2, 0))}),
        ("--grid 5 --padding 1x2:0", {"grid": 5, "padding": ((1, 1), (2, 0))}),
        (
            "--grid 4 --stride 2 --padding 1 --transposed --output-padding 1",
            {
                "grid": 4,
                "stride": 2,
                "padding": 1,
                "transposed": True,
                "output_padding": 1,
            },
        ),
    ],
)
def test_the_options_state_the_geometry(capsys, rng, options, geometry):
    weight = rng.standard_normal((4, 2, 3, 3))
    np.save("k.npy", weight)
    geometry = Geometry(**geometry, boundary="zeros")
    argv = ["norm", "k.npy", "--boundary", "zeros", *options.split()]
    (row,) = ask(capsys, *argv)["kernels"]
    want = norm_by_matrix(weight, geometry)
    assert row["lower"] * (1 - 1e-12) <= want <= row["upper"] * (1 + 1e-12)
    assert row["upper"] <= want * (1 + 2e-4)


def test_hwio_kernels_are_turned_and_turned_back(capsys, rng):
    weight = rng.standard_normal((4, 2, 3, 5)).astype("float32")
    np.save("k.npy", weight)
    np.save("turned.npy", weight.transpose(2, 3, 1, 0))
    bound = ["--grid", 6, "--max-norm", 1, "-o"]
    want = ask(capsys, "project", "k.npy", *bound, "a.npy")["kernels"]
    turned = ["project", "turned.npy", *bound, "b.npy", "--layout", "hwio"]
    got = ask(capsys, *turned)["kernels"]
    assert got[0]["shape"] == want[0]["shape"] == [4, 2, 3, 5]
    np.testing.assert_array_equal(
        np.load("b.npy"), np.load("a.npy").transpose(2, 3, 1, 0)
    )


@pytest.mark.parametrize(
    ("shapes", "is_said"),
    [
        ([(3, 3, 3, 64), (1, 1, 64, 16)], True),
        ([(3, 3, 16, 16), (7,), (9, 9)], True),
        ([(16, 3, 3, 3), (16, 1, 3, 3)], False),
        ([(3, 3, 3, 64), (64, 16, 3, 3)], False),
        ([(1, 1, 5, 5)], False),
        ([(3, 16, 16)], False),
    ],
)
def test_kernels_that_look_like_hwio_are_pointed_out(capsys, shapes, is_said):
    arrays = {f"k{n}": np.ones(shape) for n, shape in enumerate(shapes)}
    np.savez("k.npz", **arrays)
    argv = ["norm", "k.npz", "--grid", "none"]
    assert main(argv) == 0
    assert ("is theirs, pass --layout hwio." in capsys.readouterr().err) is is_said
    for layout in ("oihw", "hwio"):
        assert main([*argv, "--layout", layout]) == 0
        assert "--layout" not in capsys.readouterr().err


def test_values_are_those_of_the_matrix(capsys, kernel):
    (row,) = ask(capsys, "values", "k.npy", "--grid", "5x4", "-o", "v.npz")["kernels"]
    want = values_by_matrix(kernel, Geometry(grid=(5, 4)))[: row["count"]]
    atol = tolerance(want, "float64")
    np.testing.assert_allclose(row["values"], want, atol=atol)
    with np.load("v.npz") as saved:
        assert saved["k"].shape == (5, 4, 1, 2)
        assert sorted(saved["k"].ravel(), reverse=True) == row["values"]
    assert row["values_of"] == "layer"


def test_values_of_another_boundary_are_labeled(capsys, kernel):
    assert main(["values", "k.npy", "--grid", "5", "--boundary", "zeros"]) == 0
    out, err = capsys.readouterr()
    assert out.split()[-10] == "torus"
    assert "circular surrogate" in err


def test_values_as_a_table(capsys, model):
    assert main(["values", "model.npz", "--grid", "4"]) == 0
    out, err = capsys.readouterr()
    heading, *lines = out.splitlines()
    assert heading.split()[:2] == ["kernel", "shape"]
    assert [line.split()[0] for line in lines] == ["conv1.weight", "conv2.weight"]
    assert "Skipped (has fewer than 3 axes): 'conv1.bias'." in err
    assert "Skipped (holds int64, not floating point): 'steps'." in err


def test_skipped_arrays_are_in_the_document(capsys, model):
    document = ask(capsys, "norm", "model.safetensors", "--grid", 4)
    assert {entry["name"] for entry in document["skipped"]} == {"conv1.bias", "steps"}
    assert document["file"] == "model.safetensors"


def test_norm_without_a_grid_holds_for_every_size(capsys, kernel):
    document = ask(capsys, "norm", "k.npy")
    (row,) = document["kernels"]
    assert (row["grid"], row["method"]) == (None, "supremum")
    for grid in (1, 2, 3, 7):
        for boundary in ("circular", "zeros"):
            geometry = Geometry(grid=grid, boundary=boundary)
            assert norm_by_matrix(kernel, geometry) <= row["upper"] * (1 + 1e-12)
    assert main(["norm", "k.npy", "--grid", "none"]) == 0
    out, err = capsys.readouterr()
    assert "every size" in out
    assert "upper bounds hold for every size" in err
    assert "values" not in err


def test_rtol_sets_how_close_the_ends_are(capsys, kernel):
    (row,) = ask(capsys, "norm", "k.npy", "--grid", 8, "--rtol", "1e-9")["kernels"]
    assert row["upper"] <= row["lower"] * (1 + 1e-9)


def test_clip_writes_what_clip_gives(capsys, model):
    argv = ["--grid", 4, "--max-norm", 1, "--rounds", 2, "--min-norm", 0.5]
    for suffix in ("npz", "safetensors"):
        rows = ask(capsys, "clip", f"model.{suffix}", *argv, "-o", f"c.{suffix}")
        name, weight = "conv2.weight", model["conv2.weight"]
        want = clip(weight, Geometry(grid=4), 1.0, 2, min_norm=0.5)
        new = (
            np.load("c.npz")
            if suffix == "npz"
            else safetensors.numpy.load_file(f"c.{suffix}")
        )
        np.testing.assert_array_equal(new[name], want)
        np.testing.assert_array_equal(new["steps"], model["steps"])
        assert list(new) == list(
            model if suffix == "npz" else safetensors.numpy.load_file(f"model.{suffix}")
        )
        row = rows["kernels"][1]
        before, after = (norm_by_matrix(k, Geometry(grid=4)) for k in (weight, want))
        assert row["before_upper"] == pytest.approx(before, rel=1e-4)
        assert row["after_upper"] == pytest.approx(after, rel=1e-4)


def test_clip_says_that_it_ends_outside(capsys, kernel):
    assert main(["clip", "k.npy", "--grid", "6", "--max-norm", "1", "-o", "c.npy"]) == 0
    out, err = capsys.readouterr()
    assert "these are above 1: 'k'. Use more --rounds" in err
    assert "after from" in out


@pytest.mark.parametrize("command", ["clip", "project"])
def test_a_changed_kernel_of_unknown_geometry_has_no_lower_bound(
    capsys, kernel, command
):
    argv = [command, "k.npy", "--max-norm", "1", "-o", "new.npy"]
    (row,) = ask(capsys, *argv)["kernels"]
    assert row["stride"] is None
    # With stride 4, the norm is far below that with stride 1, which may be meant, too.
    assert norm_by_matrix(kernel, Geometry(4, stride=4)) < 0.9 * row["before_upper"]
    assert (row["before_lower"], row["after_lower"]) == (None, None)
    assert main(argv) == 0
    assert capsys.readouterr().out.count("unknown") == 2
    (row,) = ask(capsys, *argv, "--grid", 4)["kernels"]  # a layer with the defaults
    for name, weight in (("before", kernel), ("after", np.load("new.npy"))):
        want = norm_by_matrix(weight, Geometry(4))
        assert row[f"{name}_lower"] == pytest.approx(want, rel=1e-3)


def test_project_ends_inside_in_the_dtype_of_the_file(capsys, model):
    kinds = {
        name: model["conv1.weight"].astype(name) for name in ("float16", "float32")
    }
    kinds["bfloat16"] = model["conv1.weight"].astype(ml_dtypes.bfloat16)
    safetensors.numpy.save_file(kinds, "kinds.safetensors")
    bound = ["--grid", 4, "--max-norm", 1, "-o", "p.safetensors"]
    document = ask(capsys, "project", "kinds.safetensors", *bound)
    new = safetensors.numpy.load_file("p.safetensors")
    for row in document["kernels"]:
        found = new[row["name"]]
        assert found.dtype == kinds[row["name"]].dtype
        norm = norm_by_matrix(found.astype("float64"), Geometry(grid=4))
        assert norm <= row["after_upper"] * (1 + 1e-12)
        assert row["after_upper"] <= 1
    want = project(kinds["float32"], Geometry(grid=4), 1.0)
    np.testing.assert_array_equal(new["float32"], want.weight)
    row = next(row for row in document["kernels"] if row["name"] == "float32")
    assert row["distance"] == pytest.approx(float(want.distance))


def test_project_for_every_size(capsys, kernel):
    bound = ["--grid", "none", "--max-norm", 1, "--rtol", 1e-2, "-o", "p.npy"]
    (row,) = ask(capsys, "project", "k.npy", *bound)["kernels"]
    assert row["grid"] is None
    for grid in (2, 5, 9):
        geometry = Geometry(grid=grid, boundary="zeros")
        assert norm_by_matrix(np.load("p.npy"), geometry) <= 1


def test_compare_has_every_method_with_its_kind(capsys, kernel):
    rows = ask(capsys, "compare", "k.npy", "--grid", 5, "--boundary", "zeros")
    found = {row["method"]: row for row in rows["kernels"]}
    want = norm_by_matrix(kernel, Geometry(grid=5, boundary="zeros"))
    upper = found["operator_norm"]
    assert (upper["kind"], upper["ratio"]) == ("certified upper bound", 1)
    assert upper["value"] == pytest.approx(want, rel=1e-4)
    assert set(found) == {
        "operator_norm",
        "reshaped_norm",
        "power_iteration",
        "fantastic_four",
        "gram_iteration",
        "tensor_norm",
    }
    for row in found.values():
        assert row["ratio"] == pytest.approx(row["value"] / want, rel=2e-4)
        if row["kind"] == "upper bound":
            assert row["value"] >= want * (1 - 1e-12)
        if row["kind"] == "lower bound":
            assert row["value"] <= want * (1 + 1e-12)
    geometry = Geometry(grid=5, boundary="zeros")
    value = float(fantastic_four(kernel, geometry).value)
    assert found["fantastic_four"]["value"] == value


def test_compare_of_a_zero_kernel_has_no_ratio(capsys):
    np.save("zero.npy", np.zeros((1, 1, 3)))
    rows = ask(capsys, "compare", "zero.npy", "--grid", 5)["kernels"]
    assert {(row["value"], row["ratio"]) for row in rows} == {(0.0, None)}


def test_json_has_null_for_what_is_not_finite(capsys):
    row = {"distance": math.inf, "gap": [math.nan, 1.5, 2], "name": "k"}
    convspectra._cli.render.as_json({"kernels": [row]})
    (found,) = json.loads(capsys.readouterr().out)["kernels"]
    assert found == {"distance": None, "gap": [None, 1.5, 2], "name": "k"}


# Keys


def test_keys_choose_arrays(capsys, model):
    for keys, names in [
        (["conv1.weight"], ["conv1.weight"]),
        (["*.weight"], ["conv1.weight", "conv2.weight"]),
        (["conv2.*", "conv1.w*"], ["conv1.weight", "conv2.weight"]),
        (["conv1.*"], ["conv1.weight"]),
    ]:
        options = [part for key in keys for part in ("--key", key)]
        rows = ask(capsys, "norm", "model.npz", "--grid", 4, *options)["kernels"]
        assert [row["name"] for row in rows] == names


def test_a_key_may_look_like_a_pattern(capsys, rng):
    np.savez("k.npz", **{"k[0]": rng.standard_normal((1, 1, 3))})
    (row,) = ask(capsys, "norm", "k.npz", "--key", "k[0]")["kernels"]
    assert row["name"] == "k[0]"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("conv1.bias", "'conv1.bias' has fewer than 3 axes."),
        ("steps", "'steps' holds int64, not floating point."),
        (
            "conv9",
            "`--key` must name an array of the file, got 'conv9'. There are: conv1",
        ),
        ("*.bias", "got none: 'conv1.bias' has fewer than 3 axes."),
    ],
)
def test_keys_that_do_not_fit_are_refused(capsys, model, key, message):
    assert message in refuse(capsys, "norm", "model.npz", "--key", key)


def test_names_from_a_file_do_not_reach_the_terminal_raw(capsys, rng):
    safetensors.numpy.save_file(
        {"\x1b[31mred": rng.standard_normal((1, 1, 3))}, "k.safetensors"
    )
    assert main(["norm", "k.safetensors", "--fail-above", "0"]) == 1
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err


# Exit codes and messages


def test_fail_above_names_the_layers(capsys, model):
    norms = {
        name: norm_by_matrix(model[name], Geometry(grid=4))
        for name in ("conv1.weight", "conv2.weight")
    }
    loud, quiet = max(norms, key=norms.get), min(norms, key=norms.get)
    between = sum(norms.values()) / 2
    argv = ["norm", "model.npz", "--grid", "4", "--fail-above"]
    assert main([*argv, str(between)]) == 1
    err = capsys.readouterr().err
    assert repr(loud) in err
    assert repr(quiet) not in err
    assert main([*argv, str(2 * between)]) == 0
    capsys.readouterr()
    ask(capsys, *argv, between, code=1)


BAD_KERNELS = {
    "nan": (np.full((1, 1, 3), np.nan), "must be finite, got NaN or infinity"),
    "infinity": (np.full((1, 1, 3), np.inf), "must be finite, got NaN or infinity"),
    "integers": (np.ones((1, 1, 3), int), "'k' holds int64, not floating point"),
    "strings": (np.full((1, 1, 3), "x"), "'k' holds str32, not floating point"),
    "empty channels": (np.ones((2, 0, 3)), "must not be empty, got shape (2, 0, 3)"),
    "a matrix": (np.ones((3, 3)), "'k' has fewer than 3 axes: --linear takes a matrix"),
    "pickled objects": (
        np.full((1, 1, 3), None),
        "'k' holds pickled objects, which are never loaded",
    ),
}


@pytest.mark.parametrize("case", BAD_KERNELS)
def test_bad_kernels_are_refused(capsys, case):
    array, message = BAD_KERNELS[case]
    np.save("k.npy", array)
    for argv in ("norm k.npy", "clip k.npy --grid 4 --max-norm 1 -o new.npy"):
        err = refuse(capsys, *argv.split())
        assert message in err
        assert err.splitlines()[-1].startswith("convspectra: k.npy: ")


BAD_OPTIONS = {
    "norm k.npy --grid 0": "`grid` must be at least 1, got 0",
    "norm k.npy --grid=-4": "`grid` must be at least 1, got -4",
    "norm k.npy --grid 4x4 --stride=-1": "`stride` must be at least 1, got -1",
    "norm k.npy --grid 4x": "must be a whole number, or one per axis like 32x16, got",
    "norm k.npy --grid abc": "argument --grid: must be a whole number",
    "norm k.npy --grid 4.5": "must be a whole number",
    "norm k.npy --grid 4x4x4": "one entry per axis of the kernel, got 3",
    "norm k.npy --grid 4 --groups 2": "has 3 channels, which 2 groups do not divide",
    "norm k.npy --grid 4 --groups 0": "`groups` must be at least 1, got 0",
    "norm k.npy --grid 4 --padding=-1": "`padding` must be at least 0, got -1",
    "norm k.npy --grid 4 --padding 1:2:3": "must be same, valid, a number",
    "norm k.npy --grid 4 --padding some": "must be same, valid, a number",
    "norm k.npy --grid 4 --boundary odd": "argument --boundary: invalid choice",
    "norm k.npy --grid 4 --output-padding 1": "`output_padding` must be 0 unless",
    "norm k.npy --grid 1 --padding valid": "The layer must have an output",
    "norm k.npy --rtol 0": "`rtol` must be between 0 and 1, got 0.0",
    "norm k.npy --fail-above nan": "must be a finite number, got 'nan'",
    "norm k.npy --fail-above high": "must be a finite number, got 'high'",
    "values k.npy": "The input size must be known here, and is not. State --grid",
    "compare k.npy": "The input size must be known here, and is not. State --grid",
    "values k.npy --grid none": "must be a whole number",
    "values k.npy --grid 4 -o v.npy": "must end in .npz, got 'v.npy'",
    "compare k.npy --grid none": "must be a whole number",
    "clip k.npy --grid 4 --max-norm 0 -o new.npy": "`max_norm` must be a positive",
    "clip k.npy --grid 4 --max-norm=-1 -o new.npy": "`max_norm` must be a positive",
    "clip k.npy --grid 4 --max-norm nan -o new.npy": "`max_norm` must be a positive",
    "clip k.npy --grid 4 --max-norm 1": "arguments are required: -o",
    "clip k.npy --grid 4 --max-norm 1 --rounds 0 -o new.npy": "`rounds` must be at",
    "clip k.npy --grid 4 --max-norm 1 --min-norm 2 -o new.npy": "`min_norm` must be",
    "clip k.npy --grid 4 --max-norm 1 -o new.npz": "must end in .npy, got 'new.npz'",
    "project k.npy --grid 4 --max-norm=inf -o new.npy": "`max_norm` must be a",
    "project k.npy --grid 4 --max-norm 1 -o k.npy/new.npy": "in a folder that exists",
    "project k.npy --grid 4 --max-norm 1 -o no/new.npy": "in a folder that exists",
    "project k.npy --grid 4 --max-norm 1 -o dir.npy": "must be a file, got 'dir.npy'",
    "norm missing.npy": "missing.npy: No such file or directory.",
    "norm k.npy/k.npy": "Not a directory.",
    "norm dir.npy": "A folder must hold a network in a file like model.safetensors",
    "norm model.txt": f"must be in a file that ends in {suffixes()}, got .txt",
    "report model.txt": "model.txt: A network must be in a file that ends in",
    "report k.npy --shard 3/2": "must be like 3/16, the third of sixteen, got '3/2'",
    "report k.npy -o k.npy": "must be a folder that can be written, got 'k.npy'",
    "diff k.npy missing.npy": "missing.npy: ",
    "": "the following arguments are required: COMMAND",
    "nonsense": "invalid choice: 'nonsense'",
}


@pytest.mark.parametrize("line", BAD_OPTIONS)
def test_bad_options_are_refused(capsys, here, kernel, line):
    (here / "dir.npy").mkdir()
    (here / "model.txt").touch()
    before = sorted(here.iterdir())
    assert BAD_OPTIONS[line] in refuse(capsys, *line.split())
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_truncated_files_are_refused(capsys, here, model, suffix):
    np.save("model.npy", model["conv1.weight"])
    path = here / f"model.{suffix}"
    path.write_bytes(path.read_bytes()[:-20])
    assert f"model.{suffix}: " in refuse(capsys, "norm", path.name)


def test_a_file_of_nothing_is_refused(capsys):
    np.savez("k.npz")
    assert "got none: it is empty." in refuse(capsys, "norm", "k.npz")


def test_a_failing_write_leaves_the_old_file(capsys, here, kernel, monkeypatch):
    (here / "new.npy").write_bytes(b"precious")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    err = refuse(capsys, "clip", "k.npy", *BOUND, "-o", "new.npy")
    assert "new.npy' must be writable: No space left on device. Nothing was" in err
    assert (here / "new.npy").read_bytes() == b"precious"
    assert sorted(path.name for path in here.iterdir()) == ["k.npy", "new.npy"]


def test_one_bad_kernel_of_many_writes_nothing(capsys, here, model):
    np.savez("bad.npz", **model, last=np.full((1, 1, 3), np.nan))
    argv = "project bad.npz --grid none --key conv1.weight --key last -o new.npz"
    err = refuse(capsys, *argv.split(), "--max-norm", 1)
    assert "'last': `weight` must be finite" in err
    assert not (here / "new.npz").exists()


def test_too_little_memory_is_said(capsys, kernel, monkeypatch):
    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr("convspectra._cli.kernels.norm_of", exhausted)
    assert "The memory must suffice" in refuse(capsys, "norm", "k.npy")


def test_an_interrupt_has_its_own_code(capsys, kernel, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("convspectra._cli.kernels.norm_of", interrupted)
    assert main(["norm", "k.npy"]) == 130
    assert capsys.readouterr().err.endswith("interrupted.\n")


@pytest.mark.parametrize("command", ["values", "compare"])
def test_no_bounds_are_announced_where_the_size_is_needed(capsys, kernel, command):
    err = refuse(capsys, command, "k.npy")
    assert err.startswith("convspectra: k.npy: 'k': The input size must be known here")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(capsys, command):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"examples:\n  convspectra {command}" in out
    assert all(line == line.rstrip() for line in out.splitlines())
    assert ("Without a file" in out) is ("[FILE" in out)
    assert main(["--help"]) == 0
    assert "exit codes: 0 done, 1 the check of --fail-above" in capsys.readouterr().out


# Damage


def damaged(data, rng, count):
    """Truncations and flipped bits of `data`, more of them where headers are."""
    for number in range(count):
        broken = bytearray(data)
        if number % 3 == 0:
            yield bytes(broken[: rng.integers(len(data))])
            continue
        for _ in range(rng.integers(1, 4)):
            ends = [(0, 200), (0, len(data)), (len(data) - 300, len(data))]
            low, high = ends[rng.integers(3)]
            at = int(rng.integers(max(low, 0), min(high, len(data))))
            broken[at] ^= 1 << int(rng.integers(8))
        yield bytes(broken)


@pytest.mark.parametrize("suffix", ["npy", "npz", "deflated.npz", "safetensors"])
def test_damaged_files_end_in_words(capsys, here, rng, suffix):
    arrays = {
        "a": rng.standard_normal((2, 2, 3)).astype("float32"),
        "bias": np.ones(2),
        "b": rng.standard_normal((1, 2, 3, 3)),
    }
    path = here / f"model.{suffix}"
    if suffix == "npy":
        np.save(path, arrays["b"])
    elif suffix == "npz":
        np.savez(path, **arrays)
    elif suffix == "deflated.npz":
        np.savez_compressed(path, **arrays)
    else:
        safetensors.numpy.save_file(arrays, path)
    new = path.with_name(f"new{path.suffix}")
    codes = set()
    for data in damaged(path.read_bytes(), rng, 240):
        path.write_bytes(data)
        code = main(
            ["clip", path.name, "--grid", "3", "--max-norm", "1", "-o", new.name]
        )
        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert new.exists() == (code == 0)
        new.unlink(missing_ok=True)
        assert [p.name for p in here.iterdir()] == [path.name]
        codes.add(code)
    assert codes == {0, 2}


# Terminals, processes


def test_a_terminal_gets_a_table_of_rich_and_a_pipe_plain_text(
    capsys, kernel, monkeypatch
):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for columns, lines in (("100", True), ("30", False)):  # plain where it is narrow
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["norm", "k.npy", "--grid", "4"]) == 0
        assert ("─" in capsys.readouterr().out) == lines
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setitem(sys.modules, "rich.table", None)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["norm", "k.npy", "--grid", "4"]) == 0
    assert "─" not in capsys.readouterr().out


def test_a_bar_appears_on_a_terminal_and_only_when_work_is_long(
    capsys, kernel, monkeypatch
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress.progress("quick") as shown:
        assert list(shown.of(["a", "b"], str)) == ["a", "b"]
    assert "quick" not in capsys.readouterr().err
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.progress("slow") as shown:
        for _ in shown.of(["a", "b"], str):
            time.sleep(0.3)
    out, err = capsys.readouterr()
    assert "slow: 1 of 2, a" in err
    assert out == ""


def test_without_a_terminal_lines_say_what_is_going_on(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    costs = {"small": 1.0, "large": 3.0}
    with progress.progress("report", "reading model.onnx") as shown:
        time.sleep(0.1)
        for _ in shown.of(list(costs), str, costs.__getitem__):
            time.sleep(0.1)
    out, err = capsys.readouterr()
    lines = [line.partition(", about")[0] for line in err.splitlines()]
    assert list(dict.fromkeys(lines)) == [
        "convspectra: report: reading model.onnx",
        "convspectra: report: 1 of 2, small",
        "convspectra: report: 2 of 2, large",
    ]
    assert "s left" in err
    assert out == ""


def test_python_m_convspectra(here, kernel):
    done = subprocess.run(
        [sys.executable, "-m", "convspectra", "norm", "k.npy", "--grid", "4", "--json"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0
    lines = done.stderr.splitlines()  # on a busy machine a word on what is going on
    assert all(line.startswith("convspectra: norm: ") for line in lines)
    (row,) = json.loads(done.stdout)["kernels"]
    want = norm_by_matrix(kernel, Geometry(grid=4))
    assert row["upper"] == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("options", ["--grid 4", "--grid 64 --json"])
def test_a_reader_that_leaves_is_no_drama(here, kernel, options):
    """As `convspectra ... | head -c 0`: quiet, with the code of a broken pipe."""
    process = subprocess.Popen(
        [sys.executable, "-m", "convspectra", "values", "k.npy", *options.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    lines = process.stderr.read().splitlines()
    process.stderr.close()
    # Progress, where it takes long, and nothing else.
    assert not [line for line in lines if b"values: 1 of 1" not in line]
    assert process.wait() == 141


def test_run_exits_with_the_code(monkeypatch):
    monkeypatch.setattr("sys.argv", ["convspectra", "norm", "missing.npy"])
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 2


def test_zip_files_of_other_things_are_refused(capsys, here):
    with zipfile.ZipFile("k.npz", "w") as archive:
        archive.writestr("photo.png", b"x")
    assert "something other than an array" in refuse(capsys, "norm", "k.npz")


def test_kernels_that_the_options_are_not_for_are_skipped_with_the_reason(
    tmp_path, capsys
):
    path = tmp_path / "many.npz"
    kernels = {
        "flat": np.ones((4, 2, 3, 3)),
        "line": np.ones((4, 2, 3)),
        "odd": np.ones((3, 2, 3, 3)),
    }
    np.savez(path, **kernels)
    command = ["norm", str(path), "--grid", "6x6", "--groups", "2", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["kernels"]] == ["flat"]
    reasons = {row["name"]: row["reason"] for row in found["skipped"]}
    assert "for a kernel with 1" in reasons["line"]
    assert "3 channels, which 2 groups do not divide" in reasons["odd"]
    assert main([*command, "--key", "line"]) == 2
    assert "for a kernel with 1" in capsys.readouterr().err


def test_a_projected_kernel_passes_the_gate_it_was_projected_for(tmp_path, rng):
    source, target = tmp_path / "kernel.npy", tmp_path / "bounded.npy"
    np.save(source, rng.standard_normal((4, 4, 3, 3)))
    for geometry in (["--grid", "8"], ["--grid", "8", "--boundary", "zeros"]):
        assert main(["norm", str(source), *geometry, "--fail-above", "1"]) == 1
        bound = ["--max-norm", "1", "-o", str(target)]
        assert main(["project", str(source), *geometry, *bound]) == 0
        assert main(["norm", str(target), *geometry, "--fail-above", "1"]) == 0


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("convspectra")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_suffixes_count_in_capital_letters_too(capsys, kernel, model, suffix):
    source = f"{'k' if suffix == '.npy' else 'model'}{suffix}"
    want = ask(capsys, "norm", source, "--grid", "4")["kernels"]
    capital = Path(f"K{suffix.upper()}")
    Path(source).rename(capital)
    found = ask(capsys, "norm", capital, "--grid", "4")["kernels"]
    assert [x["upper"] for x in found] == [x["upper"] for x in want]
    for target in (f"new{suffix}", f"NEW{suffix.upper()}"):
        found = ask(capsys, "project", capital, *BOUND, "-o", target)["kernels"]
        again = ask(capsys, "norm", target, "--grid", "4", "--fail-above", "1")
        assert len(again["kernels"]) == len(found) == len(want)
    assert "must end in" in refuse(capsys, "project", capital, *BOUND, "-o", "new.pt")


def test_values_are_written_under_capital_letters_too(capsys, kernel):
    ask(capsys, "values", "k.npy", "--grid", "4", "-o", "VALUES.NPZ")
    assert list(np.load("VALUES.NPZ")) == ["k"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_capital_letters_lead_to_the_same_reader(suffix, monkeypatch):
    seen = []
    reader = Format((suffix,), lambda *asked: seen.append(asked))
    monkeypatch.setitem(FORMATS, suffix, reader)
    for path in (Path(f"k{suffix}"), Path(f"K{suffix.upper()}")):
        read_network(path, layout="hwio", sizes=(1, 2))
        assert seen.pop() == (path, "hwio", (1, 2))
