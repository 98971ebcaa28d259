"""Appendix C: the singular values of a pretrained residual network.

Claims, on layers with kernels larger than 1x1. (1) The largest norms are closest to the
input: here, the largest is in the first quarter of the layers and the rank correlation
of norm and depth is negative. (2) The values of the first layer are much larger than
the rest: its value of rank 10000 is at least twice that of any other layer. (3) Most
layers have at least 10000 values that are at least 1. (4) The number of values that are
not negligible increases for a while and tapers off at the end: the count above a tenth
of a layer's norm is largest in neither the first nor the last layer. (5) The effective
rank (exp of the entropy of the values) is larger
closer to the input: its rank correlation with depth is negative. (6) The norm of the
reshaped kernel is often quite different from the layer's (section 1): by more than a
tenth in at least half of the layers of all networks.

    python -m experiments pretrained --network FILE --network FILE ...

judges (1) to (5) by the first file, and (6) by all of them; without a file, by the
network that comes with the package. The paper's network, ResNet v2 of TensorFlow's home
page, is not at hand: ours is another residual network. Values are the paper's, of a
torus of the size of the layer's input without stride; numbers of the layers as they are
stand beside them in the record.
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .claims import Claim
from .figure import new_figure, save
from .options import Options
from .record import Record
from .reports import RTOL, identified, name_of, report
from .talk import say

NAME = "pretrained"
MANY, MUCH, OFTEN = 10_000, 2.0, 0.1  # of the claims (2) and (3), (2) and (6)
NEGLIGIBLE = 0.1  # of a layer's norm, in claim (4)
POINTS = 128  # of a curve that the record keeps
PAPERS, LAYERS = "as the paper has it", "as the layers are"
KEPT = "name shape grid stride count above_one count_above_one largest norm_lower"
KEPT += " norm_upper reshaped stable_rank effective_rank values_of"


def run(options: Options) -> list[Claim]:
    """Report on every network that is named, and say whether the claims hold."""
    networks = options.networks or (None,)
    settings = {"networks": identified(networks), "rtol": RTOL}
    record = Record(options.folder(NAME), settings)
    for i, path in enumerate(networks):
        for view in (PAPERS, LAYERS) if i == 0 else (LAYERS,):
            unit = f"{name_of(path)}, {view}"
            if unit in record.results:
                continue
            say(unit)
            record.keep(unit, look(path, view, curves=view == PAPERS))
    first = name_of(networks[0])
    shown = record.results[f"{first}, {PAPERS}"]["layers"]
    claims = (
        claims_on(shown) if len(shown) > 1 and all(x["count"] for x in shown) else []
    )
    if claims:
        _draw(shown, first, options)
    everything = [
        layer | {"network": unit.removesuffix(f", {LAYERS}")}
        for unit, result in record.results.items()
        if unit.endswith(LAYERS)
        for layer in result["layers"]
    ]
    claims.append(claim_on_reshaping(everything))
    return record.conclude(claims, summary(shown, everything))


def look(network: Path | None, view: str, *, curves: bool) -> dict[str, Any]:
    """What a report says of the layers of a network, and what it skips."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "torus.toml" if view == PAPERS else None
        found = report(network, as_torus=table)
    layers = [{key: row[key] for key in KEPT.split()} for row in found["layers"]]
    if curves:
        for layer, row in zip(layers, found["layers"]):
            layer["curve"] = _thinned(row["curve"])
    return {"layers": layers, "skipped": len(found["skipped"])}


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's: the correlation of the ranks, without ties."""
    ranks = np.argsort(np.argsort([x, y], axis=1), axis=1)
    return float(np.atleast_2d(np.corrcoef(ranks))[0, 1])


def claims_on(layers: list[dict[str, Any]]) -> list[Claim]:
    """The verdicts on one network, whose layers come in the order from its input."""
    count, depth = len(layers), list(range(len(layers)))
    norms = [layer["norm_upper"] for layer in layers]
    largest = int(np.argmax(norms))
    order = rank_correlation(depth, norms)
    first, others = _at(layers[0]), max(map(_at, layers[1:]))
    counts = [layer["count_above_one"] for layer in layers]
    enough = sum(number >= MANY for number in counts)
    matter = [_count(layer) for layer in layers]
    peak = int(np.argmax(matter))
    ranks = [layer["effective_rank"] for layer in layers]
    shares = [rank / layer["count"] for rank, layer in zip(ranks, layers)]
    by_rank = rank_correlation(depth, ranks)
    return [
        Claim(
            "the largest norms are closest to the input",
            "closest to the inputs",
            f"largest in layer {largest + 1} of {count}; with depth {order:+.2f}",
            largest < count / 4 and order < 0,
            "rank correlation with depth without the first layer: "
            f"{rank_correlation(depth[1:], norms[1:]):+.2f}"
            if count > 2
            else "",
        ),
        Claim(
            "values of the first layer are much larger than the rest",
            "much larger",
            f"value of rank {MANY} {first:.3g}, of any other layer at most "
            f"{others:.3g}",
            first >= MUCH * others,
            f"the norms are {norms[0]:.3g} and at most {max(norms[1:]):.3g}",
        ),
        Claim(
            f"most layers have {MANY} values of at least 1",
            "most of the layers",
            f"{enough} of {count}; shares of the layers' values "
            f"{min(x['above_one'] for x in layers):.0%} to "
            f"{max(x['above_one'] for x in layers):.0%}",
            enough > count / 2,
        ),
        Claim(
            "the number of non-negligible values rises, then tapers off",
            "rises, tapers off at the end",
            f"about {matter[0]} in the first layer, at most {matter[peak]} in layer "
            f"{peak + 1}, {matter[-1]} in the last",
            0 < peak < count - 1,
            f"those above {NEGLIGIBLE:.0%} of the layer's norm; above 1, there are "
            f"{counts[0]}, at most {max(counts)}, and {counts[-1]}",
        ),
        Claim(
            "the effective rank is larger closer to the input",
            "larger closer to the inputs",
            f"with depth {by_rank:+.2f}",
            by_rank < 0,
            "divided by the number of values, its correlation with depth is "
            f"{rank_correlation(depth, shares):+.2f}",
        ),
    ]


