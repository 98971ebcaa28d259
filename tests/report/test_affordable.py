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
    assert "input and output have" in row["left_out"]
    assert (row["values_of"], row["grid"]) == (None, list(grid))
    assert "--budget SECONDS allows more." in err
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
    monkeypatch.setattr(affordable, "BYTES", 2**17)
    assert "GiB" in excesses(layers, affordable.SECONDS)["large"].values


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
