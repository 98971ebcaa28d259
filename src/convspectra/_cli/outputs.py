"""What a report leaves behind: its folder, its data and its page."""

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._base import replacing
from .._report.page import page
from .._text import cell
from .render import say

FIGURES = ("spectra", "loudest", "trajectories")


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made, before any work is done for it."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(
            f"The output must be a folder that can be written, got {str(folder)!r}."
        )


def make_folder(folder: Path) -> None:
    """Make the folder for the results, without a page or figures of earlier ones."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The output must be a folder that can be made, got {str(folder)!r}: "
            f"{error.strerror}."
        ) from error
    for name in ("report", *FIGURES):
        for old in folder.glob(f"{name}.*"):
            old.unlink()


def write_page(document: dict[str, Any], folder: Path) -> list[str]:
    """Write report.json and, where plotly is installed, report.html; return these."""
    with replacing(folder / "report.json") as partial:
        partial.write_text(json.dumps(document, indent=1), encoding="utf-8")
    try:
        text = page(document)
    except ModuleNotFoundError as error:
        if error.name != "plotly":
            raise
        say(f"no page: {error}")
        return ["report.json"]
    with replacing(folder / "report.html") as partial:
        partial.write_text(text, encoding="utf-8")
    return ["report.html", "report.json"]


def as_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows to stdout, under the keys of the first; sizes are joined by x."""
    writer = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
            writer.writeheader()
        plain = {
            k: cell(v) if isinstance(v, list | tuple) else v for k, v in row.items()
        }
        writer.writerow(plain)
