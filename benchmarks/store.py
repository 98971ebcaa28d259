"""results.json: saved whole after every job, and taken up again."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convspectra._files import replacing
from .cases import Case

RESULTS = "results.json"


class Store:
    """The results in a folder, with the settings that they were got with.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    settings : dict
        Of this run, in plain values. Results of other settings are refused.
    fresh : bool
        Whether to forget the results that are there.
    about : dict
        What else to keep about the run that begins the file.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        *,
        fresh: bool,
        about: dict[str, Any],
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._path = folder / RESULTS
        self.document: dict[str, Any] = {"settings": settings, **about, "results": []}
        if self._path.exists() and not fresh:
            self.document = _read(self._path)
            _check_settings(self._path, self.document["settings"], settings)

    def entries(self, case: Case, job: str) -> list[dict[str, Any]] | None:
        """What is known of a job on a case, None if it has not been done."""
        for found in self.document["results"]:
            if found["job"] == job and found["case"] == asdict(case):
                return found["entries"]
        return None

    def by_contender(self, case: Case, job: str) -> dict[str, dict[str, Any]]:
        """What is known of a job on a case, by the names of the contenders."""
        return {entry["contender"]: entry for entry in self.entries(case, job) or []}

    def add(self, case: Case, job: str, entries: list[dict[str, Any]]) -> None:
        """Keep the entries of a job on a case, and save everything."""
        found = {"case": asdict(case), "name": case.name, "job": job}
        self.document["results"].append({**found, "entries": entries})
        with replacing(self._path) as partial:
            partial.write_text(json.dumps(self.document, indent=1), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        _ = document["settings"], document["results"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} must hold the results of a benchmark, got something else "
            f"({error}). Take another folder with -o, or --fresh to replace it."
        ) from error
    return document


def _check_settings(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    names = sorted({*old, *new})
    other = [name for name in names if old.get(name) != new.get(name)]
    if other:
        raise ValueError(
            f"{str(path)!r} must be of the same settings to go on with it; these have "
            f"changed: {', '.join(other)}. Take another folder with -o, or --fresh to "
            "start anew."
        )
