"""How the command shows things: rows of tables, JSON and errors."""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .._base import require
from .._layer.layer import Layer
from .._norm.operator_norm import NormBounds
from .._text import Lower, Upper, aligned, cells, sentence_of

# What each table shows: the key of a row under each heading.
_KERNEL = {"kernel": "name", "shape": "shape", "input": "input"}
VALUES = _KERNEL | {
    "values of": "values_of",
    "count": "count",
    "largest": "largest",
    "75%": "upper_quartile",
    "50%": "median",
    "25%": "lower_quartile",
    "smallest": "smallest",
    "rank": "rank",
    "stable rank": "stable_rank",
    "condition": "condition",
}
NORM = _KERNEL | {"norm from": "lower", "to": "upper", "method": "method"}
CHANGE = _KERNEL | {
    "before from": "before_lower",
    "to": "before_upper",
    "after from": "after_lower",
    "to ": "after_upper",
}
PROJECTION = CHANGE | {"distance": "distance", "gap": "gap", "rounds": "rounds"}
COMPARISON = _KERNEL | {
    "method": "method",
    "kind": "kind",
    "value": "value",
    "of upper bound": "ratio",
}
GROWTH = {
    "kernel": "name",
    "shape": "shape",
    "A from": "before_lower",
    "to": "before_upper",
    "B from": "after_lower",
    "to ": "after_upper",
    "grew from": "growth_lower",
    " to": "growth_upper",
}
PARTS = {
    "part": "name",
    "operator": "operator",
    "norm": "norm",
    "so far": "total",
    "method": "method",
}
CHECKPOINTS = {
    "checkpoint": "name",
    "layers": "layers",
    "skipped": "skipped",
    "largest norm": "upper",
    "of": "largest_norm_layer",
    "log10 of the product": "log10_product_upper",
    "error": "error",
}


def row_of(layer: Layer, unknown: Sequence[str] = ()) -> dict[str, Any]:
    """What a row says of a layer besides its numbers."""
    grid = layer.geometry.grid
    return {
        "name": layer.name,
        "shape": list(layer.weight.shape),
        **asdict(layer.geometry),
        **dict.fromkeys(unknown),
        "input": "every size" if grid is None else grid,
    }


def bounds(
    norm: NormBounds, prefix: str = "", *, attained: bool = True
) -> dict[str, Any]:
    """Both bounds of a norm, for a row; without a lower one if none is attained."""
    return {
        f"{prefix}lower": Lower(norm.lower) if attained else None,
        f"{prefix}upper": Upper(norm.upper),
        f"{prefix}method": norm.method,
    }


def listed(skipped: Mapping[str, str]) -> list[dict[str, str]]:
    """What was skipped, for JSON."""
    return [{"name": name, "reason": reason} for name, reason in skipped.items()]


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to stdout: the keys that `columns` has, under its headings."""
    known = [
        {k: "unknown" if v is None and k.endswith("lower") else v for k, v in x.items()}
        for x in rows
    ]
    show(list(columns), cells(columns, known))


def show(headings: list[str], lines: list[list[str]]) -> None:
    """Write a table to stdout: by rich on a terminal that is wide enough."""
    rich = _rich("rich.table") if sys.stdout.isatty() else None
    if rich is not None:
        console = require("rich.console", extra="cli").Console()
        shown = _rich_table(rich, headings, lines)
        endless = console.options.update(max_width=10**6)
        if console.measure(shown, options=endless).maximum <= console.width:
            console.print(shown)
            return
    sys.stdout.write(aligned(headings, lines) + "\n")


def _rich_table(rich: Any, header: list[str], lines: list[list[str]]) -> Any:
    text = require("rich.text", extra="cli").Text  # no markup in names from a file
    shown = rich.Table(box=require("rich.box", extra="cli").SIMPLE_HEAD)
    for i, heading in enumerate(header):
        shown.add_column(text(heading), justify="right" if i else "left")
    for line in lines:
        shown.add_row(*map(text, line))
    return shown


def as_json(document: Mapping[str, Any]) -> None:
    """Write a document to stdout; what is not finite, JSON has only null for."""
    text = json.dumps(_finite(document), indent=1, allow_nan=False)
    sys.stdout.write(text + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def quoted(names: Iterable[str]) -> str:
    """Return names from a file for a line of text, without control characters."""
    return ", ".join(map(ascii, names))


def say(text: str) -> None:
    """Write a line to stderr, where it does not mix with data, if that is possible."""
    with suppress(OSError):  # a full disk: the data are not to suffer from it
        sys.stderr.write(f"convspectra: {text}\n")


@contextmanager
def naming(name: str, path: Path | None = None) -> Iterator[None]:
    """Put the names of the file and of the array before what is wrong with them."""
    before = "" if path is None else f"{path}: "
    if name:
        before += f"{name!a}: "
    try:
        yield
    except (OSError, ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{before}{sentence_of(error)}") from error


def _rich(module: str) -> Any:
    """A module of rich, None where it is not installed: plain text does as well."""
    try:
        return require(module, extra="cli")
    except ModuleNotFoundError:
        return None
