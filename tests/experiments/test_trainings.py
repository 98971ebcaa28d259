"""The experiments that train, from end to end, on noise."""

import json
from dataclasses import replace

import pytest
from optional import needed

torch = needed("torch")
needed("matplotlib")

from experiments import cifar10, reshaped, runs, signals, stacks, sweep  # noqa: E402
from experiments.images import Images  # noqa: E402
from experiments.options import Options  # noqa: E402
from experiments.record import Record  # noqa: E402


@pytest.fixture
def options(tmp_path, monkeypatch, tiny_recipe):
    """Options under which every training takes a moment."""
    rng = torch.Generator().manual_seed(0)

    def images(count):
        pixels = torch.randint(256, (count, 3, 32, 32), generator=rng)
        return Images(pixels.byte(), torch.arange(count) % 10)

    monkeypatch.setattr(runs, "read_cifar10", lambda _: (images(40), images(20)))
    recipe = replace(tiny_recipe, widths=(8, 8), clipping=None, epochs=4)
    tiny = runs.Setting(8, 40, recipe)
    for module in (runs, cifar10, sweep, reshaped, signals):
        monkeypatch.setattr(module, "SETTINGS", {"small": tiny, "paper": tiny})
    return Options(data=tmp_path, out=tmp_path / "out")


def read(options, name):
    folder = options.folder(name)
    assert {f"{name}.png", f"{name}.svg", "summary.md"} <= {
        path.name for path in folder.iterdir()
    }
    return json.loads((folder / "result.json").read_text())


def test_cifar10(options, monkeypatch):
    monkeypatch.setattr(cifar10, "SEEDS", {"main": 1, "others": 1})
    claims = cifar10.run(options)
    document = read(options, "cifar10")
    assert len(document["results"]) == 5 + 5
    assert [claim["statement"] for claim in document["claims"]] == [
        claim.statement for claim in claims
    ]
    clips = {
        name: recipe["clipping"]
        for name, recipe in document["settings"]["recipes"].items()
    }
    assert clips["none, seed 0"] is None
    assert clips["0.5, seed 0"] == {"max_norm": 0.5, "every": 1, "kind": "paper"}
    assert clips["1.0, own stride, seed 0"]["kind"] == "layer"
    assert clips["1.0, every 100, seed 0"]["every"] == 100
    error = document["results"]["none, seed 0"]["error"]
    assert document["summary"]["none"]["error"] == f"{100 * error:.2f} % (1 seed)"
    assert len(list((options.folder("cifar10") / "runs").glob("*.pt"))) == 10
    # Where nothing trains, nothing is trained: the same command again gives the same.
    monkeypatch.setattr(runs, "train", None)
    monkeypatch.setattr(cifar10, "draw", lambda options, arms: None)
    assert cifar10.run(options) == claims


def run_of(errors, diverged=False):
    """A result of `cifar10` with these errors in the epochs of the tiny recipe."""
    log = [
        {"epoch": i, "loss": 1.0, "error": error}
        for i, error in enumerate(errors, start=1)
    ]
    if diverged:
        log.append({"epoch": len(log) + 1, "loss": None, "error": None})
    norms = None if diverged else {"stem": 2.6}
    return {
        "error": 0.9 if diverged else errors[-1],
        "diverged": diverged,
        "log": log,
        "seconds": 1.0,
        "clip_seconds": 0.01,
        "norms": norms,
        "norms with stride 1": norms,
    }


def cifar10_claims(options, **errors):
    """The claims of `cifar10`, from the errors of the arms that are named."""
    arms = dict.fromkeys((*cifar10.MAIN, *cifar10.EVERY_100), (0.5, 0.5, 0.5, 0.26))
    arms |= dict.fromkeys(cifar10.OTHERS, (0.5, 0.5, 0.5, 0.26))
    arms |= {name.removeprefix("_").replace("_", "."): e for name, e in errors.items()}
    record = Record(options.folder("cifar10"), {})
    for arm, values in arms.items():
        for seed in range(2):
            moved = [e + 0.001 * seed for e in values]
            record.keep(cifar10.run_name(arm, seed), run_of(moved))
    if "diverged" in errors:
        record.keep("0.5, seed 1", run_of([0.8], diverged=True))
    return {c.statement: c for c in cifar10.conclude(options, record)}


def test_a_rise_to_three_times_the_error_is_not_a_little(options, monkeypatch):
    monkeypatch.setattr(cifar10, "draw", lambda options, arms: None)
    statement = "clipping at 0.1 raises it, but only a little"
    for last, holds in ((0.28, True), (0.70, False), (0.2, False)):
        found = cifar10_claims(options, _0_1=(0.9, 0.9, 0.9, last))
        assert found[statement].holds is holds
    assert found["clipping at 2.5 has little effect"].holds


def test_ahead_only_at_the_end(options, monkeypatch):
    monkeypatch.setattr(cifar10, "draw", lambda options, arms: None)
    statement = "clipping at 0.5 is ahead only after the second decay of the rate"
    for errors, holds in (
        ((0.6, 0.6, 0.2, 0.2), True),
        ((0.6, 0.4, 0.2, 0.2), False),  # between the decays, too
        ((0.6, 0.6, 0.6, 0.6), False),
        ((0.6, 0.5, 0.2, 0.2), None),
    ):
        assert cifar10_claims(options, _0_5=errors)[statement].holds is holds


def test_no_error_at_all_is_an_error_of_zero():
    assert cifar10._part([run_of([0.5, 0.5, 0.0, 0.0])], 2, 4) == [0.0]


