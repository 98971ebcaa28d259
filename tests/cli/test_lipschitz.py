"""The command that bounds whole networks."""

import json
import math

import numpy as np
import pytest
from onnx_models import conv_model, make_node, model_of, stored, value

from convspectra._cli.main import main


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(conv_model().SerializeToString())
    return path


def test_the_network_that_comes_with_the_package(capsys):
    assert main(["lipschitz", "--rtol", "0.1", "--budget", "0.01"]) == 0
    shown = capsys.readouterr()
    *_, last = shown.out.splitlines()
    assert last.startswith("logits")
    assert "blocks.0.first.conv+blocks.0.first.norm" in shown.out
    assert "Lipschitz constant <= " in shown.err


def test_the_table_ends_with_the_bound(model, capsys):
    assert main(["lipschitz", str(model), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (part,) = document["parts"]
    assert part["operator"] == "Conv"
    assert document["upper"] == part["total"]
    assert document["log10_upper"] == pytest.approx(math.log10(part["norm"]))
    assert document["unknown"] == []
    assert document["inputs"] == {"x": [1, 2, 5]}  # an open batch is one example


def test_sizes_that_are_open_are_said(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    path.write_bytes(conv_model(grid=("T",)).SerializeToString())
    assert main(["lipschitz", str(path)]) == 0
    assert "for inputs of the size x 1x2x?." in capsys.readouterr().err


@pytest.mark.parametrize(("level", "code"), [("1e6", 0), ("0.1", 1)])
def test_a_level_decides_the_exit_code(level, code, model, capsys):
    assert main(["lipschitz", str(model), "--fail-above", level]) == code


def test_a_network_without_a_bound_fails_every_level(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    node = make_node("Exp", ["x"], ["y"], "steep")
    path.write_bytes(model_of([node], [], [value("x", (2,))]).SerializeToString())
    assert main(["lipschitz", str(path), "--fail-above", "1e300"]) == 1
    shown = capsys.readouterr()
    assert "steep" in shown.out
    assert "without an upper bound" in shown.err
    assert "Without a bound (this operator is not known): 'steep'." in shown.err


def test_weights_that_are_not_finite_have_no_bound(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    weight = np.full((2, 2, 3), np.nan)
    path.write_bytes(conv_model(weight).SerializeToString())
    assert main(["lipschitz", str(path), "--json"]) == 0
    (unknown,) = json.loads(capsys.readouterr().out)["unknown"]
    assert "finite" in unknown["reason"]


def test_a_grid_beyond_all_memory_is_bounded_as_every_size(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    path.write_bytes(conv_model(grid=(2**30,)).SerializeToString())
    assert main(["lipschitz", str(path), "--json"]) == 0
    (part,) = json.loads(capsys.readouterr().out)["parts"]
    assert part["method"] == "supremum"


def test_pools_and_pads_beyond_all_memory(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    nodes = [
        make_node("Pad", ["x", "p"], ["a"], "pad", mode="edge"),
        make_node("MaxPool", ["a"], ["y"], "pool", kernel_shape=[2**40]),
    ]
    pads = stored("p", np.array([0, 0, 0, 0, 0, 2**60]))
    model = model_of(nodes, [pads], [value("x", (1, 1, 2**50))])
    path.write_bytes(model.SerializeToString())
    assert main(["lipschitz", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["upper"] is None
    pad, pool = (part["norm"] for part in document["parts"])
    assert pad is None
    assert pool == pytest.approx(2.0**20)


def test_other_formats_are_refused_with_advice(tmp_path, capsys):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    assert main(["lipschitz", str(path)]) == 2
    assert "must be an .onnx file" in capsys.readouterr().err
