"""Introduction: is what a network gets wrong bounded by the norms of its layers?

The paper's motive: "the generalization error for a network is bounded by the Lipschitz
constant of the network, which in turn can be bounded by the product of the operator
norms". The bound of Bartlett, Foster and Telgarsky is computed from certified norms,
from the (2,1) norms of the layers' matrices, and from margins on the training images,
for every network that `cifar10` has trained and left in OUT/cifar10/runs.

Claims. (1) It orders the arms of `cifar10` as their test errors do, and (2) as the
differences of their test and training errors do: Kendall's rank correlation is
positive, and larger than in all but 5 % of random orders. An arm has the means of its
seeds, which are too alike to count as one network each. As the bound is far above 1 for
every network, its order is all that it can tell.

A network's number is log10 of |X| R / (g n), with g the median margin: what the theorem
adds to the share of smaller margins, up to logarithms and constants.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import cifar10
from .claims import Claim
from .figure import new_figure, save
from .margin_bound import complexity, margins, steps_of
from .options import Options
from .record import Record
from .runs import (
    SETTINGS,
    network_file,
    prepared_file,
    read_prepared,
    trained_by,
)
from .training import is_finished, load_network
from .units import run_units

NAME, SEED = "generalization", 0
ORDERS, LEVEL = 10_000, 0.05  # random orders, and how few may do as well
LEAST = 5  # arms that an order can be told of


@dataclass(frozen=True, slots=True)
class Trained:
    """A network that `cifar10` has trained, and its test error there."""

    network: Path
    images: Path
    error: float


def run(options: Options) -> list[Claim]:
    """Compute every network's bound, and see whether it tells their order."""
    trainings = trained_by(options, "cifar10")
    if trainings is None:
        raise FileNotFoundError(
            f"{str(options.out)!r} must hold the results of `cifar10`, and does not. "
            "Run that experiment first, with the same --out."
        )
    settings = {"scale": options.scale, "seed": SEED, "of": trainings["started"]}
    record = Record(options.folder(NAME), settings)
    run_units(options, record, trained(options, trainings["results"]), measure)
    claims = claims_on(record.results, missing(record.results, trainings["results"]))
    _draw(record.results, options)
    return record.conclude(claims, summary(record.results))


def trained(options: Options, results: dict[str, Any]) -> dict[str, Trained]:
    """The networks whose training is done and did not diverge, and that are there.

    Results that come from another machine may have come without them.
    """
    folder, setting = options.folder("cifar10"), SETTINGS[options.scale]
    there = [name for name in _done(results) if is_finished(network_file(folder, name))]
    if not there:
        return {}
    images = prepared_file(options, setting.side, setting.images)
    return {
        name: Trained(network_file(folder, name), images, results[name]["error"])
        for name in there
    }


def missing(measured: dict[str, Any], results: dict[str, Any]) -> list[str]:
    """The networks that were trained, but were not there to be measured."""
    return [name for name in _done(results) if name not in measured]


def _done(results: dict[str, Any]) -> list[str]:
    return [name for name, result in results.items() if not result["diverged"]]


def measure(one: Trained) -> dict[str, Any]:
    """All that the bound is made of, for one network."""
    images, _ = read_prepared(one.images)
    network = load_network(one.network)
    steps = steps_of(network, images.pixels[:1])
    found = margins(network, images).double()
    margin, count = float(found.median()), len(images.labels)
    size = float(images.pixels.double().norm())
    r = complexity(steps)
    bound = None
    if margin > 0:
        bound = r + math.log10(size / (margin * count))
    training_error = float((found <= 0).double().mean())
    return {
        "test_error": one.error,
        "training_error": training_error,
        "median_margin": margin,
        "log10_product": math.fsum(math.log10(step.norm) for step in steps),
        "log10_r": r,
        "log10_bound": bound,
        "norms": [step.norm for step in steps],
        "distances": [step.distance for step in steps],
    }