def test_a_seed_that_diverges_is_drawn_and_judged(options):
    found = cifar10_claims(options, diverged=(0.5, 0.5, 0.5, 0.5))
    lower = found["clipping at 0.5 lowers the test error"]
    assert lower.holds is None
    assert "58.00 %" in lower.found  # 26 % and guessing
    late = found["clipping at 0.5 is ahead only after the second decay of the rate"]
    assert (late.found, late.holds) == ("1 of 4 trainings diverged", None)
    read(options, "cifar10")


def test_norms_are_judged_where_trainings_end(options, monkeypatch):
    monkeypatch.setattr(cifar10, "draw", lambda options, arms: None)
    found = cifar10_claims(options)
    held = found["clipped at 1.0, norms end at most a tenth above the bound"]
    assert held.found == "+160.0% (+160.0% to +160.0%)"
    assert held.holds is False
    # 4 epochs of 3 steps
    late = found["clipped at 1.0, every 100, norms end at most a tenth above the bound"]
    assert late.note.endswith("12 steps after the last clip")


def test_reshaped(options, monkeypatch):
    monkeypatch.setattr(reshaped, "RESHAPED", (0.1, 0.5))
    claims = reshaped.run(options)
    document = read(options, "reshaped")
    assert len(document["results"]) == 1 + 4 + 4
    assert set(document["results"]["time"]["median"]) == {"none", "reshaped", "exact"}
    assert claims[0].holds is None  # there are no results of cifar10
    assert claims[0].note == "run `cifar10` into the same --out first"


def test_sweep(options, monkeypatch):
    monkeypatch.setattr(sweep, "RATES", {False: (0.01, 1e30), True: (0.01, 0.1)})
    monkeypatch.setattr(sweep, "BATCHES", (32,))
    monkeypatch.setattr(sweep, "DECAYS", (1,))
    monkeypatch.setattr(sweep, "IMAGES", {"small": 40})
    monkeypatch.setattr(sweep, "EPOCHS", {"small": 1})
    claims = sweep.run(options)
    document = read(options, "sweep")
    assert len(document["results"]) == 20 + 4 * len(sweep.SEEDS)
    assert len(claims) == 7
    best = sweep.best_of(document["results"])[False, True]
    assert {f"{best}, seed {seed}" for seed in sweep.SEEDS} <= {*document["results"]}
    name = sweep.run_name(False, None, 1e30, 32, 1)
    assert document["results"][name]["diverged"]


def test_all_300_are_those_of_the_paper():
    recipes = sweep.recipes_of("paper")
    assert len(recipes) == 300
    one = recipes[sweep.run_name(True, 1.5, 0.3, 64, 3)]
    assert (one.batch_norm, one.rate, one.batch, one.epochs) == (True, 0.3, 64, 100)
    assert (one.clipping.max_norm, one.clipping.every) == (1.5, 100)
    # After 100 epochs the rate has decayed 33 times, after the third, the sixth, ...
    assert (len(one.milestones), one.milestones[:2], one.factor) == (
        33,
        (0.03, 0.06),
        0.95,
    )


def test_signals(options, monkeypatch):
    small = {"depth": 3, "channels": 4, "grid": 6, "images": 2, "seeds": 2}
    for module in (signals, stacks):
        monkeypatch.setattr(module, "STACK", small)
    monkeypatch.setattr(signals, "IMAGES", {"small": 40})
    monkeypatch.setattr(signals, "SEEDS", 1)
    claims = signals.run(options)
    document = read(options, "signals")
    assert len(document["results"]) == 14 + 12
    assert claims[0].holds
    assert claims[1].holds
    orthogonal = document["results"]["orthogonal, seed 0"]
    assert orthogonal["smallest"] == pytest.approx(1, abs=1e-5)
    clipped = document["results"]["2 x normal, clipped, seed 1"]
    assert clipped["largest"] <= 1 + 1e-5


@pytest.mark.parametrize(
    ("free", "clipped", "holds"),
    [
        ((9.0, 9.1), (8.0, 8.1), True),
        ((9.0, 9.1), (8.0, 10.0), None),
        ((9.0, 9.1), (9.5, 9.6), False),
        ((None, None), (8.0, 8.1), True),
        ((9.0, 9.1), (8.0, None), False),
        ((None, None), (None, None), None),
    ],
)
def test_gradients_are_judged_over_seeds(free, clipped, holds, monkeypatch):
    monkeypatch.setattr(signals, "SEEDS", 2)
    monkeypatch.setattr(signals, "RATES", (0.1,))
    trained = {
        signals.net_name("normal", clip, 0.1, seed): {"norms": x and [1.0, x]}
        for clip, spreads in ((False, free), (True, clipped))
        for seed, x in enumerate(spreads)
    }
    assert signals._in_training(trained).holds is holds


def test_gradients_go_through_a_stack_as_its_matrices_say(monkeypatch):
    import convspectra as cs

    small = {"depth": 2, "channels": 2, "grid": 4, "images": 1, "seeds": 1}
    monkeypatch.setattr(stacks, "STACK", small)
    drawn = []
    real = torch.randn_like
    monkeypatch.setattr(
        torch, "randn_like", lambda x: drawn.append(real(x)) or drawn[-1]
    )
    found = stacks.look(stacks.Stack("normal", False, 0))["linear"]
    torch.manual_seed(0)
    torch.randn(1, 2, 4, 4)
    first, second = (stacks.first_kernel("normal", 2, 2) for _ in range(2))
    geometry = cs.Geometry((4, 4))
    g = drawn[0].numpy().ravel()
    want = [(g**2).sum() ** 0.5]
    for kernel in (second, first):
        g = cs.dense_matrix(kernel.numpy(), geometry).T @ g
        want.append((g**2).sum() ** 0.5)
    assert found == pytest.approx(want, rel=1e-5)
