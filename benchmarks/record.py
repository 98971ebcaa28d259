"""results.json: written whole after every job, and resumed from."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cases import Case

RESULTS = "results.json"
ADVICE = "Take another folder with -o, or --fresh to start anew."


class Record:
    """The results in a folder, with what else the document of `begin` says of them.

    Results that are there already are kept if their settings are the same, refused if
    not, and forgotten if the record is to be `fresh`.
    """

    def __init__(self, folder: Path, begin: dict[str, Any], *, fresh: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / RESULTS
        self.document = {**begin, "results": []}
        if self._path.exists() and not fresh:
            self.document = saved(self._path, begin["settings"], ADVICE)

    def entries(self, case: Case, job: str) -> dict[str, dict[str, Any]] | None:
        """The entries of a job on a case, by contender; None if there are none yet."""
        for result in self.document["results"]:
            if result["job"] == job and result["case"] == asdict(case):
                return {entry["contender"]: entry for entry in result["entries"]}
        return None

    def add(self, case: Case, job: str, entries: list[dict[str, Any]]) -> None:
        """Keep the entries of a job on a case, and save everything."""
        result = {"case": asdict(case), "name": case.name, "job": job}
        self.document["results"].append({**result, "entries": entries})
        write(self._path, json.dumps(self.document, indent=1).encode())


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    partial.write_bytes(content)
    partial.replace(path)


def saved(path: Path, settings: dict[str, Any], advice: str) -> dict[str, Any]:
    """The document of an earlier run, if it had the same settings.

    Where it did not, an error ends with `advice`.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        before, _ = document["settings"], document["results"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} must hold the results of such a run, got something else "
            f"({error}). {advice}"
        ) from error
    names = sorted({*before, *settings})
    changed = [name for name in names if before.get(name) != settings.get(name)]
    if changed:
        raise ValueError(
            f"{str(path)!r} must have been made with the same settings to be resumed; "
            f"these differ: {', '.join(changed)}. {advice}"
        )
    return document