def _at(layer: dict[str, Any]) -> float:
    """A layer's value of rank `MANY`, between points of its curve; zero beyond it."""
    curve = layer["curve"]
    return float(np.interp(MANY - 1, curve["rank"], curve["values"], right=0.0))


def _count(layer: dict[str, Any]) -> int:
    """How many values are not negligible, between points of the layer's curve."""
    values, rank = (layer["curve"][key][::-1] for key in ("values", "rank"))
    return round(float(np.interp(NEGLIGIBLE * values[-1], values, rank))) + 1


def claim_on_reshaping(layers: list[dict[str, Any]]) -> Claim:
    """Whether the reshaped norm is often far from the layer's."""
    statement = "the norm of the reshaped kernel is often quite different"
    published = "often quite different"
    ratios = [ratio for ratio in map(_ratio, layers) if ratio is not None]
    if not ratios:
        advice = "a .toml beside a file states the geometry of its layers"
        return Claim(statement, published, "-", None, advice)
    far = sum(abs(ratio - 1) > OFTEN for ratio in ratios)
    unknown = len(layers) - len(ratios)
    return Claim(
        statement,
        published,
        f"by more than {OFTEN:.0%} in {far} of {len(ratios)} layers; the layer's is "
        f"{statistics.median(ratios):.2f} times it in the median, "
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        far >= len(ratios) / 2,
        f"layers whose geometry no file states are left out: {unknown}",
    )


def _ratio(layer: dict[str, Any]) -> float | None:
    """A layer's norm over that of its reshaped kernel; None if it is not known."""
    if layer["norm_lower"] is None:
        return None
    return layer["norm_lower"] / layer["reshaped"]


def summary(
    shown: list[dict[str, Any]], layers: list[dict[str, Any]]
) -> dict[str, Any]:
    """Counts above one by layer, and the layer's norm over the reshaped by network."""
    ratios: dict[str, list[float]] = {}
    for layer in layers:
        if (ratio := _ratio(layer)) is not None:
            ratios.setdefault(layer["network"], []).append(ratio)
    return {
        "above one": {x["name"]: x["count_above_one"] for x in shown if x["count"]},
        "norm over reshaped": {
            network: {
                "layers": len(found),
                "least": min(found),
                "median": statistics.median(found),
                "most": max(found),
            }
            for network, found in ratios.items()
        },
    }


def _thinned(curve: dict[str, list[float]] | None) -> dict[str, list[float]] | None:
    if curve is None:
        return None
    last = len(curve["rank"]) - 1
    kept = np.unique(np.linspace(0, last, min(POINTS, last + 1)).astype(int))
    return {key: [numbers[i] for i in kept] for key, numbers in curve.items()}


def _draw(layers: list[dict[str, Any]], network: str, options: Options) -> None:
    """The three figures, in the paper's colors: red next to the input, then green."""
    figure, panels = new_figure(columns=3)
    for i, layer in enumerate(layers):
        share = i / max(len(layers) - 1, 1)
        style = {"color": (1 - share, 0.8 * share, 0), "linewidth": 1.2}
        rank = np.array(layer["curve"]["rank"]) + 1
        values = np.array(layer["curve"]["values"])
        panels[0].plot(rank, values, **style)
        panels[1].plot(rank, values / values[0], **style)
        panels[2].plot(rank / rank[-1], values / values[0], **style)
    for ax, x, y in zip(
        panels,
        ("rank", "rank", "rank / number of values"),
        ("singular value", "value / largest", "value / largest"),
    ):
        ax.set(xlabel=x, ylabel=y)
        ax.locator_params(axis="x", nbins=5)
    panels[1].set_title(f"{network}: red is closest to the input", fontsize="small")
    save(figure, options.folder(NAME), NAME)
