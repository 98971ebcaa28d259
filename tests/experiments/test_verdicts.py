"""The verdicts of `sweep` and `reshaped`, on errors that are made up."""

from itertools import product

import pytest
from optional import needed

needed("torch")
needed("matplotlib")

from experiments import reshaped, sweep  # noqa: E402
from experiments.options import Options  # noqa: E402
from experiments.record import Record  # noqa: E402
from experiments.reshaped import Arm  # noqa: E402
from experiments.training import FRESH  # noqa: E402


def swept(tmp_path, monkeypatch, error, seeds=None):
    """The claims of a sweep: `error(norm, ball, rate)` is that of a choice."""
    monkeypatch.setattr(sweep, "draw", lambda options, errors: None)
    options = Options(out=tmp_path)
    record = Record(options.folder("sweep"), {})
    for norm in (False, True):
        for ball, rate, batch, decay in product(
            sweep.BALLS, sweep.RATES[norm], sweep.BATCHES, sweep.DECAYS
        ):
            name = sweep.run_name(norm, ball, rate, batch, decay)
            moved = error(norm, ball, rate) + 0.001 * (batch == 64) + 0.001 * decay
            record.results[name] = {"error": moved}
    for kind, name in sweep.best_of(record.results).items():
        for seed in sweep.SEEDS:
            own = (seeds or {}).get(kind, record.results[name]["error"] + 1e-3 * seed)
            own = own[seed - 1] if isinstance(own, list) else own
            record.results[f"{name}, seed {seed}"] = {"error": own}
    return {c.statement: c for c in sweep.conclude(options, record)}


def test_clipping_that_rescues_choices_is_more_robust(tmp_path, monkeypatch):
    def error(norm, ball, rate):
        diverges = ball is None and rate == sweep.RATES[norm][-1]
        return 0.9 if diverges else 0.55 if ball else 0.45

    claims = swept(tmp_path, monkeypatch, error)
    for title in ("with BatchNorm", "without BatchNorm"):
        share = claims[f"with clipping, fewer choices fail to train {title}"]
        assert share.holds
        assert share.found.startswith("20.0 % to 0.0 %, -20.0 points [-")
        median = claims[f"with clipping, the median error is lower {title}"]
        assert median.holds is False  # better choices are worse with it
        assert claims[f"clipping improves the best result {title}"].holds is False


def test_where_all_train_nothing_is_said_of_those_that_fail(tmp_path, monkeypatch):
    claims = swept(tmp_path, monkeypatch, lambda norm, ball, rate: 0.5)
    share = claims["with clipping, fewer choices fail to train with BatchNorm"]
    assert (share.holds, share.found) == (
        None,
        "0.0 % to 0.0 %, +0.0 points [+0.0, +0.0]",
    )


@pytest.mark.parametrize(("both", "holds"), [(0.40, True), (0.47, False), (0.45, None)])
def test_both_are_compared_with_each_alone(tmp_path, monkeypatch, both, holds):
    best = {(False, False): 0.6, (False, True): 0.5, (True, False): 0.45}
    best[True, True] = both
    claims = swept(
        tmp_path, monkeypatch, lambda norm, ball, _: best[norm, ball is not None]
    )
    together = claims["clipping and BatchNorm together are better than either alone"]
    assert together.holds is holds
    means = [f"{100 * (best[kind] + 0.004):.2f} %" for kind in sweep.KINDS]
    assert together.found.startswith(
        f"best: neither {means[0]}, clipping {means[1]}, BatchNorm {means[2]}, "
        f"both {means[3]}; both minus BatchNorm "
    )


def test_a_new_seed_that_fails_is_counted(tmp_path, monkeypatch):
    seeds = {(False, True): [0.45, 0.45, 0.9, 0.45, 0.45]}
    claims = swept(tmp_path, monkeypatch, lambda *_: 0.5, seeds)
    best = claims["clipping improves the best result without BatchNorm"]
    assert best.holds is None
    assert "to 54.00 % (1 of 5 did not train), " in best.found


def test_batch_norm_is_judged_with_fresh_statistics():
    assert sweep.error_in({"error": 0.5, FRESH: 0.4}) == 0.4
    assert sweep.error_in({"error": 0.5, FRESH: None}) == 0.5
    assert sweep.error_in({"error": 0.5}) == 0.5


ERRORS = {
    Arm("reshaped", 0.2): [0.30, 0.31],
    Arm("reshaped", 1.0): [0.25, 0.251],
    Arm("reshaped", 1.0, every_step=True): [0.26],
    Arm("exact", 0.5, every_step=True): [0.27],
    Arm("exact", 0.5): [0.26, 0.261, 0.262],
    Arm("exact", 3.0): [0.20, 0.201],
}


def test_the_best_is_held_against_the_best_of_all_exact_bounds():
    claim = reshaped.same(ERRORS)
    assert claim.found.startswith("reshaped 1.0 minus exact 3.0: +5.00 points [")
    assert claim.holds is False
    near = ERRORS | {Arm("exact", 3.0): [0.24, 0.241]}
    assert reshaped.same(near).holds
    assert reshaped.same({a: ERRORS[a] for a in ERRORS if a.bound == 1.0}).holds is None


def test_every_step_is_held_against_seldom_at_the_same_bounds():
    exact = reshaped.worse(ERRORS, "exact")
    assert exact.found.startswith("exact 0.5, every step minus exact 0.5: +0.90 points")
    assert exact.holds
    assert reshaped.worse(ERRORS, "reshaped").holds
    much = ERRORS | {Arm("exact", 0.5, every_step=True): [0.4]}
    assert reshaped.worse(much, "exact").holds is False
    less = ERRORS | {Arm("exact", 0.5, every_step=True): [0.2]}
    assert reshaped.worse(less, "exact").holds is False


def test_exact_arms_are_those_of_cifar10_with_as_many_clips(tmp_path):
    options = Options(out=tmp_path)
    record = Record(options.folder("cifar10"), {"scale": "small"})
    for name, error in {
        "none, seed 0": 0.1,
        "0.5, seed 0": 0.2,
        "0.5, seed 1": 0.3,
        "3.0, seed 0": 0.4,
        "0.5, every 100, seed 0": 0.5,
        "0.5, own stride, seed 0": 0.6,
    }.items():
        record.keep(name, {"error": error})
    found = reshaped.exact_errors(options)
    assert found == {Arm("exact", 0.5): [0.2, 0.3], Arm("exact", 3.0): [0.4]}
