"""The training benchmark, on a network so small that it takes no time."""

import json
import math

import pytest

from benchmarks.__main__ import main


@pytest.fixture
def small_training(torch, monkeypatch):
    from benchmarks import training

    for name, value in {
        "WIDTHS": (3, 4),
        "BLOCKS": 2,
        "BATCH": 2,
        "IMAGE": (3, 8, 8),
        "ROUNDS": 1,
    }.items():
        monkeypatch.setattr(training, name, value)
    return training


def test_training_is_measured_and_its_clips_are_checked(small_training, tmp_path):
    found = small_training.training(tmp_path)
    assert found["right"]
    assert found["kernels"] == 1 + 4 * 2 + 1
    seconds = {name: times[0] for name, times in found["seconds"].items()}
    assert found["paper_over_ours"] == seconds["paper"] / seconds["pass"]
    whole = 100 * seconds["step"] + seconds["pass"]
    assert found["share"] == pytest.approx(seconds["pass"] / whole)
    assert json.loads((tmp_path / "training.json").read_text()) == found


@pytest.mark.parametrize("factor", [1.01, math.nan])
def test_a_wrong_clip_fails_the_training_benchmark(
    small_training, tmp_path, monkeypatch, factor
):
    right, calls = small_training.clip, []

    def wrong_from_the_second_on(task):
        calls.append(task)
        return right(task) * (factor if len(calls) > 1 else 1)

    monkeypatch.setattr(small_training, "clip", wrong_from_the_second_on)
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
