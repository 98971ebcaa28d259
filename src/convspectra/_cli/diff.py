"""The command that tells which layers grew from one file to another."""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from .._checkpoint.select import Options, StoredLayer, completed, select
from .._layer.layer import Layer
from .._norm.operator_norm import operator_norm
from .._report.affordable import too_large
from .._report.spectra import EVERY_SIZE, reasons
from .._text import Lower, Upper
from .options import options_of
from .progress import progress
from .render import (
    GROWTH,
    as_json,
    bounds,
    listed,
    naming,
    quoted,
    row_of,
    say,
    table,
)

ASSUMED = (
    "Growth assumes stride 1, one group and a circular boundary wherever neither the\n"
    "files nor an option say more."
)


def diff(args: argparse.Namespace) -> int:
    """Compare the norms of the layers that two files share."""
    options = options_of(args)
    pairs, alone, skipped = _pairs(args.before, args.after, options)
    layers = [layer for pair in pairs for layer in pair]
    if any(layer.geometry.grid is None for layer in layers):
        say(EVERY_SIZE)
    if any(layer.unknown for layer in layers):
        say(ASSUMED)
    rows = []
    with progress("diff") as shown:
        for pair in shown.of(pairs, lambda pair: pair[1].name):
            files = (args.before, args.after)
            before, after = (_load(path, one) for path, one in zip(files, pair))
            either = [field for one in pair for field in one.unknown_without_size]
            unknown = tuple(dict.fromkeys(either))
            rows.append(_growth(before, after, unknown, options))
    rows.sort(key=lambda row: -row["growth_upper"])
    if args.json:
        files = {"before": str(args.before), "after": str(args.after)}
        as_json({**files, "kernels": rows, "skipped": listed(skipped)})
    else:
        table(GROWTH, rows)
    for sentence in reasons(skipped):
        say(sentence)
    if args.fail_above is None:
        return 0
    grown = [row["name"] for row in rows if row["growth_upper"] > args.fail_above]
    if grown:
        say(f"grew by more than {args.fail_above:g}, or may have: {quoted(grown)}.")
    if alone:
        say(f"cannot be compared, so their growth is unknown: {quoted(alone)}.")
    return int(bool(grown or alone))


def _pairs(
    one: Path, other: Path, options: Options
) -> tuple[list[tuple[StoredLayer, StoredLayer]], list[str], dict[str, str]]:
    """Layers of two files with the same name and shape, those alone, and why.

    What only one file states of a layer holds for both: two geometries would pass for
    growth, or hide it.
    """
    skipped: dict[str, str] = {}
    before, after = (_by_name(path, options, skipped) for path in (one, other))
    if list(before) == [one.stem] and list(after) == [other.stem]:
        # Arrays of .npy files, which have no names but those of their files.
        after = dict(zip(before, after.values()))
    pairs, alone = [], []
    for name in {**before, **after}:
        if name in before and name in after:
            first, second = before[name], after[name]
            if first.kernel.shape == second.kernel.shape:
                with naming(name):
                    both = (
                        completed(first, second, options),
                        completed(second, first, options),
                    )
                pairs.append(both)
                continue
            skipped[name] = "has a different shape in each file"
        skipped.setdefault(name, f"is not in {one if name not in before else other}")
        alone.append(name)
    if not pairs:
        name = next(iter(alone or skipped))
        raise ValueError(
            f"{one} and {other} must share kernels by name and shape, got none: "
            f"{name!a} {skipped[name]}."
        )
    return pairs, alone, skipped


def _by_name(
    path: Path, options: Options, skipped: dict[str, str]
) -> dict[str, StoredLayer]:
    """The layers of a file by name; why others are not among them goes to `skipped`."""
    with naming("", path):
        selected = select(path, options)
    for sentence in selected.network.advice:
        say(f"{path}: {sentence}")
    large = {layer.name: too_large(layer) for layer in selected.layers}
    for name, reason in (selected.skipped | large).items():
        if reason:
            skipped[name] = f"in {path}: {reason}"
    return {layer.name: layer for layer in selected.layers if not large[layer.name]}


def _load(path: Path, layer: StoredLayer) -> Layer:
    with naming(layer.name, path):
        return layer.load()


def _growth(
    before: Layer, after: Layer, unknown: tuple[str, ...], options: Options
) -> dict[str, Any]:
    """Both norms, and bounds on their ratio: 1 for a layer that is the same."""
    rtol, budget = options.rtol, options.budget
    first = operator_norm(before.weight, before.geometry, rtol, budget=budget)
    second = operator_norm(after.weight, after.geometry, rtol, budget=budget)
    lower = _ratio(float(second.lower), float(first.upper))
    upper = _ratio(float(second.upper), float(first.lower))
    if before.geometry == after.geometry and np.array_equal(
        before.weight, after.weight
    ):
        lower = upper = 1.0
    return {
        **row_of(after, unknown),
        **bounds(first, "before_", attained=not unknown),
        **bounds(second, "after_", attained=not unknown),
        "growth_lower": Lower(lower),
        "growth_upper": Upper(upper),
    }


def _ratio(one: float, other: float) -> float:
    if other == 0:
        return 1.0 if one == 0 else math.inf
    return one / other
