"""How the command shows things: tables, JSON, and progress on a terminal."""

import json
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ._optional import require
from ._report import aligned, cell

T = TypeVar("T")
PATIENCE = 1.0  # seconds of work before a progress bar appears


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to stdout: the keys `columns` names, under its headings."""
    cells = [[cell(row[key]) for key in columns.values()] for row in rows]
    rich = _rich("rich.table") if sys.stdout.isatty() else None
    if rich is None:
        sys.stdout.write(aligned(list(columns), cells) + "\n")
        return
    text = require("rich.text", extra="cli").Text  # no markup in names from a file
    shown = rich.Table(box=require("rich.box", extra="cli").SIMPLE_HEAD)
    for i, heading in enumerate(columns):
        shown.add_column(text(heading), justify="right" if i else "left", no_wrap=True)
    for line in cells:
        shown.add_row(*map(text, line))
    require("rich.console", extra="cli").Console().print(shown)


def as_json(document: Mapping[str, Any]) -> None:
    """Write a document to stdout."""
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def say(text: str) -> None:
    """Write a line to stderr, where it does not mix with data."""
    sys.stderr.write(f"convspectra: {text}\n")


def progress(items: Sequence[T], label: str) -> Iterator[T]:
    """Yield the items; on a terminal, with a bar once the work has taken a second."""
    with _bar(len(items), label) as advance:
        for item in items:
            yield item
            advance()


@contextmanager
def _bar(total: int, label: str) -> Iterator[Any]:
    rich = _rich("rich.progress") if sys.stderr.isatty() else None
    if rich is None:
        yield lambda: None
        return
    console = require("rich.console", extra="cli").Console(stderr=True)
    parts: Iterable[Any] = (*rich.Progress.get_default_columns(), rich.SpinnerColumn())
    bar = rich.Progress(*parts, console=console, transient=True)
    task = bar.add_task(label, total=total)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda: bar.advance(task)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def _rich(module: str) -> Any:
    """A module of rich, None where it is not installed: plain text does as well."""
    try:
        return require(module, extra="cli")
    except ModuleNotFoundError:
        return None
