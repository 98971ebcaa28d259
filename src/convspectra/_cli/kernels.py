"""The commands on the kernels of one file: values, norm, clip, project, compare."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import baselines
from .._arrays.array import Array, to_numpy
from .._bound.clip import clip
from .._bound.project import project
from .._checkpoint import Kernel, Network
from .._checkpoint.folder import weights_file
from .._checkpoint.select import StoredLayer, select
from .._layer.layer import Layer
from .._norm.rounding import TIGHT
from .._report.affordable import too_large
from .._report.layer_spectrum import LayerSpectrum, layer_spectrum
from .._report.partly_known import NO_LOWER, norm_of
from .._report.spectra import EVERY_SIZE, SURROGATE, reasons
from .._text import Lower, Upper
from .options import options_of
from .outputs import check_target, write_npz
from .progress import name_of, progress, work_of
from .render import (
    CHANGE,
    COMPARISON,
    NORM,
    PROJECTION,
    VALUES,
    as_json,
    bounds,
    listed,
    naming,
    quoted,
    row_of,
    say,
    table,
)

METHODS = (
    baselines.reshaped_norm,
    baselines.power_iteration,
    baselines.fantastic_four,
    baselines.gram_iteration,
    baselines.tensor_norm,
)
Unknown = tuple[str, ...]  # fields of a geometry
SIDES = {"upper bound": Upper, "lower bound": Lower, "estimate": float}


def values(args: argparse.Namespace) -> int:
    """Every singular value of each kernel."""
    if args.output:
        check_target(args.output, ".npz", _inputs(args))
    found: list[LayerSpectrum] = []

    def measure(layer: Layer, _: Unknown) -> None:
        found.append(layer_spectrum(layer, args.rtol, budget=args.budget))

    _, skipped = _each(args, measure, every_size=False)
    rows = [{**layer.row(), "input": layer.geometry.grid} for layer in found]
    if args.output:
        write_npz(
            args.output, {x.name: x.values for x in found if x.values is not None}
        )
    if args.json:
        for row, layer in zip(rows, found):
            row["values"] = layer.sorted_values().tolist()
    _show(args, VALUES, rows, skipped)
    if not all(layer.exact for layer in found):
        say(SURROGATE)
    return 0


def norm(args: argparse.Namespace) -> int:
    """The norm of each kernel, and whether all are within a level."""
    rows = []

    def measure(layer: Layer, unknown: Unknown) -> None:
        norm = norm_of(layer, unknown, args.rtol, args.budget)
        if args.fail_above is not None and norm.lower <= args.fail_above < norm.upper:
            norm = norm_of(layer, unknown, min(args.rtol, TIGHT), args.budget)
        attained = not unknown or norm.lower != NO_LOWER
        rows.append(row_of(layer, unknown) | bounds(norm, attained=attained))

    _, skipped = _each(args, measure)
    _show(args, NORM, rows, skipped)
    if args.fail_above is None:
        return 0
    above = [row["name"] for row in rows if row["upper"] > args.fail_above]
    if above:
        say(f"above {args.fail_above:g}: {quoted(above)}.")
    return int(bool(above))


def clipped(args: argparse.Namespace) -> int:
    """Clip and crop each kernel, and write a copy of the file."""

    def change(layer: Layer, unknown: Unknown) -> tuple[Array, dict[str, Any]]:
        found = clip(
            layer.weight,
            layer.geometry,
            args.max_norm,
            args.rounds,
            min_norm=args.min_norm,
        )
        before = norm_of(layer, (), args.rtol, args.budget)
        changed = replace(layer, weight=found)
        after = norm_of(changed, (), args.rtol, args.budget)
        return found, {
            **bounds(before, "before_", attained=not unknown),
            **bounds(after, "after_", attained=not unknown),
        }

    rows = _change(args, CHANGE, change)
    most = args.max_norm * (1 + args.rtol)  # no more than what is not known of the norm
    outside = [row["name"] for row in rows if row["after_upper"] > most]
    if outside:
        say(
            f"after cropping these are above {args.max_norm:g}: {quoted(outside)}. "
            "Use more --rounds, or `convspectra project`, which guarantees the bound."
        )
    return 0


def projected(args: argparse.Namespace) -> int:
    """Project each kernel into the ball, and write a copy of the file."""

    def change(layer: Layer, unknown: Unknown) -> tuple[Array, dict[str, Any]]:
        found = project(layer.weight, layer.geometry, args.max_norm, args.rtol)
        return found.weight, {
            **bounds(found.before, "before_", attained=not unknown),
            **bounds(found.after, "after_", attained=not unknown),
            "distance": float(found.distance),
            "gap": Upper(found.gap),
            "rounds": int(found.rounds),
        }

    _change(args, PROJECTION, change)
    return 0


def compare(args: argparse.Namespace) -> int:
    """The certified norm of each kernel beside what other methods say."""
    rows: list[dict[str, Any]] = []

    def measure(layer: Layer, _: Unknown) -> None:
        norm = norm_of(layer, (), args.rtol, args.budget)
        found = [
            ("operator_norm", "attained lower bound", Lower(norm.lower)),
            ("operator_norm", "certified upper bound", Upper(norm.upper)),
        ]
        for method in METHODS:
            baseline = method(layer.weight, layer.geometry)
            value = SIDES[baseline.kind](baseline.value)
            found.append((baseline.method, baseline.kind, value))
        for name, kind, value in found:
            ratio = value / float(norm.upper) if norm.upper else None
            row = {"method": name, "kind": kind, "value": value, "ratio": ratio}
            rows.append(row_of(layer) | row)

    _, skipped = _each(args, measure, every_size=False)
    _show(args, COMPARISON, rows, skipped)
    return 0


def _check_grid(layer: StoredLayer) -> None:
    """Refuse a layer whose input size nobody states."""
    if layer.geometry.grid is None:
        raise ValueError(
            "The input size must be known here, and is not. State --grid, or --input "
            "for a file with a graph."
        )


def _change(
    args: argparse.Namespace,
    columns: dict[str, str],
    change: Callable[[Layer, Unknown], tuple[Array, dict[str, Any]]],
) -> list[dict[str, Any]]:
    """Write a copy of the file with changed kernels; show and return what changed."""
    suffix = weights_file(args.file).suffix.lower()
    check_target(args.output, suffix, _inputs(args))
    rows, arrays = [], {}

    def keep(layer: Layer, unknown: Unknown) -> None:
        weight, row = change(layer, unknown)
        rows.append(row_of(layer, unknown) | row)
        arrays[layer.name] = to_numpy(weight)

    network, skipped = _each(args, keep, change=True)
    network.write(args.output, arrays)
    _show(args, columns, rows, skipped)
    return rows


def _inputs(args: argparse.Namespace) -> list[Path | None]:
    """The files that a command reads."""
    return [weights_file(args.file), args.like, args.table]


def _each(
    args: argparse.Namespace,
    work: Callable[[Layer, Unknown], None],
    *,
    change: bool = False,
    every_size: bool = True,
) -> tuple[Network, dict[str, str]]:
    """Do the work for each kernel asked for; return the file, and what was skipped.

    The work gets a layer, and the fields of its geometry that are unknown. If the
    kernels are to be changed, those that cannot be written are skipped, and so are
    matrices, unless the options ask for them. If the work is not for every input size
    at once, a layer without a size is an error.
    """
    selected = select(args.file, options_of(args))
    layers, skipped = selected.layers, selected.skipped
    if change:
        unchanged = {x.name: _unchanged(x.kernel, args.linear) for x in layers}
        layers = [layer for layer in layers if not unchanged[layer.name]]
        skipped |= {name: reason for name, reason in unchanged.items() if reason}
    layers, skipped = _that_fit(layers, skipped)
    for sentence in reasons(skipped):
        say(sentence)
    if every_size and any(layer.geometry.grid is None for layer in layers):
        say(EVERY_SIZE)
    for sentence in selected.network.advice:
        say(sentence)
    if not every_size:
        for layer in layers:
            with naming(layer.name):
                _check_grid(layer)
    with progress(args.command) as shown:
        for layer in shown.of(layers, name_of, work_of):
            with naming(layer.name):
                work(layer.load(), layer.unknown_without_size)
    return selected.network, skipped


def _that_fit(
    layers: list[StoredLayer], skipped: dict[str, str]
) -> tuple[list[StoredLayer], dict[str, str]]:
    """The layers that are not too large, and why others are skipped.

    If all are too large, that is an error.
    """
    large = {layer.name: too_large(layer) for layer in layers}
    fitting = [layer for layer in layers if not large[layer.name]]
    if layers and not fitting:
        name, why = next(iter(large.items()))
        raise ValueError(f"{name!a} {why}.")
    return fitting, skipped | {name: why for name, why in large.items() if why}


def _unchanged(kernel: Kernel, linear: bool) -> str:
    """Why a kernel stays as it is; empty if it is to be changed."""
    if kernel.linear and not linear:
        return "is linear, and only convolutions are changed without --linear"
    return kernel.not_writable_because


def _show(
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
