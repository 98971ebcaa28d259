"""The command that tells which layers grew from one file to another."""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from .._checkpoint.select import Placed
from .._layer.layer import Layer
from .._norm.operator_norm import operator_norm
from .._report.from_file import Options, assumptions, kernels_of
from .._report.spectra import EVERY_SIZE, reasons
from .._text import Lower, Upper
from .options import options_of
from .render import GROWTH, as_json, names, progress, say, table
from .shared import about, ends, listed, naming


def diff(args: argparse.Namespace) -> int:
    """Compare the norms of the layers that two files share."""
    options = options_of(args)
    pairs, alone, skipped = _pairs(args.before, args.after, options)
    if any(after.geometry.grid is None for _, after in pairs):
        say(EVERY_SIZE)
    for sentence in assumptions([after for _, after in pairs]):
        say(sentence)
    rows = []
    for pair in progress(pairs, "diff"):
        before, after = (
            _layer(path, one, options)
            for path, one in zip((args.before, args.after), pair)
        )
        rows.append(_growth(before, after, options.rtol))
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
        say(f"grew by more than {args.fail_above:g}, or may have: {names(grown)}.")
    if alone:
        say(f"cannot be compared, so their growth is unknown: {names(alone)}.")
    return int(bool(grown or alone))


def _pairs(
    one: Path, other: Path, options: Options
) -> tuple[list[tuple[Placed, Placed]], list[str], dict[str, str]]:
    """Kernels of two files with the same name and shape, those alone, and why."""
    found, reasons = [], []
    for path in (one, other):
        with naming("", path):
            _, placed, why = kernels_of(path, options)
        found.append({x.kernel.name: x for x in placed})
        reasons.append({name: f"in {path}: {reason}" for name, reason in why.items()})
    before, after = found
    skipped = reasons[0] | reasons[1]
    pairs, alone = [], []
    for name in {**before, **after}:
        if name in before and name in after:
            if before[name].kernel.shape == after[name].kernel.shape:
                pairs.append((before[name], after[name]))
                continue
            skipped[name] = "has a different shape in each file"
        skipped.setdefault(name, f"is not in {one if name not in before else other}")
        alone.append(name)
    if not pairs:
        raise ValueError(
            f"{one} and {other} must share kernels by name and shape, got none."
        )
    return pairs, alone, skipped


def _layer(path: Path, one: Placed, options: Options) -> Layer:
    with naming(one.kernel.name, path):
        return one.layer(fold=options.fold)


def _growth(before: Layer, after: Layer, rtol: float) -> dict[str, Any]:
    """Both norms, and bounds on their ratio: 1 for a layer that is the same."""
    first = operator_norm(before.weight, before.geometry, rtol)
    second = operator_norm(after.weight, after.geometry, rtol)
    lower = _ratio(float(second.lower), float(first.upper))
    upper = _ratio(float(second.upper), float(first.lower))
    if before.geometry == after.geometry and np.array_equal(
        before.weight, after.weight
    ):
        lower = upper = 1.0
    return {
        **about(after),
        **ends(first, "before_"),
        **ends(second, "after_"),
        "growth_lower": Lower(lower),
        "growth_upper": Upper(upper),
    }


def _ratio(one: float, other: float) -> float:
    if other == 0:
        return 1.0 if one == 0 else math.inf
    return one / other
