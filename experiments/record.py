"""result.json: settings, versions and what came out, saved after every unit."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .claims import Claim, verdicts
from .processes import is_first

RESULT = "result.json"
PACKAGES = ("convspectra", "numpy", "torch", "matplotlib", "onnx", "Pillow")


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
        settings = json.loads(json.dumps(settings))
        self.document: dict[str, Any] = {
            "experiment": folder.name,
            "settings": settings,
            "versions": versions(),
            "machine": machine(),
            "commit": commit(),
            "started": now(),
            "results": {},
        }
        if self._path.exists():
            self.document = _read(self._path, settings)

    @property
    def results(self) -> dict[str, Any]:
        """What every finished unit gave."""
        return self.document["results"]

    def keep(self, unit: str, result: Any) -> None:
        """Add the result of a unit, and save everything."""
        self.document["results"][unit] = result
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


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    partial.write_bytes(content)
    partial.replace(path)


def now() -> str:
    """The time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str | None]:
    """The versions of what the numbers depend on, None where it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def machine() -> dict[str, Any]:
    """The processor and the system."""
    info, processor = Path("/proc/cpuinfo"), platform.processor()
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        models = (line for line in lines if line.startswith("model name"))
        processor = next(models, processor).rpartition(":")[2].strip()
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": platform.platform(),
    }


def commit() -> str | None:
    """The commit of the folder that this file lies in, if it has one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        git = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return git.stdout.strip()


def _read(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        before, _ = document["settings"], document["results"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} must hold the results of an experiment, got something else "
            f"({error}). Name another folder with --out, or remove that file."
        ) from error
    names = sorted({*before, *settings})
    changed = [name for name in names if before.get(name) != settings.get(name)]
    if changed:
        raise ValueError(
            f"{str(path)!r} must have been made with the same settings to be resumed; "
            f"these differ: {', '.join(changed)}. Name another folder with --out, or "
            "remove that file."
        )
    return document
