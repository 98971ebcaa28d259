"""Claim: clipping the reshaped kernel is no better, and on a GPU no faster.

Section 4.4: with the network of section 4.2, the singular values of the kernel as an
out x (in * taps) matrix are clipped at 0.05, 0.1, 0.2, 0.5 and 1.0. Every 100 steps,
the best accuracy (at 0.2) is that of exact clipping; every step, it is slightly worse,
and so it is with exact clipping. Clipping every step, 10000 batches took 14490 s with
the reshaped kernel and 11004 s with the exact method, on a GPU.

Errors of exact clipping every 100 steps are those of `cifar10` in the same --out, whose
arms have more seeds: they also tell how far errors spread over seeds.
"""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from . import figure
from .claims import (
    LITTLE,
    Claim,
    Interval,
    difference,
    interval,
    is_little,
    is_little_more,
)
from .clipping import Clipping
from .images import Images
from .options import Options
from .paper import published
from .record import Record
from .runs import SETTINGS, settings_of, train_all, trained_by
from .talk import say, table
from .training import Recipe, Training

RESHAPED, EXACT = (0.05, 0.1, 0.2, 0.5, 1.0), (0.5, 1.0)
SEEDS = {"some steps": 2, "every step": 1}
ROUNDS, BATCHES = 3, 10_000
CPU_STEPS, GPU_STEPS = 2, 100  # of a round
SECONDS = {how: published(f"{how}.seconds") for how in ("reshaped", "exact")}


def run(options: Options) -> list[Claim]:
    """Train every arm, time the clips, and judge the claims."""
    setting, recipes = SETTINGS[options.scale], recipes_of(options.scale)
    settings = settings_of(options, setting, recipes)
    record = Record(options.folder("reshaped"), settings)
    if "time" not in record.results:
        record.keep("time", timed(options))
    train_all(options, record, setting, recipes, keep_networks=True)
    return conclude(options, record)


def recipes_of(scale: str) -> dict[str, Recipe]:
    """The recipe of every run, by its name: arm and seed."""
    setting, recipes = SETTINGS[scale], {}
    arms = {
        **{f"reshaped {c}": (c, setting.every(), "reshaped") for c in RESHAPED},
        **{f"reshaped {c}, every step": (c, 1, "reshaped") for c in RESHAPED},
        **{f"exact {c}, every step": (c, 1, "paper") for c in EXACT},
    }
    for seed in range(max(SEEDS.values())):
        for arm, parts in arms.items():
            if seed < SEEDS["every step" if "every step" in arm else "some steps"]:
                clipping = Clipping(*parts)
                recipe = replace(setting.recipe, seed=seed, clipping=clipping)
                recipes[f"{arm}, seed {seed}"] = recipe
    return recipes


def timed(options: Options) -> dict[str, Any]:
    """Seconds of a step without clipping and with each clip, in turn.

    Of the paper's network on noise of the size of CIFAR-10, at every scale.
    """
    setting = SETTINGS["paper"]
    steps = CPU_STEPS if options.device == "cpu" else GPU_STEPS
    count = steps * setting.recipe.batch
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randn(count, 3, setting.side, setting.side, generator=rng)
    images = Images(pixels, torch.randint(10, (count,), generator=rng))
    clips = {
        "none": None,
        "reshaped": Clipping(0.2, 1, "reshaped"),
        "exact": Clipping(0.5, 1, "paper"),
    }
    trainings = {
        name: Training(
            replace(setting.recipe, clipping=clip),
            images,
            images,
            device=options.device,
        )
        for name, clip in clips.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in clips}
    for number in range(-1, ROUNDS):  # the first is not counted
        say(f"reshaped: timing, round {number + 1} of {ROUNDS}")
        for name, training in trainings.items():
            start = training.clock()
            training.steps()
            if number >= 0:
                seconds[name].append((training.clock() - start) / steps)
    median = {name: statistics.median(each) for name, each in seconds.items()}
    return {"seconds": seconds, "median": median, "steps": steps * ROUNDS}


def conclude(options: Options, record: Record) -> list[Claim]:
    """Draw the figure, sum up, and judge."""
    arms: dict[str, list[float]] = {}
    for name, result in record.results.items():
        if name != "time":
            arms.setdefault(name.rpartition(", ")[0], []).append(result["error"])
    some = [arm for arm in arms if arm.startswith("reshaped") and "," not in arm]
    each = [arm for arm in arms if arm.startswith("reshaped") and "," in arm]
    exact = [arm for arm in arms if arm.startswith("exact")]
    theirs = _exact_errors(options)
    arms |= theirs
    best = {
        kind: min(names, key=lambda arm: statistics.fmean(arms[arm]))
        for kind, names in {
            "some": some,
            "each": each,
            "exact each": exact,
            "exact some": list(theirs),
        }.items()
        if names
    }
    draw(options, arms)
    rows = [[arm, interval(values).text("%")] for arm, values in arms.items()]
    claims = [
        _same(arms, theirs, best),
        _worse(arms, theirs, best, "each", "some", "clipping the reshaped kernel"),
        _worse(arms, theirs, best, "exact each", "exact some", "exact clipping"),
        _time(record.results["time"], options.device),
    ]
    errors = table(["arm", "error [95 %]"], rows)
    return record.conclude(claims, dict(rows), errors)


