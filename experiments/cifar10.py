"""Claim: clipping lowers the test error of a residual network on CIFAR-10.

Section 4.2 and figure 2: a residual network of 32 layers (2.4 million parameters, with
BatchNorm), 250 epochs. Without clipping the error is 6.2 %; clipping all convolutions
every 100 steps gives 5.3 % at 0.5, 5.5 % at 1.0, 6.7 % at 0.1, and has little effect at
2.5 and 3.0, as the norms of unclipped layers are between 2.5 and 2.8. Clipping adds
0.9 and 3.5 % to the time.

Not stated in the paper, and chosen: rate 0.1 with momentum 0.9, divided by 10 near
epochs 120 and 157 (where its curves drop), batches of 128 (391 steps an epoch, read off
the plotted points), weight decay 2e-4, random crops and mirror images; widths of 36, 72
and 144, which give that number of parameters; 1x1 shortcuts are clipped, too.

Section 3, "letting the projection alternate with the training" is enough: at the end of
a training, norms are at most a tenth above the bound for at least half of the layers.

The paper's clip ignores strides. Arms "..., own stride" clip the layer as it is. With
fewer images, the other arms clip as many times per epoch as published, and arms "...,
every 100" after as many steps; at the paper's scale that is the same.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import figure
from .claims import (
    LITTLE,
    Claim,
    Interval,
    all_hold,
    difference,
    interval,
    is_below_zero,
    is_little,
    is_little_more,
)
from .clipping import Clipping
from .options import Options
from .paper import published
from .record import Record
from .runs import MILESTONES, SETTINGS, settings_of, train_all
from .talk import table
from .training import Recipe

MAIN, OTHERS = ("none", "0.5", "1.0"), ("0.1", "2.5", "3.0")
BOUNDS = (*MAIN[1:], *OTHERS)
OWN_STRIDE = ("0.5, own stride", "1.0, own stride")
EVERY_100 = ("0.5, every 100", "1.0, every 100")
SEEDS = {"main": 5, "others": 2}
PUBLISHED = {arm: published(f"error.{arm}") / 100 for arm in (*MAIN, "0.1")}
NORMS = published("norms.unclipped")
COLORS = {"none": "#777777", "0.5": "#1b7837", "1.0": "#2166ac"}
MORE_COLORS = {
    "0.5, every 100": "#5aae61",
    "1.0, every 100": "#67a9cf",
    "0.1": "#b2182b",
    "2.5": "#d08c2f",
    "3.0": "#8c6bb1",
    "0.5, own stride": "#a6761d",
    "1.0, own stride": "#e7298a",
}
CLOSE = 0.1  # what norms may be above the bound, in parts of it


def run(options: Options) -> list[Claim]:
    """Train every arm with all its seeds, and judge the claims."""
    setting, recipes = SETTINGS[options.scale], recipes_of(options.scale)
    settings = settings_of(options, setting, recipes)
    record = Record(options.folder("cifar10"), settings)
    train_all(options, record, setting, recipes, keep_networks=True)
    return conclude(options, record)


def recipes_of(scale: str) -> dict[str, Recipe]:
    """The recipe of every run, seed by seed: what is stopped early is balanced."""
    setting, recipes = SETTINGS[scale], {}
    main = MAIN if setting.every() == 100 else (*MAIN, *EVERY_100)
    for seed in range(max(SEEDS.values())):
        few = (*OTHERS, *OWN_STRIDE) if seed < SEEDS["others"] else ()
        for arm in (*main, *few):
            clipping = clipping_of(arm, setting.every())
            recipe = replace(setting.recipe, seed=seed, clipping=clipping)
            recipes[run_name(arm, seed)] = recipe
    return recipes


def run_name(arm: str, seed: int) -> str:
    """The name of a run in the record."""
    return f"{arm}, seed {seed}"


def clipping_of(arm: str, every: int) -> Clipping | None:
    """How an arm clips."""
    if arm == "none":
        return None
    bound, _, how = arm.partition(", ")
    kind = "layer" if how == "own stride" else "paper"
    return Clipping(float(bound), 100 if how == "every 100" else every, kind)


def arms_of(results: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The results by arm, in the order of seeds, of the runs that are done."""
    arms: dict[str, list[dict[str, Any]]] = {}
    for arm in (*MAIN, *EVERY_100, *OTHERS, *OWN_STRIDE):
        names = [run_name(arm, seed) for seed in range(SEEDS["main"])]
        found = [results[name] for name in names if name in results]
        if found:
            arms[arm] = found
    return arms


