"""What the commands on a file have in common."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .._checkpoint import Network
from .._layer.layer import Layer
from .._norm.operator_norm import NormBounds
from .._report.from_file import kernels_of
from .._report.spectra import EVERY_SIZE, reasons
from .._text import Lower, Upper
from .options import options_of
from .render import as_json, progress, say, table


def each(
    args: argparse.Namespace, work: Callable[[Layer], None], *, change: bool = False
) -> tuple[Network, dict[str, str]]:
    """Do the work for each kernel asked for; return the file, and what was skipped.

    If the kernels are to be changed, those that cannot be written are skipped, and so
    are matrices, unless the options ask for them.
    """
    options = options_of(args)
    network, placed, skipped = kernels_of(args.file, options)
    if change:
        refused = {
            one.kernel.name: reason
            for one in placed
            if (reason := _unchanged(one.kernel, args.linear))
        }
        placed = [one for one in placed if one.kernel.name not in refused]
        skipped |= refused
    for sentence in reasons(skipped):
        say(sentence)
    if any(one.geometry.grid is None for one in placed):
        say(EVERY_SIZE)
    for one in progress(placed, args.command):
        with naming(one.kernel.name):
            work(one.layer(fold=options.fold))
    return network, skipped


def _unchanged(kernel: Any, linear: bool) -> str:
    if kernel.linear and not linear:
        return "is linear, and only convolutions are changed without --linear"
    return kernel.fixed


@contextmanager
def naming(name: str, path: Path | None = None) -> Iterator[None]:
    """Put the names of the file and of the array before what is wrong with them."""
    before = "" if path is None else f"{path}: "
    if name:
        before += f"{name!a}: "
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(f"{before}{error}") from error
    except OSError as error:
        raise ValueError(f"{before}{error.strerror or error}.") from error


def about(layer: Layer) -> dict[str, Any]:
    """What a row says of a layer besides its numbers."""
    shape, grid = list(layer.weight.shape), layer.geometry.grid
    return {
        "name": layer.name,
        "shape": shape,
        **asdict(layer.geometry),
        "input": "every size" if grid is None else grid,
    }


def ends(norm: NormBounds, prefix: str = "") -> dict[str, Any]:
    """Both bounds of a norm, for a row."""
    return {
        f"{prefix}lower": Lower(norm.lower),
        f"{prefix}upper": Upper(norm.upper),
        f"{prefix}method": norm.method,
    }


def show(
    args: argparse.Namespace,
    columns: dict[str, str],
    rows: list[dict[str, Any]],
    skipped: dict[str, str],
) -> None:
    """Print rows as a table, or as JSON with what was skipped."""
    if not args.json:
        table(columns, rows)
        return
    kernels = [{k: v for k, v in row.items() if k != "input"} for row in rows]
    as_json({"file": str(args.file), "kernels": kernels, "skipped": listed(skipped)})


def listed(skipped: dict[str, str]) -> list[dict[str, str]]:
    """What was skipped, for JSON."""
    return [{"name": name, "reason": reason} for name, reason in skipped.items()]
