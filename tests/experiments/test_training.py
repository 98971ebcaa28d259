"""The loop that all trainings share: the same numbers however often it is stopped."""

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from optional import needed

import convspectra as cs

torch = needed("torch")

from experiments.clipping import Clipping, clipped, convolutions  # noqa: E402
from experiments.looking import (  # noqa: E402
    batches,
    error_of,
    error_with_fresh_statistics,
)
from experiments.network import made  # noqa: E402
from experiments.runs import SETTINGS, parameters  # noqa: E402
from experiments.training import FRESH, Training, load_network  # noqa: E402


def without_times(log):
    return [{key: line[key] for key in line if "seconds" not in key} for line in log]


def kill_after(training, epochs, monkeypatch):
    """Run until an epoch is saved, and be killed in the middle of the next."""
    steps, calls = training.steps, []

    def killed():
        calls.append(0)
        if len(calls) > epochs:
            next(iter(batches(training.train, 16, 1, training.rng)))
            raise KeyboardInterrupt
        return steps()

    monkeypatch.setattr(training, "steps", killed)
    with pytest.raises(KeyboardInterrupt):
        training.run("killed")


@pytest.mark.parametrize("batch_norm", [True, False])
def test_a_killed_run_goes_on_to_the_same_bits(
    tiny_images, tiny_recipe, tmp_path, monkeypatch, batch_norm
):
    recipe = replace(tiny_recipe, batch_norm=batch_norm)
    whole = Training(recipe, *tiny_images, saved=tmp_path / "whole.pt")
    want = whole.run("whole")
    torn = tmp_path / "torn.pt"
    kill_after(Training(recipe, *tiny_images, saved=torn), 1, monkeypatch)
    torch.manual_seed(99)  # what another program may have done to the state
    resumed = Training(recipe, *tiny_images, saved=torn)
    assert len(resumed.log) == 1
    got = resumed.run("resumed")
    assert without_times(got["log"]) == without_times(want["log"])
    assert len(got["log"]) == 3
    for a, b in zip(
        whole.network.state_dict().values(), resumed.network.state_dict().values()
    ):
        assert torch.equal(a, b)
    assert got["norms"] == want["norms"]
    # And once more, of a run that has ended: nothing is trained.
    again = Training(recipe, *tiny_images, saved=torn).run("again")
    assert again["log"] == got["log"]
    assert again["error"] == got["error"]
    assert load_network(torn)(tiny_images[1].pixels).shape == (10, 10)


def test_a_file_of_another_recipe_is_refused(tiny_images, tiny_recipe, tmp_path):
    saved = tmp_path / "run.pt"
    Training(replace(tiny_recipe, epochs=1), *tiny_images, saved=saved).run("run")
    with pytest.raises(ValueError, match=r"run\.pt' must be of the recipe"):
        Training(tiny_recipe, *tiny_images, saved=saved)


def test_it_learns_and_clips_and_decays(tiny_images, tiny_recipe):
    recipe = replace(tiny_recipe, rate=0.01)
    seen = []
    training = Training(recipe, *tiny_images, watch=lambda *args: seen.append(args))
    result = training.run("run")
    json.dumps(result)
    assert {step for step, _, _ in seen} == {2, 4, 6, 8}
    names = [
        layer.name
        for layer in convolutions(
            training.network, tiny_images[1].pixels[:1], as_paper=True
        )
    ]
    assert [layer.name for step, layer, _ in seen if step == 8] == names
    for step, layer, before in seen:
        want = cs.clip(before.numpy(), cs.Geometry(layer.geometry.grid), 0.5)
        if step == 8:
            np.testing.assert_allclose(layer.weight.numpy(), want, atol=1e-5)
    assert max(result["norms with stride 1"].values()) < 0.8
    assert result["log"][-1]["loss"] < result["log"][0]["loss"]
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    errors = [line["error"] for line in result["log"]]
    assert result["error"] == pytest.approx(np.mean(errors[-2:]))
    assert (
        result["last_error"] == errors[-1] == error_of(training.network, tiny_images[1])
    )