def conclude(options: Options, record: Record) -> list[Claim]:
    """Draw the figure, sum up, and judge."""
    arms, epochs = arms_of(record.results), SETTINGS[options.scale].recipe.epochs
    steps = epochs * SETTINGS[options.scale].steps_per_epoch
    errors = {arm: [r["error"] for r in found] for arm, found in arms.items()}
    summary = {
        arm: {
            "error": interval(errors[arm]).text("%"),
            "published": PUBLISHED.get(arm.removesuffix(", every 100")),
            "minus none": difference(errors[arm], errors["none"]).text("points"),
            "norms": _range(arms[arm], "norms"),
            "norms with stride 1": _range(arms[arm], "norms with stride 1"),
            "clip share": _clip_share(arms[arm]),
        }
        for arm in arms
    }
    draw(options, arms)
    lower = [arm for arm in ("0.5", "1.0", *EVERY_100) if arm in arms]
    as_often = EVERY_100 if EVERY_100[0] in arms else ("0.5", "1.0")
    claims = [
        *(_lower(errors, arm) for arm in lower),
        _higher(errors),
        *(_little(errors, arm, arms["none"]) for arm in ("2.5", "3.0")),
        _norms(arms["none"], options.scale),
        *(_late(arms, arm, epochs) for arm in lower if arm.startswith("0.5")),
        *(_held(arms[arm], arm, steps % _every(arm, options.scale)) for arm in lower),
        *(_time(arms[arm], arm) for arm in as_often),
    ]
    return record.conclude(claims, summary, _table(summary))


def _lower(errors: Mapping[str, Sequence[float]], arm: str) -> Claim:
    found = difference(errors[arm], errors["none"])
    return Claim(
        f"clipping at {arm} lowers the test error",
        f"{100 * PUBLISHED['none']:.1f} % to {100 * PUBLISHED[arm[:3]]:.1f} %",
        _from_to(errors, arm, found),
        is_below_zero(found),
    )


def _higher(errors: Mapping[str, Sequence[float]]) -> Claim:
    found = difference(errors["0.1"], errors["none"])
    return Claim(
        "clipping at 0.1 raises it, but only a little",
        f"{100 * PUBLISHED['none']:.1f} % to {100 * PUBLISHED['0.1']:.1f} %",
        _from_to(errors, "0.1", found),
        is_little_more(found, LITTLE * statistics.fmean(errors["none"])),
        f"a little: at most {LITTLE:.0%} of the error without clipping",
    )


def _little(
    errors: Mapping[str, Sequence[float]], arm: str, none: Sequence[Mapping[str, Any]]
) -> Claim:
    found = difference(errors[arm], errors["none"])
    _, high = _range(none, "norms with stride 1")
    return Claim(
        f"clipping at {arm} has little effect",
        "little",
        _from_to(errors, arm, found),
        is_little(found, LITTLE * statistics.fmean(errors["none"])),
        f"little: at most {LITTLE:.0%} of the error without clipping. The paper's "
        f"reason is that norms are 2.8 at most; here they reach {high:.1f}",
    )


def _from_to(errors: Mapping[str, Sequence[float]], arm: str, found: Interval) -> str:
    means = [100 * statistics.fmean(errors[name]) for name in ("none", arm)]
    return f"{means[0]:.2f} % to {means[1]:.2f} %, {found.text('points')}"


def _norms(none: Sequence[Mapping[str, Any]], scale: str) -> Claim:
    low, high = _range(none, "norms with stride 1")
    near = NORMS[0] - 0.05 <= low and high <= NORMS[1] + 0.05
    return Claim(
        "norms of unclipped layers are between 2.5 and 2.8",
        f"{NORMS[0]} to {NORMS[1]}",
        f"{low:.2f} to {high:.2f}",
        near if scale == "paper" and math.isfinite(low) else None,
        "certified norms on the torus with stride 1, as the paper has them; a fact "
        "about its network, which no other can show",
    )


def _late(
    arms: Mapping[str, Sequence[Mapping[str, Any]]], arm: str, epochs: int
) -> Claim:
    """Whether clipping is ahead only after the second decay of the rate."""
    statement = f"clipping at {arm} is ahead only after the second decay of the rate"
    plotted = "+11.8, +3.4, -0.8 points in the plotted curves at 0.5"
    runs = [run for name in (arm, "none") for run in arms[name]]
    if diverged := sum(run["diverged"] for run in runs):
        found = f"{diverged} of {len(runs)} trainings diverged"
        return Claim(statement, plotted, found, None)
    pairs = [[_part(arms[name], i, epochs) for name in (arm, "none")] for i in range(3)]
    parts = [difference(*pair) for pair in pairs]
    *before, after = (is_below_zero(part) for part in parts)
    behind = [None if ahead is None else not ahead for ahead in before]
    return Claim(
        statement,
        plotted,
        "; ".join(part.text("points") for part in parts) + ": error minus none's "
        "before the decays, between and after",
        all_hold([*behind, after]),
    )


def _part(runs: Sequence[Mapping[str, Any]], part: int, epochs: int) -> list[float]:
    """The mean error of each run before the decays of the rate, between or after."""
    low, high = (epochs * end for end in (0.0, *MILESTONES, 1.0)[part : part + 2])
    logs = [[x for x in run["log"] if low < x["epoch"] <= high] for run in runs]
    errors = [[x["error"] for x in log if x["error"] is not None] for log in logs]
    return [statistics.fmean(each) for each in errors]