def claims_on(results: dict[str, Any], missing: Sequence[str] = ()) -> list[Claim]:
    """The verdicts on the arms, of networks that have a positive median margin.

    None if no network of an arm is there, whose place in the order is not known then.
    """
    arms, known = by_arm(results), 0
    lost = sorted({_arm(name) for name in missing} - arms.keys())
    bounds, errors, gaps = [], [], []
    for networks in arms.values():
        found = [x for x in networks if x["log10_bound"] is not None]
        if not found:
            continue
        known += len(found)
        bounds.append(statistics.fmean(x["log10_bound"] for x in found))
        errors.append(statistics.fmean(x["test_error"] for x in found))
        training = statistics.fmean(x["training_error"] for x in found)
        gaps.append(errors[-1] - training)
    note = f"of {len(results)} networks {known} have a positive median margin"
    if bounds:
        note += f"; their bounds are 10^{min(bounds):.1f} to 10^{max(bounds):.1f}"
    if missing:
        note += f"; {len(missing)} more were trained, and are not at hand"
    if lost:
        note += f", all of the arms {'; '.join(lost)} among them"
    claims = [
        _claim("the bound orders arms as their test errors do", bounds, errors, note),
        _claim("and as test minus training error does", bounds, gaps, ""),
    ]
    return [replace(claim, holds=None) for claim in claims] if lost else claims


def _claim(statement: str, bounds: list[float], truth: list[float], note: str) -> Claim:
    if len(bounds) < LEAST:
        found = f"{len(bounds)} arms, where {LEAST} tell an order"
        return Claim(statement, "motive", found, None, note)
    tau = kendall(bounds, truth)
    high = share_as_high(bounds, truth)
    low = share_as_high(bounds, [-x for x in truth])
    holds = True if high <= LEVEL else False if low <= LEVEL else None
    return Claim(
        statement,
        "motive",
        f"Kendall's tau {tau:+.2f} of {len(bounds)} arms, as high in {high:.1%} and "
        f"as low in {low:.1%} of random orders",
        holds,
        note,
    )


def kendall(x: Sequence[float], y: Sequence[float]) -> float:
    """Kendall's tau: concordant minus discordant pairs, over all pairs."""
    return float(np.mean((_signs(x) * _signs(y))[~np.eye(len(x), dtype=bool)]))


def share_as_high(x: Sequence[float], y: Sequence[float]) -> float:
    """The share of random orders of `y` whose tau is at least the one that was found.

    The order that was found counts as one of them, so that the share is never zero.
    """
    rng, a, b = np.random.default_rng(SEED), _signs(x), _signs(y)
    orders = (rng.permutation(len(x)) for _ in range(ORDERS))
    high = sum(np.vdot(a, b[np.ix_(i, i)]) >= np.vdot(a, b) for i in orders)
    return (1 + int(high)) / (ORDERS + 1)


def _signs(values: Sequence[float]) -> np.ndarray:
    """Which of each two values is larger, as 1 or -1; 0 if they are equal."""
    column = np.asarray(values, float)[:, None]
    return np.sign(column - column.T)


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """By arm of `cifar10`: mean test error, and mean of the logarithms of the bound."""
    return {
        arm: {
            key: statistics.fmean(x[key] for x in found)
            for key in ("test_error", "training_error", "log10_product", "log10_r")
        }
        for arm, found in by_arm(results).items()
    }


def by_arm(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What was found of the networks of each arm."""
    arms: dict[str, list[dict[str, Any]]] = {}
    for name, result in results.items():
        arms.setdefault(_arm(name), []).append(result)
    return arms


def _arm(name: str) -> str:
    return name.rpartition(", seed ")[0]


def _draw(results: dict[str, Any], options: Options) -> None:
    figure, (errors, gaps) = new_figure(columns=2)
    colors = cifar10.COLORS | cifar10.MORE_COLORS
    for arm, found in by_arm(results).items():
        known = [x for x in found if x["log10_bound"] is not None]
        x = [one["log10_bound"] for one in known]
        style: dict[str, Any] = {"color": colors.get(arm, "black"), "label": arm}
        errors.plot(x, [one["test_error"] for one in known], "o", **style)
        gap = [one["test_error"] - one["training_error"] for one in known]
        gaps.plot(x, gap, "o", **style)
    for ax, y in ((errors, "test error"), (gaps, "test error - training error")):
        ax.set(xlabel="log10 of |X| R / (median margin * n)", ylabel=y)
    errors.legend(frameon=False, fontsize="small", title="clipped at")
    save(figure, options.folder(NAME), NAME)
