"""The main command: every layer of a network, as a table, on a page, in figures."""

import argparse
from contextlib import ExitStack
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path

from .._checkpoint.select import Options
from .._report.from_file import document_of, report_on
from .._report.spectra import COLUMNS, summary_lines
from .._text import tree
from .checkpoints import checkpoints
from .options import options_of
from .outputs import as_csv, check_folder, make_folder, save_figures, write_page
from .render import as_json, progress, say, table

FOLDER = Path("convspectra-report")
EMBEDDED = "cifar10_resnet.onnx"


def report(args: argparse.Namespace) -> int:
    """Report on one network, on several, or on the one that comes with the package."""
    if args.shard and not args.files:
        raise ValueError("`--shard` must come with the files to share, got none.")
    if len(args.files) > 1 or args.shard:
        return checkpoints(args, _folder(args) or FOLDER)
    with ExitStack() as stack:
        if args.files:
            (path,) = args.files
        else:
            source = files("convspectra") / "_data" / EMBEDDED
            path = stack.enter_context(as_file(source))
            say("no file given: a residual network for CIFAR-10 that comes with this.")
        return _one(args, path, options_of(args))


def _one(args: argparse.Namespace, path: Path, options: Options) -> int:
    args.file = path  # which errors name
    folder = _folder(args)
    if folder is not None:
        check_folder(folder)
    found = report_on(path, options, partial(progress, label="report"))
    document = document_of(found.report, path.name, found.notes)
    if args.json:
        as_json(document)
    elif args.csv:
        as_csv(found.report.rows())
    else:
        table(COLUMNS, found.report.rows(), tree)
        for sentence in summary_lines(found.report):
            say(sentence)
    for sentence in found.notes:
        say(sentence)
    if folder is not None:
        make_folder(folder)
        written = write_page(document, folder)
        written += save_figures(found, folder, args.figures)
        say(f"in {folder}: {', '.join(written)}.")
    return 0


def _folder(args: argparse.Namespace) -> Path | None:
    """Where results go: where the user says, else nowhere if only data is asked for."""
    if args.output is not None:
        return args.output
    return None if args.json or args.csv else FOLDER