def _held(runs: Sequence[Mapping[str, Any]], arm: str, since: int) -> Claim:
    """Whether norms are near the bound at the end, so many steps after a clip."""
    norms = _norms_of(runs, "norms with stride 1")
    excess = sorted(norm / float(arm[:3]) - 1 for norm in norms)
    statement = f"clipped at {arm}, norms end at most a tenth above the bound"
    said = "a pair of projections is a warm start for the next"
    if not excess:
        return Claim(statement, said, "all diverged", None)
    median = statistics.median(excess)
    return Claim(
        statement,
        said,
        f"{median:+.1%} ({excess[0]:+.1%} to {excess[-1]:+.1%})",
        median <= CLOSE,
        f"norm / bound - 1, in the median over layers and seeds, {since} steps after "
        "the last clip",
    )


def _every(arm: str, scale: str) -> int:
    clipping = clipping_of(arm, SETTINGS[scale].every())
    assert clipping is not None
    return clipping.every


def _time(runs: Sequence[Mapping[str, Any]], arm: str) -> Claim:
    share = _clip_share(runs)
    return Claim(
        f"clipping at {arm} hardly slows training down",
        f"+{published(f'overhead.{arm[:3]}')} %",
        f"{100 * share:+.2f} %",
        share <= 0.035,
        "at most 3.5 % more; in processor seconds on a CPU",
    )


def _clip_share(runs: Sequence[Mapping[str, Any]]) -> float:
    """What clipping adds to the rest of the time."""
    clips = sum(run["clip_seconds"] for run in runs)
    return clips / (sum(run["seconds"] for run in runs) - clips)


def _range(runs: Sequence[Mapping[str, Any]], which: str) -> tuple[float, float]:
    norms = _norms_of(runs, which)
    return (min(norms), max(norms)) if norms else (math.nan, math.nan)


def _norms_of(runs: Sequence[Mapping[str, Any]], which: str) -> list[float]:
    """Of all layers; a network that diverged has none."""
    return [norm for run in runs for norm in (run[which] or {}).values()]


def _table(summary: Mapping[str, Mapping[str, Any]]) -> str:
    header = ["arm", "paper", "error [95 %]", "minus none's", "norms", "clips add"]
    rows = [
        [
            arm,
            "-" if row["published"] is None else f"{100 * row['published']:.1f} %",
            row["error"],
            row["minus none"] if arm != "none" else "-",
            "{:.2f} to {:.2f}".format(*row["norms with stride 1"]),
            f"{100 * row['clip share']:.2f} %",
        ]
        for arm, row in summary.items()
    ]
    return table(header, rows)


def draw(options: Options, arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw figure 2 and the figure of error over time, over the paper's curves."""
    drawn, (loss, error, over_time) = figure.new_figure(3)
    epochs = SETTINGS[options.scale].recipe.epochs
    stretch, colors = epochs / 250, COLORS | MORE_COLORS
    for ax, name in ((loss, "cifar10 loss"), (error, "cifar10 error")):
        figure.draw_paper(ax, name, COLORS, stretch)
    name = "cifar10 error over seconds"
    end = figure.paper_curves(name)["none"][-1][0]
    figure.draw_paper(over_time, name, COLORS, 1 / end)
    for arm, runs in arms.items():
        if arm in colors:
            _draw_arm(loss, runs, "loss", colors[arm], arm)
            _draw_arm(error, runs, "error", colors[arm], arm)
            # Not by seconds, as machines of different speeds may have trained an arm.
            per_epoch = (1 + _clip_share(runs)) / epochs
            _draw_arm(over_time, runs, "error", colors[arm], arm, per_epoch)
    loss.set(xlabel="epochs", ylabel="training loss", ylim=(0, 1.8))
    error.set(xlabel="epochs", ylabel="test error", ylim=(0, 0.9))
    over_time.set(xlabel="time / time without clipping", ylim=(0, 0.9))
    shown = error.get_legend_handles_labels()
    drawn.legend(*shown, fontsize=8, ncols=7, frameon=False, loc="outside lower center")
    drawn.suptitle(
        f"CIFAR-10, {options.scale}: lines are means over seeds, bands all seeds; "
        f"broad and pale, the paper's (epochs x {stretch:g})",
        fontsize=9,
    )
    figure.save(drawn, options.folder("cifar10"), "cifar10")


def _draw_arm(
    ax: Any,
    runs: Sequence[Mapping[str, Any]],
    what: str,
    color: str,
    label: str,
    per_epoch: float = 1,
) -> None:
    found: dict[int, list[float]] = {}
    for entry in (entry for run in runs for entry in run["log"]):
        if entry[what] is not None:  # not measured, or diverged
            found.setdefault(entry["epoch"], []).append(entry[what])
    x = [per_epoch * epoch for epoch in sorted(found)]
    values = [found[epoch] for epoch in sorted(found)]
    ax.plot(x, [statistics.fmean(v) for v in values], color=color, label=label, lw=1.2)
    low, high = [min(v) for v in values], [max(v) for v in values]
    ax.fill_between(x, low, high, color=color, alpha=0.15, lw=0)
