"""Several checkpoints: a result for each, and their norms over training."""

import argparse
import os
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._checkpoint.select import Options
from .._report.from_file import document_on
from .._report.many import Outcome, each_checkpoint, natural_key, shard, trajectories
from .._text import Upper
from .options import options_of
from .outputs import (
    as_csv,
    check_folder,
    make_folder,
    new_figure,
    plotting,
    save,
    write_page,
)
from .render import CHECKPOINTS, as_json, counted, say, table


def checkpoints(args: argparse.Namespace, folder: Path) -> int:
    """Report on each file; those that were done before are not looked at again."""
    paths = sorted(dict.fromkeys(args.files), key=natural_key)
    if args.shard:
        paths = shard(paths, *args.shard)
    check_folder(folder)
    options = options_of(args)
    with counted(len(paths), "report") as advance:
        outcomes = each_checkpoint(
            paths,
            partial(document_on, options=options),
            folder / "results",
            key=_key(options),
            jobs=args.jobs,
            backend=args.backend,
            scheduler=args.scheduler,
            advance=advance,
        )
    rows = [_row(outcome) for outcome in outcomes]
    _show(args, rows, outcomes)
    before = sum(outcome.was_done_before for outcome in outcomes)
    if before:
        say(f"{before} of {len(outcomes)} were done before.")
    if not args.shard:
        _conclude(outcomes, folder, args.figures)
    failed = sum(outcome.error is not None for outcome in outcomes)
    if failed:
        say(f"{failed} of {len(outcomes)} could not be read.")
    return 2 if outcomes and failed == len(outcomes) else 0


def _key(options: Options) -> dict[str, Any]:
    """What results depend on besides the files: the options, and this version."""
    return {"options": asdict(options), "version": version("convspectra")}


def _row(outcome: Outcome) -> dict[str, Any]:
    document = outcome.document or {"layers": [], "summary": {}}
    largest = max(document["layers"], key=lambda row: row["norm_upper"], default={})
    upper = largest.get("norm_upper")
    product = document["summary"].get("log10_product_upper")
    return {
        "name": str(outcome.path),
        "layers": len(document["layers"]) if outcome.document else None,
        "skipped": document["summary"].get("skipped"),
        "upper": None if upper is None else Upper(upper),
        "loudest": largest.get("name"),
        "log10_product_upper": None if product is None else Upper(product),
        "error": outcome.error,
    }


def _show(
    args: argparse.Namespace, rows: list[dict[str, Any]], outcomes: list[Outcome]
) -> None:
    if args.json:
        documents = [outcome.document for outcome in outcomes]
        found = [row | {"document": x} for row, x in zip(rows, documents)]
        as_json({"checkpoints": found})
    elif args.csv:
        as_csv(
            {"checkpoint": str(outcome.path), **_without_drawings(row)}
            for outcome in outcomes
            for row in (outcome.document or {"layers": []})["layers"]
        )
        for row in rows:
            if row["error"] is not None:
                say(f"{row['name']}: {row['error']}")
    else:
        table(CHECKPOINTS, rows)


def _without_drawings(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("curve", "heat")}


def _conclude(outcomes: list[Outcome], folder: Path, suffix: str) -> None:
    """Write the page, of the last checkpoint and all norms, and draw these."""
    good = [outcome for outcome in outcomes if outcome.document is not None]
    if not good or good[-1].document is None:
        return
    norms = trajectories(good)
    if norms is not None:
        norms |= {"checkpoints": _short_names([outcome.path for outcome in good])}
    last = good[-1].document
    notes = [
        f"Layers are those of the last of {len(good)} checkpoints.",
        *last["notes"],
    ]
    make_folder(folder)
    written = write_page({**last, "notes": notes, "trajectories": norms}, folder)
    plot = plotting()
    if norms is not None and plot is not None:
        figure = new_figure(9, 4.8)
        plot.draw_trajectories(norms, figure.subplots())
        save(figure, folder / f"trajectories.{suffix}")
        written.append(f"trajectories.{suffix}")
    say(f"in {folder}: {', '.join(written)}; layers are those of {good[-1].path}.")


def _short_names(paths: list[Path]) -> list[str]:
    """The paths without the folder that they share."""
    shared = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    return [str(path.absolute().relative_to(shared)) for path in paths]
