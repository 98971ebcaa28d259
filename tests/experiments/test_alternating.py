"""The experiment on a network of no size, and its verdicts."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments import alternating, clip_norms, rounds
from experiments.options import Options
from experiments.runs import Setting
from experiments.training import Training


@pytest.fixture
def options(tmp_path, monkeypatch, rng):
    """Sixteen images of 8x8, two epochs of four steps, a clip at every other step."""
    recipe = replace(
        clip_norms.TRAININGS["small"].recipe,
        widths=(2, 3),
        batch=4,
        epochs=2,
        shift=1,
    )
    setting = Setting(side=8, images=16, recipe=recipe)
    monkeypatch.setattr(clip_norms, "TRAININGS", {"small": setting})
    monkeypatch.setattr(alternating, "TRAININGS", {"small": setting})
    monkeypatch.setattr(clip_norms, "EVERY", {"small": 2})
    monkeypatch.setattr(alternating, "RANDOM", (2, 2, 3, 3))
    for module in (alternating, rounds):
        monkeypatch.setattr(module, "ROUNDS", (1, 2))
    pixels = torch.from_numpy(rng.standard_normal((16, 3, 8, 8)).astype("float32"))
    labels = torch.from_numpy(rng.integers(10, size=16))
    images = tmp_path / "images" / "cifar10_8x8_16.pt"
    images.parent.mkdir()
    torch.save([[pixels, labels], [pixels, labels]], images)
    np.savez(tmp_path / "tiny.npz", kernel=rng.standard_normal((2, 2, 3, 3)))
    geometry = '[kernel]\ngrid = [4, 4]\npadding = 1\nboundary = "zeros"\n'
    (tmp_path / "tiny.toml").write_text(geometry)
    return Options(out=tmp_path, networks=(tmp_path / "tiny.npz",))


def test_every_part_is_in_the_record(options, tmp_path):
    claims = alternating.run(options)
    assert len(claims) == 5
    folder = tmp_path / "alternating"
    results = json.loads((folder / "result.json").read_text())["results"]
    norms = results["trained, clipped at 0.5"]["norms"]
    assert norms["stem"]["step"] == [2, 4, 6, 8]
    assert all(min(x["after"]) > 0 for x in norms.values())
    tasks = [name for name in results if name.startswith("rounds, blocks")]
    assert tasks
    assert not any("shortcut" in name for name in tasks)  # 1x1: clipping is exact
    (torus,) = results["torus, tiny.npz"]
    assert torus["low"] <= torus["high"]
    assert (folder / "alternating.png").exists()


def test_a_killed_training_goes_on_to_the_same_notes(options, tmp_path, monkeypatch):
    given = (options, tmp_path / "whole", "a run", 0.5)
    whole = clip_norms.train(*given)
    torn = (options, tmp_path / "torn", "a run", 0.5)
    epoch, epochs = Training._epoch, []

    def killed(self):
        line = epoch(self)
        epochs.append(line)
        if len(epochs) == 2:  # before it is saved: the resumed run notes it again
            raise KeyboardInterrupt
        return line

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            clip_norms.train(*torn)
    assert clip_norms.train(*torn) == whole


def test_what_is_noted_are_the_norms_before_and_after(options, tmp_path):
    """Before the first clip, the norm that the unclipped training has there."""
    result = clip_norms.train(options, tmp_path, "a run", 0.01)
    for norms in result["norms"].values():
        assert all(b > a for b, a in zip(norms["before"], norms["after"]))
        assert max(norms["after"]) < 0.05  # a clip of any kernel ends near the bound


def rounds_of(first, last, dykstra, distance):
    def points(excess, far):
        return [{"excess": e, "distance": far} for e in excess]

    return {
        "alternating": points((first, last), 0.7),
        "Dykstra": points((first, dykstra), distance),
        "project": {"rounds": 3},
    }


def trained(before, after):
    norms = {"before": [9.0] * 6 + before, "after": [9.0] * 6 + after}
    return {"bound": 1.0, "norms": {"stem": norms}}


def test_a_layer_without_a_lower_bound_is_not_compared_with_its_torus():
    row = {"name": "a", "grid": (8, 8), "largest": 1.1, "values_of": "torus"}
    known = row | {"norm_lower": 1.0, "norm_upper": 1.0}
    unknown = row | {"norm_lower": None, "norm_upper": 1.0}
    (found,) = alternating.tori([known, unknown, known | {"values_of": "layer"}])
    assert found["low"] == found["high"] == pytest.approx(0.1)


def test_wide_intervals_tell_nothing_of_tori():
    unknown = {"low": -0.06, "high": 0.0}
    near = {"low": -0.01, "high": 0.01}
    assert alternating._of_tori([unknown, near]).holds is None
    assert alternating._of_tori([unknown, *[near] * 9]).holds


@pytest.mark.parametrize(
    ("excess", "distance", "found"),
    [
        ((0.1, 0.009), 0.995, True),
        ((0.1, 0.009), 0.98, False),
        ((0.1, 0.05, 0.02), 0.98, None),
        ((0.1, 0.02, 0.05), 1.0, False),
    ],
)
def test_a_limit_is_not_judged_on_the_way(excess, distance, found):
    points = [{"excess": e, "distance": distance} for e in excess]
    assert alternating._is_nearest(points) is found


@pytest.mark.parametrize(
    ("results", "verdicts"),
    [
        (
            {
                "rounds, a": rounds_of(0.09, 0.009, 0.009, 0.995),
                "trained, clipped at 0.5": trained([1.05, 1.05], [1.0, 1.0]),
                "trained, clipped at 1.0": trained([1.3, 1.3], [1.0, 1.0]),
                "torus, net": [{"low": -0.04, "high": 0.04}],
            },
            [True, True, True, False, True],
        ),
        (
            {
                "rounds, a": rounds_of(0.11, 0.02, 0.001, 0.98),
                "trained, clipped at 0.5": trained([1.0, 1.0], [1.2, 1.2]),
                "trained, clipped at 1.0": trained([1.0, 1.0], [1.0, 1.0]),
                "torus, net": [{"low": -0.07, "high": -0.06}],
            },
            [False, False, False, True, False],
        ),
    ],
)
def test_verdicts_follow_the_numbers(results, verdicts):
    claims = alternating.claims_on(results, "paper")
    assert [claim.holds for claim in claims] == verdicts
    # A short training can't show that norms do not come close.
    short = [claim.holds for claim in alternating.claims_on(results, "small")]
    assert short == [*verdicts[:2], *(x or None for x in verdicts[2:4]), verdicts[4]]
