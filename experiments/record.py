"""result.json: settings, versions and what came out, saved after every unit."""

import json
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.machine import computer, versions
from benchmarks.record import saved, write

from .claims import Claim, verdicts
from .processes import is_first

RESULT = "result.json"
MODULES = ("convspectra", "numpy", "torch", "tensorflow", "matplotlib", "onnx", "PIL")
ADVICE = "Name another folder with --out, or remove that file."


class Record:
    """The results of one experiment, by the names of its units.

    Parameters
    ----------
    folder : Path
        Of this experiment: `options.folder(name)`.
    settings : dict
        Everything that decides the results, seeds included, as `json` can write it.
        Results that are in the folder already are kept if theirs are the same, and
        refused if not.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / RESULT
        settings, own = json.loads(json.dumps(settings)), versions(MODULES)
        self.document: dict[str, Any] = {
            "experiment": folder.name,
            "settings": settings,
            "versions": own,
            "machines": {},  # how many units each gave
            "commits": {},
            "started": now(),
            "results": {},
        }
        if self._path.exists():
            self.document = saved(self._path, settings, ADVICE)
            later = self.document.setdefault("later_versions", [])  # of resumed runs
            if own not in (self.document["versions"], *later):
                later.append(own)

    @property
    def results(self) -> dict[str, Any]:
        """What every finished unit gave."""
        return self.document["results"]

    def keep(self, unit: str, result: Any, where: str | None = None) -> None:
        """Add the result of a unit and the machine it is of, and save everything."""
        self.document["results"][unit] = result
        for counts, own in (("machines", where or machine()), ("commits", commit())):
            units = self.document[counts]
            units[own] = units.get(own, 0) + 1
        self._save()

    def conclude(
        self, claims: Sequence[Claim], summary: Any = None, tables: str = ""
    ) -> list[Claim]:
        """Add the verdicts, and what sums up the results, and save everything.

        The verdicts, with further `tables`, are also in summary.md.
        """
        made = {"summary": summary, "claims": [claim.as_dict() for claim in claims]}
        self.document |= made | {"ended": now()}
        self._save()
        if is_first():
            text = f"{verdicts(claims)}\n\n{tables}".rstrip()
            write(self._path.with_name("summary.md"), f"{text}\n".encode())
        return list(claims)

    def _save(self) -> None:
        if not is_first():  # of the processes of a torchrun
            return
        write(self._path, json.dumps(self.document, indent=1).encode() + b"\n")


def now() -> str:
    """The time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def machine() -> str:
    """The processor, the cores and the system, in one line."""
    found = computer()
    return f"{found['processor']}, {found['cores']} cores, {found['system']}"


@cache
def commit() -> str:
    """The commit of the folder that this file lies in, or "unknown"."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        git = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return git.stdout.strip()
