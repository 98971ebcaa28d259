"""Section 3: is one round of clip-and-crop enough, and is a torus near enough?

Claims. (1) Alternating the projections, onto the norm ball and onto the kernel's taps,
leads into both sets: after 100 rounds the norm is within a hundredth. (2) Dykstra's
algorithm finds the nearest point: after 100 rounds it is within a hundredth of the
bound, and has moved as far as `project`, to a hundredth; a hundred rounds can't tell as
long as each number of them is nearer than the one before. (3) In training, "the first
two projections already often produced a convolutional layer with an operator norm close
to the desired value", and as "SGD does not change the parameters very fast", each pair
is a warm start for the next: in the last quarter of the passes, norms just before and
just after a clip are within a tenth of the bound for at least half of the layers. The
small training is short, and can't tell if they are not; `cifar10` has long ones. (4) A
layer with zero padding "can be approximated" by a torus (section 1): the norms differ
by at most a twentieth in nine of ten real layers.

Kernels for (1) and (2): a random one at 0.6 of its norm, and all of a residual network
that was trained without clipping, at 0.5 and 1.0. For (3) the same training is clipped
at 0.5 and 1.0, as the paper does it: every 100 steps, in the small run, of 300 steps
with the paper's decays of the rate, every 20. For (4), the files of --network, or the
network that comes with the package.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import convspectra as cs

from .alternating_figure import draw
from .claims import Claim, all_hold
from .clip_norms import EVERY, SEED, TRAININGS, train
from .clipping import convolutions
from .options import Options
from .record import Record
from .reports import identified, name_of, report
from .rounds import ROUNDS, compare
from .runs import network_file, prepared_file, read_prepared
from .talk import say
from .training import load_network

NAME = "alternating"
BOUNDS = (0.5, 1.0)
RANDOM, SHARE = (16, 16, 3, 3), 0.6  # a kernel on 16x16, and its bound over its norm
CLOSE, THERE, TORUS, MOST = 0.1, 0.01, 0.05, 0.9  # of the claims
UNCLIPPED = "trained without clipping"
Results = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A kernel outside a norm ball."""

    weight: np.ndarray
    geometry: cs.Geometry
    max_norm: float


def run(options: Options) -> list[Claim]:
    """Train, follow the rounds, look at real layers, and judge the claims."""
    networks = options.networks or (None,)
    settings = {
        "scale": options.scale,
        "seed": SEED,
        "images": TRAININGS[options.scale].images,
        "training": asdict(TRAININGS[options.scale].recipe),
        "every": EVERY[options.scale],
        "bounds": BOUNDS,
        "rounds": ROUNDS,
        "networks": identified(networks),
    }
    folder = options.folder(NAME)
    record = Record(folder, settings)
    for bound in (None, *BOUNDS):
        name = UNCLIPPED if bound is None else f"trained, clipped at {bound}"
        if name not in record.results:
            say(name)
            record.keep(name, train(options, folder, name, bound))
    for name, task in tasks(options).items():
        if name not in record.results:
            say(name)
            record.keep(name, compare(task.weight, task.geometry, task.max_norm))
    for path in networks:
        name = f"torus, {name_of(path)}"
        if name not in record.results:
            say(name)
            record.keep(name, tori(report(path)["layers"]))
    draw(record.results, options)
    claims = claims_on(record.results, options.scale)
    return record.conclude(claims, summary(record.results))


def tasks(options: Options) -> dict[str, Task]:
    """The random kernel, and those of the unclipped network outside the balls."""
    random = np.random.default_rng(SEED).standard_normal(RANDOM)
    geometry = cs.Geometry(grid=(16, 16))
    norm = float(cs.operator_norm(random, geometry).upper)
    found = {"rounds, random": Task(random, geometry, SHARE * norm)}
    setting = TRAININGS[options.scale]
    _, test = read_prepared(prepared_file(options, setting.side, setting.images))
    network = load_network(network_file(options.folder(NAME), UNCLIPPED))
    for layer in convolutions(network, test.pixels[:1], as_paper=True):
        weight = layer.weight.numpy()
        norm = float(cs.operator_norm(weight, layer.geometry).lower)
        for bound in BOUNDS:
            if weight[0, 0].size > 1 and norm > bound:
                name = f"rounds, {layer.name} at {bound}"
                found[name] = Task(weight, layer.geometry, bound)
    return found


