"""The main command: every layer of a network, as a table, on a page, in figures.

Of several checkpoints there is a result for each, and their norms over training.
"""

import argparse
import os
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._report.backends import CLUSTERS
from .._report.from_file import document_of, document_on, report_on
from .._report.many import (
    Outcome,
    each_checkpoint,
    natural_key,
    shard,
    stamps,
    trajectories,
)
from .._report.spectra import summary_lines
from .._text import Upper, tree
from .embedded import file_or_embedded
from .options import options_of
from .outputs import (
    as_csv,
    check_folder,
    make_folder,
    new_figure,
    plotting,
    remove_older,
    save,
    save_figures,
    write_page,
)
from .progress import name_of, progress, work_of
from .render import CHECKPOINTS, as_json, naming, say, show, table

INTERRUPTED = 130  # the exit code of a command that was interrupted, as shells have it
FOLDER = Path("convspectra-report")


def report(args: argparse.Namespace) -> int:
    """Report on one network, on several, or on the one that comes with the package."""
    is_shared = bool(args.shard or args.scheduler or args.backend in CLUSTERS)
    if is_shared and not args.files:
        raise ValueError(
            "`--shard`, `--backend` and `--scheduler` must come with the files to "
            "share, got none. Name them, or leave these options out."
        )
    if len(args.files) > 1 or is_shared:
        return _several(args, _folder(args) or FOLDER)
    with file_or_embedded(args.files[0] if args.files else None) as path:
        return _one(args, path)


def _one(args: argparse.Namespace, path: Path) -> int:
    options = options_of(args)
    args.file = path  # which errors name from here on
    folder = _folder(args)
    if folder is not None:
        check_folder(folder, args.figures)
    name = path.absolute().name  # that of "." too
    with progress("report", f"reading {name}") as shown:
        watch = partial(shown.of, name=name_of, cost=work_of)
        found = report_on(path, options, watch)
    document = document_of(found.report, name, found.notes)
    if args.json:
        as_json(document)
    elif args.csv:
        as_csv(found.report.rows())
    else:
        headings, lines = found.report.table()
        show(headings, tree(lines))
        for sentence in summary_lines(found.report):
            say(sentence)
    for sentence in found.notes:
        say(sentence)
    if folder is not None:
        make_folder(folder, args.figures)
        written = write_page(document, folder)
        written += save_figures(found, folder, args.figures)
        remove_older(folder, written)
        say(f"in {folder}: {', '.join(written)}.")
    return INTERRUPTED if found.interrupted else 0


def _folder(args: argparse.Namespace) -> Path | None:
    """Where results go: where the user says, else nowhere if only data is asked for."""
    if args.output is not None:
        return args.output
    return None if args.json or args.csv else FOLDER


def _several(args: argparse.Namespace, folder: Path) -> int:
    """Report on each file; those that were done before are not read again."""
    paths = sorted(dict.fromkeys(args.files), key=natural_key)
    if args.shard:
        paths = shard(paths, *args.shard)
    check_folder(folder, args.figures)
    options = options_of(args)
    like = None
    if options.like is not None:
        with naming("", options.like):
            like = stamps(options.like.absolute())
    with progress("report") as shown:
        outcomes = each_checkpoint(
            paths,
            partial(document_on, options=options),
            folder / "results",
            # What results depend on besides the files.
            key={
                "options": asdict(options) | {"like": like},
                "version": version("convspectra"),
            },
            jobs=args.jobs,
            backend=args.backend,
            scheduler=args.scheduler,
            advance=shown.count(len(paths)),
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
        "largest_norm_layer": largest.get("name"),
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
    make_folder(folder, suffix)
    written = write_page({**last, "notes": notes, "trajectories": norms}, folder)
    plot = plotting()
    if norms is not None and plot is not None:
        figure = new_figure(9, 4.8)
        plot.draw_trajectories(norms, figure.subplots())
        save(figure, folder / f"trajectories.{suffix}")
        written.append(f"trajectories.{suffix}")
    remove_older(folder, written)
    say(f"in {folder}: {', '.join(written)}; layers are those of {good[-1].path}.")


def _short_names(paths: list[Path]) -> list[str]:
    """The paths without the folder that they share, whole if they share none."""
    whole = [path.absolute() for path in paths]
    try:
        shared = os.path.commonpath([path.parent for path in whole])
    except ValueError:  # on Windows: they are on different drives
        return [str(path) for path in whole]
    return [str(path.relative_to(shared)) for path in whole]
