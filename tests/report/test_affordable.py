"""What is beyond a budget is known before any work, and said."""

import json
import tracemalloc

import numpy as np
import pytest
from onnx_models import conv_model
from oracles import norm_by_matrix
from routes import machine

from convspectra import Geometry, operator_norm
from convspectra._checkpoint.select import Options, select
from convspectra._cli.main import main
from convspectra._price import Machine
from convspectra._report import affordable
from convspectra._report.affordable import excesses

BOMBS = {  # a grid, and the attributes of the convolution
    "wide": ((16, 10**7), {"pads": [1] * 4}),
    "pads": ((16, 16), {"pads": [10**6] * 4}),
    "dilation": ((16, 16), {"dilations": [10**6] * 2, "pads": [10**6] * 4}),
    "stride": ((2**15, 2**15), {"strides": [3, 3]}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_by_geometry_is_a_row_with_its_reason(capsys, tmp_path, rng, name):
    grid, attributes = BOMBS[name]
    weight = rng.standard_normal((2, 2, 3, 3))
    path = tmp_path / "bomb.onnx"
    path.write_bytes(conv_model(weight, grid, **attributes).SerializeToString())
    assert main(["report", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["layers"]
    assert "norm at this size would take" in row["left_out"]
    assert "state a smaller input or less padding" in row["left_out"]
    # Values are those of a torus of the size of the output: only one is small.
    assert row["values_of"] == ("torus" if name == "dilation" else None)
    assert row["grid"] == list(grid)
    assert row["left_out"] in err
    assert "--budget" not in err
    small = Geometry(12, padding=1, boundary="zeros")  # of which any is a larger one
    if name == "wide":
        norm = norm_by_matrix(weight, small)
        assert row["norm_lower"] <= norm <= row["norm_upper"] <= 1.1 * norm


@pytest.mark.parametrize(
    "argv",
    [
        ["norm"],
        ["compare"],
        ["values"],
        ["clip", "--max-norm", "1", "-o", "new.npz"],
        ["project", "--max-norm", "1", "-o", "new.npz"],
        ["diff", "k.npz"],
    ],
    ids=lambda argv: argv[0],
)
def test_other_commands_refuse_a_bomb_in_one_sentence(
    capsys, tmp_path, rng, monkeypatch, argv
):
    monkeypatch.chdir(tmp_path)
    np.savez("k.npz", bomb=rng.standard_normal((2, 2, 3, 3)))
    command, *more = argv
    padding = ["--padding", "1000000", "--boundary", "zeros"]
    tracemalloc.start()
    assert main([command, "k.npz", *more, "--grid", "8", *padding]) == 2
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
    out, err = capsys.readouterr()
    assert not out
    if command != "diff":  # which names the files that share nothing
        assert "'bomb' has a padded input and output of 1.6e+13 numbers, and at" in err
    assert not (tmp_path / "new.npz").exists()


def test_a_large_torus_is_not_too_large(capsys, tmp_path, rng):
    np.save(tmp_path / "k.npy", rng.standard_normal((2, 2, 1, 1)))
    assert main(["norm", str(tmp_path / "k.npy"), "--grid", "100000"]) == 0


@pytest.mark.parametrize("options", [[], ["--budget", "1000000"]])
def test_a_large_torus_has_its_norm_where_its_values_do_not_fit(
    capsys, tmp_path, rng, options
):
    weight = rng.standard_normal((1, 1, 3, 3))
    np.save(tmp_path / "k.npy", weight)
    stated = ["--stride", "1", "--groups", "1", "--boundary", "circular", "--json"]
    argv = ["report", str(tmp_path / "k.npy"), "--grid", "16384", *stated, *options]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["layers"]
    norm = np.abs(np.fft.fft2(weight[0, 0], (256, 256))).max()  # some of its values
    assert row["norm_method"] == "frequencies"
    assert norm <= row["norm_upper"] <= (1 + 1e-4) * row["norm_lower"]
    assert row["values_of"] is None
    assert "GiB of memory, and at most 4 GiB are allowed" in row["left_out"]
    assert "state a smaller input" in err
    assert "--budget" not in err


@pytest.mark.parametrize("boundary", ["zeros", "circular"])
def test_64_channels_on_512x512_fit(tmp_path, boundary):
    np.save(tmp_path / "k.npy", np.zeros((64, 64, 3, 3), "float32"))
    geometry = {"grid": 512, "boundary": boundary}
    layers = select(tmp_path / "k.npy", Options(geometry=geometry)).layers
    assert excesses(layers, None) == {}


def test_bounds_for_every_size_have_the_tolerance_that_is_asked_for(
    capsys, tmp_path, rng, monkeypatch
):
    weight = rng.standard_normal((4, 4, 3, 3))
    path = tmp_path / "net.onnx"
    path.write_bytes(conv_model(weight, (16, 16), pads=[1] * 4).SerializeToString())
    monkeypatch.setattr(affordable, "BYTES", 2**10)
    assert main(["report", str(path), "--json", "--rtol", "1e-6"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["layers"]
    wanted = operator_norm(weight, Geometry(None, padding=1, boundary="zeros"), 1e-6)
    assert row["norm_method"] == "supremum"
    assert row["norm_upper"] == wanted.upper


def test_what_takes_too_long_may_be_had_for_a_larger_budget(capsys, tmp_path, rng):
    np.save(tmp_path / "k.npy", rng.standard_normal((8, 8, 3, 3)))
    argv = ["report", str(tmp_path / "k.npy"), "--grid", "32", "--json"]
    assert main([*argv, "--budget", "1e-9"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["layers"]
    assert row["values_of"] is None
    assert "beyond the budget of 1e-09 s for all layers" in row["left_out"]
    assert "--budget SECONDS allows more" in err
    assert main(argv) == 0
    (row,) = json.loads(capsys.readouterr().out)["layers"]
    assert row["values_of"] is not None


def test_small_layers_come_first_and_a_budget_allows_more(tmp_path, rng, monkeypatch):
    arrays = {"large": (8, 8, 3, 3), "a": (2, 2, 3, 3), "b": (2, 2, 3, 3)}
    weights = {name: rng.standard_normal(shape) for name, shape in arrays.items()}
    np.savez(tmp_path / "k.npz", **weights)
    options = Options(geometry={"grid": 64})
    layers = select(tmp_path / "k.npz", options).layers
    slow = Machine(product_rate=1e8, cores=2)
    monkeypatch.setattr(affordable, "this_machine", lambda: slow)
    assert excesses(layers, 10**4) == {}
    costs = sorted(affordable._cost(layer, slow).seconds for layer in layers)
    found = excesses(layers, 1.01 * (costs[0] + costs[1]))
    assert found.keys() == {"large"}
    assert "beyond the budget of" in found["large"].values
    assert excesses(layers, 0.5 * costs[0]).keys() == weights.keys()
    large, *small = (affordable._cost(layer, slow) for layer in layers)
    kept = sum(cost.kept_bytes for cost in small)
    monkeypatch.setattr(affordable, "BYTES", large.values_bytes + kept - 1)
    found = excesses(layers, 10**4)
    assert found.keys() == {"large"}
    assert "select fewer layers by --key" in found["large"].values


def test_phase_factors_count(tmp_path):
    """A thousand taps for each of 65537 frequencies: seconds, for four numbers each."""
    np.savez(tmp_path / "k.npz", k=np.zeros((2, 2, 1024)))
    layers = select(tmp_path / "k.npz", Options(geometry={"grid": 2**17})).layers
    assert "values would take about" in excesses(layers, 1.0)["k"].values


def test_values_of_a_1x1_layer_cost_one_decomposition(tmp_path, rng):
    np.savez(tmp_path / "k.npz", one=rng.standard_normal((256, 256, 1, 1)))
    layers = select(tmp_path / "k.npz", Options(geometry={"grid": 100})).layers
    assert excesses(layers, None) == {}


def test_norms_are_those_of_the_library_on_any_machine(capsys, tmp_path, rng):
    weight = rng.standard_normal((2, 2, 3, 3))
    path = tmp_path / "net.onnx"
    path.write_bytes(conv_model(weight, (16, 16), pads=[1] * 4).SerializeToString())
    wanted = operator_norm(weight, Geometry(16, padding=1, boundary="zeros"))
    with machine(1.0, cores=1):  # one operation per second
        assert main(["report", str(path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["layers"]
    assert (row["norm_lower"], row["norm_upper"]) == (wanted.lower, wanted.upper)
    assert row["norm_method"] == wanted.method
