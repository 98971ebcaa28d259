"""Timing on layers of no size: what is drawn, checked and concluded, not how fast."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.contenders import OURS, PAPER, contender
from experiments import timing
from experiments.options import Options
from experiments.timing import MATRIX, TENSORFLOW, Drawn


@pytest.fixture
def tiny(monkeypatch):
    """Two sizes on small grids, run once; NumPy in the place of TensorFlow."""
    panels = {"timing 3x3": (3, 4), "timing 11x11": (2, 3)}
    monkeypatch.setattr(timing, "PANELS", panels)
    monkeypatch.setattr("benchmarks.contenders.ours.COMPILED", ())
    for name, value in {"LEFT": (4, 8), "RIGHT": (4, 8), "MOST": 4}.items():
        monkeypatch.setattr(timing, name, value)
    monkeypatch.setattr(timing, "SUITE", replace(timing.SUITE, repeats=1, budget=0))
    stand_in = replace(contender(PAPER), name=TENSORFLOW)
    monkeypatch.setattr(timing, "tensorflow", lambda: ((stand_in,), False))


@pytest.mark.usefixtures("tiny")
def test_every_contender_is_timed_and_a_second_run_times_nothing(tmp_path, monkeypatch):
    claims = timing.run(Options(out=tmp_path))
    document = json.loads((tmp_path / "timing" / "result.json").read_text())
    found = {
        name: {who: entry["status"] for who, entry in result["entries"].items()}
        for name, result in document["results"].items()
    }
    all_timed = dict.fromkeys((MATRIX, PAPER, TENSORFLOW, OURS), "timed")
    assert found["4 to 4, 3x3 on 4x4"] == all_timed
    assert found["8 to 8, 2x2 on 3x3"] == all_timed | {MATRIX: "left out"}
    assert claims[0].note == "every answer passed its check"
    assert [claim.holds for claim in claims[2:]] == [None, None]  # there is no GPU
    assert (tmp_path / "timing" / "timing.svg").exists()
    monkeypatch.setattr(timing, "measure", None)
    assert timing.run(Options(out=tmp_path)) == claims


@pytest.mark.usefixtures("tiny")
def test_a_wrong_answer_is_not_timed(tmp_path, monkeypatch):
    wrong = {"values": lambda kernel, task: np.ones(1)}
    stand_in = replace(contender(PAPER), name=TENSORFLOW, jobs=wrong)
    monkeypatch.setattr(timing, "tensorflow", lambda: ((stand_in,), False))
    claims = timing.run(Options(out=tmp_path))
    assert f"{TENSORFLOW}, 4 to 4, 3x3 on 4x4: off by" in claims[0].note
    assert [claim.holds for claim in claims[1:]] == [None]  # what was not timed


def test_kernels_are_the_paper_s():
    weight = Drawn("figure 1", 64, 64, 11, 64).weight()
    assert weight.shape == (64, 64, 11, 11)
    assert weight.dtype == np.float32
    assert np.std(weight) == pytest.approx(1, abs=0.01)
    assert tuple(timing.paper_ratios("timing 3x3", "NumPy", "NumPy")) == timing.LEFT
    assert tuple(timing.paper_ratios("timing 11x11", "NumPy", "NumPy")) == timing.RIGHT


@pytest.mark.parametrize(
    ("matrix", "tensorflow", "verdicts"),
    [
        (99.0, 2.0, [False, True, False, True]),
        (101.0, 2.0, [True, True, False, True]),
        (101.0, 0.5, [True, False, True, True]),
    ],
)
def test_verdicts_follow_the_ratios(matrix, tensorflow, verdicts):
    few = {4: 1.0, 8: 1.0}
    seconds = {
        "timing 3x3": {
            MATRIX: {4: matrix},
            PAPER: few,
            TENSORFLOW: dict.fromkeys(few, tensorflow),
        },
        "timing 11x11": {PAPER: few, TENSORFLOW: dict.fromkeys(few, 0.1)},
    }
    claims = timing.claims_on(seconds, {}, on_gpu=True)
    assert [claim.holds for claim in claims] == verdicts
    assert claims[0].published == "84 times (5347 with 64)"