def test_fresh_statistics_are_those_of_the_training_images(tiny_images, tiny_recipe):
    train, test = tiny_images
    training = Training(replace(tiny_recipe, widths=(8, 8), epochs=30), train, test)
    result = training.run("run")
    network = deepcopy(training.network)
    network.train()  # BatchNorm takes the statistics of what it is shown
    norms = [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        network(train.pixels)
    assert result[FRESH] == error_of(network, test)
    for norm in norms:
        norm.running_mean += 100
    assert result[FRESH] < 0.7 < error_of(network, test)
    assert error_with_fresh_statistics(network, train, test) == result[FRESH]
    assert norms[0].running_mean.min() > 50  # the network is left as it is
    plain = replace(tiny_recipe, batch_norm=False, rate=0.01)
    assert Training(plain, train, test).run("run")[FRESH] is None


def test_a_training_that_diverges_has_the_error_of_guessing(tiny_images, tiny_recipe):
    recipe = replace(tiny_recipe, batch_norm=False, rate=1e30)
    result = Training(recipe, *tiny_images).run("run")
    assert (result["diverged"], result["error"], result["norms"]) == (True, 0.9, None)
    assert len(result["log"]) == 1
    json.dumps(result, allow_nan=False)


def test_the_reshaped_kernel_is_clipped_as_a_matrix(rng):
    weight = torch.from_numpy(rng.standard_normal((4, 3, 3, 3)))
    found = clipped(weight, cs.Geometry(8), Clipping(0.7, 1, "reshaped"))
    u, s, vh = np.linalg.svd(weight.numpy().reshape(4, 27), full_matrices=False)
    want = (u * np.minimum(s, 0.7)) @ vh
    np.testing.assert_allclose(found.numpy().reshape(4, 27), want, atol=1e-12)


def test_the_paper_clips_strided_layers_as_if_they_were_not(tiny_images):
    network = made((4, 8), 1, True, 0)
    example = tiny_images[1].pixels[:1]
    found = {
        as_paper: {
            x.name: x.geometry
            for x in convolutions(network, example, as_paper=as_paper)
        }
        for as_paper in (True, False)
    }
    strided = found[False]["blocks.1.conv1"]
    assert (strided.stride, strided.grid, strided.boundary) == (
        (2, 2),
        (8, 8),
        "circular",
    )
    assert found[True]["blocks.1.conv1"] == cs.Geometry((8, 8))
    assert found[True]["blocks.1.conv2"].grid == (4, 4)


def test_every_image_comes_once_shifted_and_perhaps_mirrored(tiny_images):
    images, _ = tiny_images
    which = images._replace(labels=torch.arange(40))
    wide = np.pad(images.pixels.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen, moves = [], set()
    for x, labels in batches(which, 16, 1, torch.Generator().manual_seed(0)):
        for image, k in zip(x.numpy(), labels.tolist()):
            found = [
                (i, j, step)
                for i in range(3)
                for j in range(3)
                for step in (1, -1)
                if np.array_equal(wide[k, :, i : i + 8, j : j + 8][..., ::step], image)
            ]
            assert len(found) == 1
            moves.update(found)
            seen.append(k)
    assert sorted(seen) == list(range(40))
    assert seen != sorted(seen)
    assert [len({move[axis] for move in moves}) for axis in range(3)] == [3, 3, 2]


def test_the_network_of_the_paper_has_its_size():
    recipe = SETTINGS["paper"].recipe
    assert round(parameters(recipe) / 1e6, 1) == 2.4
    network = made(recipe.widths, recipe.blocks, True, 0)
    kernels = [p for p in network.parameters() if p.ndim == 4 and p.shape[2] == 3]
    assert len(kernels) + 1 == 32  # and the linear layer


def test_processes_have_equal_parts_of_every_batch(
    tiny_images, tiny_recipe, monkeypatch
):
    """The mean over processes of the means over their parts is the batch's then."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"must divide batches of 16 .*, got 3"):
        Training(replace(tiny_recipe, batch=16), *tiny_images)
