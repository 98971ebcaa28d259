"""The command `convspectra`: data on stdout, talk on stderr, and an exit code."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from . import baselines
from ._arguments import geometry_of, parser
from ._array import Array
from ._bench.run import bench
from ._certify import TIGHT
from ._demo import demo_layers
from ._files import check_target, replacing, write_copy, write_npz
from ._kernels import choose, fitting, in_layout, load
from ._layer import Layer
from ._norm import NormBounds, operator_norm
from ._optional import require
from ._project import clip, project
from ._render import (
    BENCH_MEANS,
    BENCH_RATIOS,
    BENCH_TRAINING,
    CHANGE,
    COMPARISON,
    NORM,
    PROJECTION,
    VALUES,
    as_json,
    names,
    progress,
    say,
    table,
)
from ._report import COLUMNS, NOTE, STAND_IN, LayerSpectrum, Report, spectra

GONE = 141  # the code of a command whose reader has gone, as shells have it
EVERY_SIZE = (
    "grid none: norms hold for every input size; with a circular boundary, for every\n"
    "size that the stride divides."
)
METHODS = (
    baselines.reshaped_norm,
    baselines.power_iteration,
    baselines.fantastic_four,
    baselines.gram_iteration,
    baselines.tensor_norm,
)


def run() -> None:
    """Run the command and exit with its code."""
    code = main()
    if code == GONE:  # what is left in the buffer has nowhere to go: let it go quietly
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    int
        0: done; 1: what `--fail-above` asks does not hold, or an answer of ours in the
        benchmark; 2: could not run. As shells have it, 130 after an interrupt and 141
        after the reader of stdout has gone.
    """
    try:
        args = parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said what is wrong, or helped
        return int(stop.code or 0)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "values": _values,
        "norm": _norm,
        "clip": _clip,
        "project": _project,
        "compare": _compare,
        "demo": _demo,
        "bench": _bench,
    }
    try:
        code = commands[args.command](args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        say("interrupted.")
        return 130
    except BrokenPipeError:
        return GONE
    except (MemoryError, OverflowError):
        error = "The memory must suffice for the sizes asked for, and does not."
    except OSError as failed:
        error = f"{failed.strerror}." if failed.strerror else str(failed)
    except (ValueError, TypeError, ImportError, ArithmeticError) as failed:
        error = str(failed)
    file = getattr(args, "file", None)
    say(f"{file}: {error}" if file else error)
    return 2


def _values(args: argparse.Namespace) -> int:
    if args.output:
        check_target(args.output, ".npz")
    found: list[LayerSpectrum] = []

    def measure(layer: Layer) -> None:
        found.extend(spectra([layer], rtol=args.rtol).layers)

    skipped = _each(args, measure)
    rows = [{**layer.row(), "input": layer.geometry.grid} for layer in found]
    if args.output:
        write_npz(args.output, {layer.name: layer.values for layer in found})
    if args.json:
        for row, layer in zip(rows, found):
            row["values"] = layer.sorted_values().tolist()
    _show(args, VALUES, rows, skipped)
    if not all(layer.exact for layer in found):
        say(STAND_IN)
    return 0


def _norm(args: argparse.Namespace) -> int:
    rows = []

    def measure(layer: Layer) -> None:
        norm = operator_norm(layer.weight, layer.geometry, args.rtol)
        if args.fail_above is not None and norm.lower <= args.fail_above < norm.upper:
            norm = operator_norm(layer.weight, layer.geometry, min(args.rtol, TIGHT))
        rows.append(_about(layer) | _ends(norm))

    skipped = _each(args, measure)
    _show(args, NORM, rows, skipped)
    if args.fail_above is None:
        return 0
    above = [row["name"] for row in rows if row["upper"] > args.fail_above]
    if above:
        say(f"above {args.fail_above:g}: {names(above)}.")
    return int(bool(above))


def _clip(args: argparse.Namespace) -> int:
    def change(layer: Layer) -> tuple[Array, dict[str, Any]]:
        weight, geometry = layer.weight, layer.geometry
        before = operator_norm(weight, geometry, args.rtol)
        clipped = clip(
            weight, geometry, args.max_norm, args.rounds, min_norm=args.min_norm
        )
        after = operator_norm(clipped, geometry, args.rtol)
        return clipped, _ends(before, "before_") | _ends(after, "after_")

    rows = _change(args, CHANGE, change)
    outside = [row["name"] for row in rows if row["after_upper"] > args.max_norm]
    if outside:
        say(
            f"cropping has left these above {args.max_norm:g}: {names(outside)}. "
            "Take more --rounds, or `convspectra project`, which ends inside."
        )
    return 0


def _project(args: argparse.Namespace) -> int:
    def change(layer: Layer) -> tuple[Array, dict[str, Any]]:
        found = project(layer.weight, layer.geometry, args.max_norm, args.rtol)
        return found.weight, {
            **_ends(found.before, "before_"),
            **_ends(found.after, "after_"),
            "distance": float(found.distance),
            "gap": float(found.gap),
            "rounds": int(found.rounds),
        }

    _change(args, PROJECTION, change)
    return 0


def _compare(args: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []

    def compare(layer: Layer) -> None:
        norm = operator_norm(layer.weight, layer.geometry, args.rtol)
        found = [
            ("operator_norm", "certified lower end", float(norm.lower)),
            ("operator_norm", "certified upper end", float(norm.upper)),
        ]
        for method in METHODS:
            baseline = method(layer.weight, layer.geometry)
            found.append((baseline.method, baseline.kind, float(baseline.value)))
        for name, kind, value in found:
            ratio = value / float(norm.upper) if norm.upper else None
            row = {"method": name, "kind": kind, "value": value, "ratio": ratio}
            rows.append(_about(layer) | row)

    skipped = _each(args, compare)
    _show(args, COMPARISON, rows, skipped)
    return 0


def _demo(args: argparse.Namespace) -> int:
    check_target(args.output, ".png", ".pdf", ".svg")
    layers = progress(demo_layers(), "demo")
    report = Report(tuple(spectra([layer]).layers[0] for layer in layers))
    if args.json:
        as_json({"kernels": report.rows()})
    else:
        table(COLUMNS, report.rows())
    say(NOTE)
    try:
        from . import plot
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        say(f"no picture: {error}")
        return 0
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    plot.draw_report(report, figure.subplots())
    with replacing(args.output) as partial:
        figure.savefig(partial, format=args.output.suffix[1:], dpi=150)
    say(f"the picture is in {args.output}.")
    return 0


def _bench_training(args: argparse.Namespace) -> int:
    require("torch", extra="torch")
    from ._bench.training import training

    found = training(args.output)
    if args.json:
        as_json(found)
    else:
        table(BENCH_TRAINING, [found | found["median_seconds"]])
    say(f"training.json is in {args.output}.")
    return int(not found["right"])


def _bench(args: argparse.Namespace) -> int:
    if args.training:
        return _bench_training(args)
    jobs = args.jobs.split(",")
    found, right = bench(args.output, full=args.full, jobs=jobs, fresh=args.fresh)
    if args.json:
        as_json(asdict(found))
    else:
        table(BENCH_RATIOS, found.ratios)
        sys.stdout.write("\n")
        table(BENCH_MEANS, found.means)
    say(f"results.md, figure.png and results.json are in {args.output}.")
    return int(not right)


def _change(
    args: argparse.Namespace,
    columns: dict[str, str],
    change: Callable[[Layer], tuple[Array, dict[str, Any]]],
) -> list[dict[str, Any]]:
    """Write a copy of the file with changed kernels; show and return what changed."""
    check_target(args.output, args.file.suffix)
    rows, arrays = [], {}

    def keep(layer: Layer) -> None:
        weight, row = change(layer)
        rows.append(_about(layer) | row)
        arrays[layer.name] = in_layout(weight, args.layout)

    skipped = _each(args, keep)
    write_copy(args.file, args.output, arrays)
    _show(args, columns, rows, skipped)
    return rows


def _each(
    args: argparse.Namespace, work: Callable[[Layer], None]
) -> list[tuple[str, str]]:
    """Do the work for each kernel asked for; return what was skipped, and why."""
    geometry = geometry_of(args)
    kernels, skipped = choose(args.file, args.key)
    if args.key is None:
        kernels, misfits = fitting(kernels, geometry, args.layout)
        skipped = skipped + misfits
    for reason in dict.fromkeys(reason for _, reason in skipped):
        alike = names(name for name, why in skipped if why == reason)
        say(f"skipped ({reason}): {alike}.")
    if args.grid is None:
        say(EVERY_SIZE)
    for entry in progress(kernels, args.command):
        with _naming(entry.name):
            work(load(args.file, entry, geometry, args.layout))
    return skipped


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the name of the array before what is wrong with it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name!a}: {error}") from error


def _about(layer: Layer) -> dict[str, Any]:
    shape, grid = list(layer.weight.shape), layer.geometry.grid
    return {
        "name": layer.name,
        "shape": shape,
        **asdict(layer.geometry),
        "input": "every size" if grid is None else grid,
    }


def _ends(norm: NormBounds, prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}lower": float(norm.lower),
        f"{prefix}upper": float(norm.upper),
        f"{prefix}method": norm.method,
    }


def _show(
    args: argparse.Namespace,
    columns: dict[str, str],
    rows: list[dict[str, Any]],
    skipped: list[tuple[str, str]],
) -> None:
    if not args.json:
        table(columns, rows)
        return
    reasons = [{"name": name, "reason": reason} for name, reason in skipped]
    kernels = [{k: v for k, v in row.items() if k != "input"} for row in rows]
    as_json({"file": str(args.file), "kernels": kernels, "skipped": reasons})
