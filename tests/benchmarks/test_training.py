"""The training benchmark, on networks so small that they take no time."""

import json
import math

import pytest

from benchmarks.__main__ import main


@pytest.fixture
def training(torch):
    from benchmarks import training

    return training


def small(training, monkeypatch, **options):
    """Have the command train the smallest of networks."""
    setup = training.Setup(batch=2, blocks=1, side=6, rounds=1, steps=1, **options)
    monkeypatch.setattr(training.training, "__defaults__", (setup,))


def test_training_is_measured_and_its_clips_are_checked(
    training, keras, jax, tmp_path, monkeypatch
):
    small(training, monkeypatch, widths=(2,))
    assert main(["--training", "-o", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "training.json").read_text())
    rows = [found, *found["others"]]
    assert [row["framework"] for row in rows] == ["torch", "Keras", "Flax"]
    for row in rows:
        assert row["right"]
        assert (row["kernels"], row["parameters"]) == (3, 168)
        seconds = {name: times[0] for name, times in row["seconds"].items()}
        whole = 100 * seconds["step"] + seconds["pass"]
        assert row["share"] == pytest.approx(seconds["pass"] / whole)
    seconds = found["median_seconds"]
    assert found["paper_over_ours"] == seconds["paper"] / seconds["pass"]


def test_all_frameworks_train_the_same_network(training, keras, jax):
    from flax import nnx

    from benchmarks.training import in_flax, in_keras, in_torch

    setup = training.Setup((3, 4), 2, side=6)  # with a stride and a shortcut
    here = sorted(tuple(p.shape) for p in in_torch.resnet(setup).parameters())
    there = in_keras.resnet(setup).trainable_weights
    turned = [tuple(reversed(w.shape)) for w in there]
    assert sorted((*s[:2], *s[:1:-1]) for s in turned) == here
    flax = nnx.eval_shape(lambda: in_flax.ResNet(setup, nnx.Rngs(0)))
    turned = [x.shape[::-1] for x in jax.tree.leaves(nnx.state(flax, nnx.Param))]
    assert sorted((*s[:2], *s[:1:-1]) for s in turned) == here


@pytest.mark.parametrize("factor", [1.01, math.nan])
def test_a_wrong_clip_fails_the_training_benchmark(
    training, tmp_path, monkeypatch, factor
):
    from benchmarks.training import in_torch

    right, calls = in_torch.paper_clip, []

    def wrong_from_the_second_on(task):
        calls.append(task)
        return right(task) * (factor if len(calls) > 1 else 1)

    small(training, monkeypatch, widths=(3, 4))
    monkeypatch.setattr(training, "FRAMEWORKS", {"torch": "in_torch"})
    monkeypatch.setattr(in_torch, "paper_clip", wrong_from_the_second_on)
    folder = tmp_path / "not" / "there"
    assert main(["--training", "-o", str(folder)]) == 1
    assert not json.loads((folder / "training.json").read_text())["right"]


def test_each_way_to_bound_a_network_is_a_multiple_of_plain_training(
    torch, monkeypatch, tmp_path, capsys
):
    from benchmarks import ways

    for name, value in {"BATCH": 2, "IMAGE": (3, 8, 8), "ROUNDS": 1}.items():
        monkeypatch.setattr(ways, name, value)
    monkeypatch.setattr(ways, "PASSES", {1: 1, 2: 1})
    monkeypatch.setattr(ways, "METHODS", ("clip", "scale"))
    assert main(["--ways", "2", "-o", str(tmp_path)]) == 0
    first = capsys.readouterr().out
    document = json.loads((tmp_path / "ways-2.json").read_text())
    found = document["results"]
    way = "SpectralClip, scale, every 2"
    seconds = found["passes"]["scale"]["later"]["2"][0]
    multiple = ways.multiples(found)[way]
    assert multiple == pytest.approx(1 + seconds / (2 * found["steps"]["plain"]))
    assert f"| {way}      | {multiple:7.3f} |" in first
    del found["passes"]["scale"]  # a run that was stopped goes on from here
    (tmp_path / "ways-2.json").write_text(json.dumps(document))
    assert main(["--ways", "2", "-o", str(tmp_path)]) == 0
    again = capsys.readouterr().out
    assert first.splitlines()[:-2] == again.splitlines()[:-2]
    assert way in again
