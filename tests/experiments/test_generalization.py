"""Which networks are measured, and whether an order is recognized."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from experiments import generalization
from experiments.network import made
from experiments.options import Options
from experiments.runs import SETTINGS, Setting, network_file

SEEDS = range(5)


@pytest.fixture
def trained(tmp_path, monkeypatch, rng):
    """What `cifar10` leaves behind: tiny networks, one of which has diverged."""
    recipe = replace(SETTINGS["small"].recipe, widths=(2, 3), blocks=1)
    setting = Setting(side=8, images=12, recipe=recipe)
    monkeypatch.setattr(generalization, "SETTINGS", {"small": setting})
    pixels = torch.from_numpy(rng.standard_normal((12, 3, 8, 8)).astype("float32"))
    labels = torch.from_numpy(rng.integers(10, size=12))
    images = tmp_path / "images" / "cifar10_8x8_12.pt"
    images.parent.mkdir()
    torch.save([[pixels, labels], [pixels, labels]], images)
    results = {"1.0, seed 0": {"error": 0.9, "diverged": True}}
    for seed in SEEDS:
        name = f"none, seed {seed}"
        file = network_file(tmp_path / "cifar10", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        network = made(recipe.widths, recipe.blocks, True, seed)
        state = {"recipe": asdict(recipe), "log": [], "network": network.state_dict()}
        torch.save(state, file)
        results[name] = {"error": 0.1 * seed, "diverged": False}
    settings = {"scale": "small"}
    document = {"started": "then", "settings": settings, "results": results}
    (tmp_path / "cifar10" / "result.json").write_text(json.dumps(document))
    return Options(out=tmp_path)


def test_every_network_that_was_trained_is_measured(trained, tmp_path):
    claims = generalization.run(trained)
    folder = tmp_path / "generalization"
    results = json.loads((folder / "result.json").read_text())["results"]
    assert [*results] == [f"none, seed {seed}" for seed in SEEDS]
    assert [found["test_error"] for found in results.values()] == [
        0.1 * seed for seed in SEEDS
    ]
    for found in results.values():
        assert found["log10_r"] > found["log10_product"]
        assert (found["log10_bound"] is None) == (found["median_margin"] <= 0)
    assert all(claim.holds is None for claim in claims)  # most margins are negative
    assert (folder / "generalization.png").exists()


def test_networks_that_are_elsewhere_are_counted(trained, tmp_path):
    lost, unfinished = (
        network_file(tmp_path / "cifar10", f"none, seed {seed}") for seed in SEEDS[:2]
    )
    lost.unlink()
    state = torch.load(unfinished, weights_only=True)
    torch.save(state | {"optimizer": {}}, unfinished)
    claims = generalization.run(trained)
    results = json.loads((tmp_path / "generalization" / "result.json").read_text())
    assert [*results["results"]] == [f"none, seed {seed}" for seed in SEEDS[2:]]
    assert claims[0].note.endswith("2 more were trained, and are not at hand")


def test_without_a_whole_arm_no_order_is_told():
    results = {f"arm {i}, seed 0": measured(i, 0.01 * i) for i in range(6)}
    assert generalization.claims_on(results, ["arm 2, seed 1"])[0].holds
    found = generalization.claims_on(results, ["arm 2, seed 1", "lost, seed 0"])
    assert [claim.holds for claim in found] == [None, None]
    assert found[0].note.endswith("all of the arms lost among them")


def test_without_trained_networks_it_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="Run that experiment first"):
        generalization.run(Options(out=tmp_path))


def measured(bound, error):
    return {"log10_bound": bound, "test_error": error, "training_error": 0.0}


@pytest.mark.parametrize(("sign", "holds"), [(1, True), (-1, False)])
def test_an_order_is_recognized(sign, holds):
    results = {
        f"arm {i}, seed {seed}": measured(sign * i + 0.4 * seed, 0.01 * i)
        for i in range(6)
        for seed in range(2)
    }
    claims = generalization.claims_on(results)
    assert [claim.holds for claim in claims] == [holds, holds]


def test_seeds_of_one_arm_are_one_sample():
    results = {
        f"arm {i}, seed {seed}": measured(i, error)
        for i, error in enumerate((0.2, 0.1, 0.3, 0.5, 0.4))
        for seed in range(5)
    }
    claims = generalization.claims_on(results)
    assert "tau +0.60 of 5 arms" in claims[0].found
    assert [claim.holds for claim in claims] == [None, None]


def test_networks_of_another_scale_are_refused(trained):
    with pytest.raises(ValueError, match="must be of the scale 'paper', got 'small'"):
        generalization.run(replace(trained, scale="paper"))


def test_kendall_s_tau_by_hand():
    assert generalization.kendall([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    # Of the 24 orders of four, one has all pairs right, three more have all but one.
    share = generalization.share_as_high([1, 2, 3, 4], [1, 2, 4, 3])
    assert share == pytest.approx(4 / 24, abs=0.02)