def _exact_errors(options: Options) -> dict[str, list[float]]:
    """The errors of exact clipping, of the runs of `cifar10` in the same folder."""
    trainings = trained_by(options, "cifar10")
    if trainings is None:
        return {}
    arms: dict[str, list[float]] = {}
    for name, result in trainings["results"].items():
        arm = name.rpartition(", ")[0]
        if arm in map(str, EXACT):
            arms.setdefault(f"exact {arm}", []).append(result["error"])
    return arms


def _same(
    arms: Mapping[str, list[float]],
    theirs: Mapping[str, list[float]],
    best: Mapping[str, str],
) -> Claim:
    statement = "the best error by the reshaped kernel is that of exact clipping"
    if "exact some" not in best:
        note = "run `cifar10` into the same --out first"
        return Claim(statement, "the same, at 0.2", "-", None, note)
    found = _less(arms, theirs, best["some"], best["exact some"])
    return Claim(
        statement,
        "the same, at 0.2",
        f"{best['some']} less {best['exact some']}: {found.text('%')}",
        is_little(found, LITTLE * statistics.fmean(theirs[best["exact some"]])),
        f"the same: no more than {LITTLE:.0%} of the error apart. "
        "Chance favours whichever has more bounds to choose the best from",
    )


def _less(
    arms: Mapping[str, list[float]], theirs: Mapping[str, list[float]], a: str, b: str
) -> Interval:
    """The error of arm `a` less that of `b`; arms of `cifar10` tell the spread, too."""
    others = [errors for arm, errors in theirs.items() if arm not in (a, b)]
    return difference(arms[a], arms[b], *others)


def _worse(
    arms: Mapping[str, list[float]],
    theirs: Mapping[str, list[float]],
    best: Mapping[str, str],
    often: str,
    seldom: str,
    what: str,
) -> Claim:
    if often not in best or seldom not in best:
        note = "run `cifar10` into the same --out first"
        return Claim(
            f"{what} every step is slightly worse", "slightly", "-", None, note
        )
    found = _less(arms, theirs, best[often], best[seldom])
    return Claim(
        f"{what} every step is slightly worse than seldom",
        "slightly, than every 100",
        f"{best[often]} less {best[seldom]}: {found.text('%')}",
        is_little_more(found, LITTLE * statistics.fmean(arms[best[seldom]])),
        f"slightly: at most {LITTLE:.0%} of the error; the best bound of each, from "
        "one seed with clipping every step",
    )


def _time(timed: Mapping[str, Any], device: str) -> Claim:
    median = timed["median"]
    found = {name: BATCHES * median[name] for name in SECONDS}
    return Claim(
        "every step, exact clipping is faster than that of the reshaped kernel",
        f"{SECONDS['exact']} s against {SECONDS['reshaped']} s on a GPU",
        f"{found['exact']:.0f} s against {found['reshaped']:.0f} s on {device}, "
        f"{BATCHES * median['none']:.0f} s without",
        None if device == "cpu" else found["exact"] < found["reshaped"],
        f"of {BATCHES} batches of the paper's network, from {timed['steps']} timed "
        "steps each, the exact clip being convspectra's; processor seconds on a CPU, "
        "which tell nothing of a GPU",
    )


def draw(options: Options, arms: Mapping[str, list[float]]) -> None:
    """Draw the error over the bound, a line for each way of clipping."""
    drawn, (ax,) = figure.new_figure()
    styles = {
        ("reshaped", False): ("reshaped", "#b2182b", "-"),
        ("reshaped", True): ("reshaped, every step", "#b2182b", ":"),
        ("exact", False): ("exact", "#2166ac", "-"),
        ("exact", True): ("exact, every step", "#2166ac", ":"),
    }
    lines: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for arm, errors in arms.items():
        kind, _, bound = arm.partition(",")[0].partition(" ")
        point = (float(bound), statistics.fmean(errors))
        lines.setdefault((kind, "every step" in arm), []).append(point)
    for key, points in lines.items():
        label, color, style = styles[key]
        x, y = zip(*sorted(points))
        ax.plot(x, y, style, color=color, label=label, marker="o", markersize=4)
    ax.set(xscale="log", xlabel="clipped at", ylabel="test error")
    ax.legend(frameon=False)
    figure.save(drawn, options.folder("reshaped"), "reshaped")
