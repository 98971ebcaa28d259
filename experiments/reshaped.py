"""Claim: clipping the reshaped kernel is no better, and on a GPU no faster.

Section 4.4: with the network of section 4.2, the singular values of the kernel as an
out x (in * taps) matrix are clipped at 0.05, 0.1, 0.2, 0.5 and 1.0. Every 100 steps,
the best accuracy (at 0.2) is that of exact clipping; every step, it is slightly worse,
and so it is with exact clipping. Clipping every step, 10000 batches took 14490 s with
the reshaped kernel and 11004 s with the exact method, on a GPU.

Errors of exact clipping every 100 steps are those of `cifar10` in the same --out. Those
at 0.5 and 1.0, bounds that are also tried every step, have the most seeds, and tell how
far errors spread over seeds.
"""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from . import cifar10, figure
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
SEEDS, EVERY_STEP_SEEDS = 2, 1
ROUNDS, BATCHES = 3, 10_000
CPU_STEPS, GPU_STEPS = 2, 100  # of a round
SECONDS = {how: published(f"{how}.seconds") for how in ("reshaped", "exact")}
NO_EXACT = "run `cifar10` into the same --out first"


class Arm(NamedTuple):
    kind: str  # "reshaped" or "exact"
    bound: float
    every_step: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind} {self.bound}" + ", every step" * self.every_step

    @property
    def seeds(self) -> range:
        return range(EVERY_STEP_SEEDS if self.every_step else SEEDS)


Errors = Mapping[Arm, list[float]]


def run(options: Options) -> list[Claim]:
    """Train every arm, time the clips, and judge the claims."""
    setting, recipes = SETTINGS[options.scale], recipes_of(options.scale)
    settings = settings_of(options, setting, recipes)
    record = Record(options.folder("reshaped"), settings)
    if "time" not in record.results:
        record.keep("time", timed(options))
    train_all(options, record, setting, recipes, keep_networks=True)
    return conclude(options, record)


def arms() -> list[Arm]:
    """All that is trained here; `cifar10` has exact clipping, every so many steps."""
    return [
        *(Arm("reshaped", bound) for bound in RESHAPED),
        *(Arm("reshaped", bound, every_step=True) for bound in RESHAPED),
        *(Arm("exact", bound, every_step=True) for bound in EXACT),
    ]


def recipes_of(scale: str) -> dict[str, Recipe]:
    """The recipe of every run, by its name: arm and seed."""
    setting, recipes = SETTINGS[scale], {}
    for seed in range(SEEDS):
        for arm in arms():
            if seed in arm.seeds:
                every = 1 if arm.every_step else setting.every()
                kind = "reshaped" if arm.kind == "reshaped" else "paper"
                clipping = Clipping(arm.bound, every, kind)
                recipe = replace(setting.recipe, seed=seed, clipping=clipping)
                recipes[run_name(arm, seed)] = recipe
    return recipes


def run_name(arm: Arm, seed: int) -> str:
    """The name of a run in the record."""
    return f"{arm.name}, seed {seed}"


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
    errors = {
        arm: [record.results[run_name(arm, seed)]["error"] for seed in arm.seeds]
        for arm in arms()
    }
    errors |= exact_errors(options)
    draw(options, errors)
    rows = [[arm.name, interval(values).text("%")] for arm, values in errors.items()]
    claims = [
        same(errors),
        worse(errors, "reshaped"),
        worse(errors, "exact"),
        _time(record.results["time"], options.device),
    ]
    shown = table(["arm", "error [95 %]"], rows)
    return record.conclude(claims, dict(rows), shown)


def exact_errors(options: Options) -> dict[Arm, list[float]]:
    """The errors of exact clipping, of the runs of `cifar10` in the same folder."""
    trainings = trained_by(options, "cifar10")
    if trainings is None:
        return {}
    clipped = cifar10.arms_of(trainings["results"])
    return {
        Arm("exact", float(bound)): [run["error"] for run in clipped[bound]]
        for bound in cifar10.BOUNDS
        if bound in clipped
    }


def same(errors: Errors) -> Claim:
    """Whether the best error is that of exact clipping."""
    statement = "the best error by the reshaped kernel is that of exact clipping"
    best = _best(errors, "reshaped", every_step=False)
    exact = _best(errors, "exact", every_step=False)
    if best is None or exact is None:
        return Claim(statement, "the same, at 0.2", "-", None, NO_EXACT)
    found = _difference(errors, best, exact)
    return Claim(
        statement,
        "the same, at 0.2",
        f"{best.name} minus {exact.name}: {found.text('points')}",
        is_little(found, LITTLE * statistics.fmean(errors[exact])),
        f"the same: at most {LITTLE:.0%} of the error apart",
    )


def worse(errors: Errors, kind: str) -> Claim:
    """Whether every step is slightly worse than seldom, at the best bound of each."""
    what = {"reshaped": "the reshaped kernel", "exact": "exactly"}[kind]
    statement = f"clipping {what} every step is slightly worse than seldom"
    published = "slightly, than every 100"
    often = _best(errors, kind, every_step=True)
    bounds = {arm.bound for arm in errors if arm.kind == kind and arm.every_step}
    tried = {arm: e for arm, e in errors.items() if arm.bound in bounds}
    seldom = _best(tried, kind, every_step=False)
    if often is None or seldom is None:
        return Claim(statement, published, "-", None, NO_EXACT)
    found = _difference(errors, often, seldom)
    return Claim(
        statement,
        published,
        f"{often.name} minus {seldom.name}: {found.text('points')}",
        is_little_more(found, LITTLE * statistics.fmean(errors[seldom])),
        f"slightly: at most {LITTLE:.0%} of the error. The best of several bounds is "
        "low by chance, too, and more so every step, with one seed each",
    )


def _best(errors: Errors, kind: str, *, every_step: bool) -> Arm | None:
    """The arm of this kind with the lowest mean error, if there is one."""
    found = [a for a in errors if (a.kind, a.every_step) == (kind, every_step)]
    return min(found, key=lambda arm: statistics.fmean(errors[arm]), default=None)


def _difference(errors: Errors, a: Arm, b: Arm) -> Interval:
    """The error of `a` minus that of `b`; arms of `cifar10` tell the spread, too."""
    spread = [Arm("exact", bound) for bound in EXACT]
    others = [errors[arm] for arm in spread if arm in errors and arm not in (a, b)]
    return difference(errors[a], errors[b], *others)


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


def draw(options: Options, errors: Errors) -> None:
    """Draw the error over the bound, a line for each way of clipping."""
    drawn, (ax,) = figure.new_figure()
    colors = {"reshaped": "#b2182b", "exact": "#2166ac"}
    lines: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for arm, values in errors.items():
        point = (arm.bound, statistics.fmean(values))
        lines.setdefault((arm.kind, arm.every_step), []).append(point)
    for (kind, every_step), points in lines.items():
        label = kind + ", every step" * every_step
        style: dict[str, Any] = {"color": colors[kind], "label": label}
        x, y = zip(*sorted(points))
        ax.plot(x, y, ":" if every_step else "-", marker="o", markersize=4, **style)
    ax.set(xscale="log", xlabel="clipped at", ylabel="test error")
    ax.legend(frameon=False)
    figure.save(drawn, options.folder("reshaped"), "reshaped")
