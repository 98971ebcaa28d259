"""The command that tells which layers grew from one file to another."""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from .._arguments import options_of
from .._examine import Options, kernels_of
from .._kernels import Placed
from .._layer import Layer
from .._norm import operator_norm
from .._render import GROWTH, as_json, names, progress, say, table
from .._report import EVERY_SIZE, reasons
from .shared import about, ends, listed, naming


def diff(args: argparse.Namespace) -> int:
    """Compare the norms of the layers that two files share."""
    options = options_of(args)
    pairs, skipped = _pairs(args.file, args.other, options)
    if any(after.geometry.grid is None for _, after in pairs):
        say(EVERY_SIZE)
    rows = []
    for before, after in progress(pairs, "diff"):
        with naming(before.kernel.name):
            layers = (before.layer(fold=options.fold), after.layer(fold=options.fold))
            rows.append(_growth(*layers, options.rtol))
    rows.sort(key=lambda row: -row["growth_upper"])
    if args.json:
        files = {"file": str(args.file), "other": str(args.other)}
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
    return int(bool(grown))


def _pairs(
    one: Path, other: Path, options: Options
) -> tuple[list[tuple[Placed, Placed]], dict[str, str]]:
    """The kernels of two files that have the same name and shape, and all others."""
    found, skipped = [], {}
    for path in (one, other):
        try:
            _, placed, why = kernels_of(path, options)
        except (ValueError, OSError) as error:
            raise ValueError(f"{path}: {error}") from error
        found.append({x.kernel.name: x for x in placed})
        skipped |= why
    before, after = found
    pairs = []
    for name in {**before, **after}:
        if name not in before or name not in after:
            skipped[name] = f"is not in {one if name not in before else other}"
        elif before[name].kernel.shape != after[name].kernel.shape:
            skipped[name] = "has another shape in each file"
        else:
            pairs.append((before[name], after[name]))
    if not pairs:
        raise ValueError(
            f"The files must share kernels by name and shape, got none in common with "
            f"{other}."
        )
    return pairs, skipped


def _growth(before: Layer, after: Layer, rtol: float) -> dict[str, Any]:
    """Both norms, and the ends of their ratio: 1 for a layer that is the same."""
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
        "growth_lower": lower,
        "growth_upper": upper,
    }


def _ratio(one: float, other: float) -> float:
    if other == 0:
        return 1.0 if one == 0 else math.inf
    return one / other