def tori(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The norm of the circular surrogate over that of each layer, as an interval.

    Of layers whose geometry is known: a norm of others has no lower bound.
    """
    return [
        {
            "name": row["name"],
            "grid": row["grid"],
            "low": row["largest"] / row["norm_upper"] - 1,
            "high": row["largest"] / row["norm_lower"] - 1,
        }
        for row in rows
        if row["values_of"] == "torus" and row["norm_lower"] is not None
    ]


def claims_on(results: Results, scale: str) -> list[Claim]:
    """The verdicts, from what all units gave."""
    rounds = [result for name, result in results.items() if name.startswith("rounds")]
    first = [x["alternating"][0]["excess"] for x in rounds]
    last = [x["alternating"][-1]["excess"] for x in rounds]
    ends = [x["Dykstra"][-1] for x in rounds]
    return [
        Claim(
            f"{ROUNDS[-1]} rounds of alternating lead into the ball",
            "in the limit",
            f"{_spread(last)} outside, {len(last)} kernels",
            max(last) <= THERE,
            f"after one round, from far outside: {_spread(first)}",
        ),
        Claim(
            f"{ROUNDS[-1]} rounds of Dykstra's algorithm find the nearest kernel",
            "in the limit",
            f"{_spread([x['excess'] for x in ends])} outside, "
            f"moved {min(x['distance'] for x in ends):.3f} to "
            f"{max(x['distance'] for x in ends):.3f} times as far as `project`",
            all_hold([_is_nearest(x["Dykstra"]) for x in rounds]),
            "`project` is inside, certified, after {:.0f} rounds in the median".format(
                statistics.median(x["project"]["rounds"] for x in rounds)
            ),
        ),
        *(
            _in_training(results[f"trained, clipped at {bound}"], scale)
            for bound in BOUNDS
        ),
        _of_tori(
            layer
            for name, layers in results.items()
            if name.startswith("torus")
            for layer in layers
        ),
    ]


def _is_nearest(points: Sequence[Mapping[str, float]]) -> bool | None:
    """Whether Dykstra's algorithm has found it; None if it is still on its way."""
    excess = [point["excess"] for point in points]
    if excess[-1] <= THERE:
        return abs(points[-1]["distance"] - 1) <= THERE
    return None if all(b < a for a, b in pairwise(excess)) else False


def _of_tori(found: Iterable[Mapping[str, Any]]) -> Claim:
    """Whether tori are near; not told if too many norms are not known well enough."""
    layers = list(found)
    near = sum(max(-x["low"], x["high"]) <= TORUS for x in layers)
    far = sum(max(x["low"], -x["high"]) > TORUS for x in layers)
    middles = [abs(x["low"] + x["high"]) / 2 for x in layers]
    holds = near >= MOST * len(layers)
    unknown = not holds and far <= (1 - MOST) * len(layers)
    return Claim(
        "a torus is near the zero-padded layer",
        "approximated",
        f"norms differ by at most {TORUS:.0%} in {near} of {len(layers)} layers, by "
        f"more in {far}; to the middle of the certified interval "
        f"{statistics.median(middles):.1%} in the median, {max(middles):.1%} at most",
        None if unknown else holds,
        "the certified intervals of the other layers are too wide to tell"
        if near + far < len(layers)
        else "",
    )


def _in_training(result: Mapping[str, Any], scale: str) -> Claim:
    bound, is_short = result["bound"], scale == "small"
    before, after = (excesses(result, when) for when in ("before", "after"))
    worst = max(statistics.median(before), statistics.median(after))
    once = [norms["after"][0] / bound - 1 for norms in result["norms"].values()]
    most = max(max(norms["before"]) for norms in result["norms"].values())
    return Claim(
        f"clipped at {bound} in training, norms stay close",
        "a warm start for the next pair",
        f"before a clip {_spread(before)}, after it {_spread(after)} outside, in the "
        "last quarter of the passes",
        True if worst <= CLOSE else None if is_short else False,
        f"after the first clip of all: {_spread(once)}; the largest norm just before a "
        f"clip was {most / bound:.1f} times the bound, while the rate was high"
        + ("; `cifar10` judges longer trainings" if is_short else ""),
    )


def excesses(result: Mapping[str, Any], when: str) -> list[float]:
    """Norm over bound - 1 of every layer, its mean over the last quarter of passes."""
    return [
        statistics.fmean(norms[when][-max(1, len(norms[when]) // 4) :])
        / result["bound"]
        - 1
        for norms in result["norms"].values()
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1%} ({min(values):.1%} to {max(values):.1%})"


def summary(results: Results) -> dict[str, Any]:
    """The medians over kernels after every number of rounds."""
    rounds = [result for name, result in results.items() if name.startswith("rounds")]
    return {
        method: {
            str(r): {
                key: statistics.median(x[method][i][key] for x in rounds)
                for key in ("excess", "distance")
            }
            for i, r in enumerate(ROUNDS)
        }
        for method in ("alternating", "Dykstra")
    }
