"""Layers with zero padding: what is compared answers the same question."""

import json

import numpy as np
import pytest

import convspectra as cs

torch = pytest.importorskip("torch", reason="real layers need torch")

from benchmarks import __main__ as command  # noqa: E402
from benchmarks import real_layers as real  # noqa: E402

SMALL = (
    real.RealLayer("test", 3, 4, 3, 6),
    real.RealLayer("test", 3, 2, 3, 7, 2),
    real.RealLayer("test", 4, 2, 1, 6, 2),
    real.RealLayer("test", 3, 3, 3, 5, 1, 3),
)


def dense(layer):
    weight = layer.weight().astype(np.float64)
    return cs.dense_matrix(weight, layer.geometry())


@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.name)
def test_the_operator_of_others_is_the_layer(layer):
    convolution = real.Convolution(layer, torch.from_numpy(layer.weight()))
    matrix = dense(layer)
    basis = torch.eye(matrix.shape[1]).reshape(-1, *convolution.input[1:])
    got = convolution.apply(basis).flatten(1).T
    np.testing.assert_allclose(got, matrix, atol=1e-6)
    basis = torch.eye(len(matrix)).reshape(-1, *convolution.output[1:])
    got = convolution.transpose(basis).flatten(1)
    np.testing.assert_allclose(got, matrix, atol=1e-6)
    norm = np.linalg.norm(matrix, 2)
    assert convolution.largest_value(1e-6) == pytest.approx(norm, rel=1e-5)
    steps = convolution.power_steps(norm * 0.99, lambda: False)
    assert 0.99 * norm * (1 - 1e-6) <= convolution.power_iteration(steps)
    assert convolution.power_steps(norm * 1.01, lambda: True) is None


@pytest.mark.parametrize("channels", [(3, 4), (4, 3), (1, 1)])
def test_the_published_bound_is_above_the_norm(channels):
    layer = real.RealLayer("test", *channels, 3, 8)
    norm = np.linalg.norm(dense(layer), 2)
    bound = real.gram_bound(torch.from_numpy(layer.weight()))
    assert norm <= bound <= 1.3 * norm


def test_layers_of_networks():
    layers = real.real_layers()
    assert len({layer.name for layer in layers}) == len(layers) == 54
    assert {layer.network for layer in layers} == {
        "CIFAR ResNet",
        "ResNet",
        "MobileNet",
    }
    assert any(layer.groups > 1 and layer.stride > 1 for layer in layers)


def test_the_command_resumes_and_prints_ratios(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(real, "real_layers", lambda: SMALL[:2])
    monkeypatch.setattr(real, "PATIENCE", 0.2)
    arguments = ["--real-layers", "-o", str(tmp_path)]
    assert command.main(arguments) == 0
    shown = capsys.readouterr()
    assert SMALL[0].name in shown.out
    assert "1 of 2" in shown.err
    assert command.main([*arguments, "--json"]) == 0
    shown = capsys.readouterr()
    assert "of 2" not in shown.err
    row = json.loads(shown.out)[0]
    assert row["right"]
    assert row["gram_excess"] > 0
    assert row["svds"] == row["seconds"]["svds"] / row["our_seconds"]


def test_means_are_taken_over_layers_of_a_kind(monkeypatch):
    monkeypatch.setattr(real, "real_layers", lambda: SMALL)
    numbers = [(1e-3, 1.0, 2.0), (2e-3, 4.0, 8.0), (1e-9, 1.0, None), (1e-4, 3.0, 5.0)]
    rows = [
        {"layer": layer.name, "gap": gap, "our_seconds": seconds, "power": power}
        for layer, (gap, seconds, power) in zip(SMALL, numbers)
    ]
    found = {mean["kind"]: mean for mean in real.means_of(rows)}
    assert [found[kind]["layers"] for kind in found] == [2, 1, 1]
    assert found["on less"]["our_seconds"] == pytest.approx(2)
    assert found["on less"]["power"] == pytest.approx(4)
    assert found["on less"]["widest_gap"] == 2e-3
    assert found["1x1"]["power"] is None
    assert found["depthwise"]["power"] == pytest.approx(5)
    assert real.RealLayer("test", 3, 4, 3, 28).kind == "on 28x28 and more"


def test_an_interval_without_the_norm_is_not_timed(monkeypatch):
    norm = real.Convolution.largest_value
    monkeypatch.setattr(
        real.Convolution, "largest_value", lambda *args: 1.01 * norm(*args)
    )
    row = real.measure_layer(SMALL[0])
    assert not row["right"]
    assert "seconds" not in row
