"""Work on many checkpoints: each once, beside others, with its result kept on disk."""

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._base import replacing, size
from .._checkpoint import files_of
from .._text import sentence_of
from .backends import Attempt, Run, Work, running

# Nanoseconds within which two changes may leave one and the same time stamp: no file
# system in use has coarser ones.
YOUNG = 2 * 10**9


Stamp = list[Any]  # the path of a file, its size, and when it was changed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a checkpoint: a document, or a sentence that says why not."""

    path: Path
    document: dict[str, Any] | None
    error: str | None
    was_done_before: bool = False


def each_checkpoint(
    paths: Iterable[Path],
    work: Work,
    folder: Path,
    *,
    key: dict[str, Any],
    jobs: int = 1,
    backend: str = "loky",
    scheduler: str | None = None,
    advance: Callable[[], object] = lambda: None,
) -> list[Outcome]:
    """Call `work` for every checkpoint whose result is not in `folder` yet.

    `work` takes an absolute path and returns what `json` can write; what it raises is
    the outcome of that checkpoint. The work is done in `jobs` processes, with one in
    this, or on the Dask or Ray cluster at the address `scheduler`: there it must be
    picklable, and all paths mean the same files.

    This process alone writes results, each as soon as it is back. However a run ends,
    the next goes on from what is there, and several may share a folder. A result holds
    while path, size and time stamp of all its files are the same, and `key`: the
    options and versions that it depends on. Errors are written too, and tried again
    next time.
    Outcomes have the order of `paths`; `advance` is called after each different one.
    """
    workers = running(work, jobs, backend, scheduler)
    given, key = list(paths), json.loads(json.dumps(key))
    _make(folder)
    outcomes: dict[Path, Outcome] = {}
    todo: dict[Path, dict[str, Any]] = {}

    def settle(outcome: Outcome) -> None:
        outcomes[outcome.path] = outcome
        advance()

    def keep(done: Attempt) -> None:
        result = {"document": done.document, "error": done.error}
        with replacing(_target(folder, done.path)) as partial:
            partial.write_text(json.dumps(todo[done.path] | result), encoding="utf-8")
        settle(Outcome(done.path, done.document, done.error))

    for path in dict.fromkeys(path.absolute() for path in given):
        try:
            identity = _identity(path, key)
            document = _done(_target(folder, path), identity)
        except (OSError, ValueError) as error:
            settle(Outcome(path, None, sentence_of(error)))
            continue
        if document is None:
            todo[path] = identity
        else:
            settle(Outcome(path, document, None, was_done_before=True))
    if todo:
        _settle(list(todo), workers, keep)
    return [replace(outcomes[path.absolute()], path=path) for path in given]


def shard(paths: Iterable[Path], number: int, count: int) -> list[Path]:
    """Return the shard `number`, from 1, of `count` that make up all the paths.

    Every `count`-th of the sorted paths: shards that different machines take from the
    same paths have nothing in common, and miss nothing.
    """
    if not 1 <= size("number", number, least=1) <= size("count", count, least=1):
        raise ValueError(
            f"A shard must be a number from 1 to the count of shards, got {number} of "
            f"{count}."
        )
    given = list(paths)
    mine = set(sorted(set(given), key=natural_key)[number - 1 :: count])
    return [path for path in given if path in mine]


def natural_key(path: Path) -> tuple[Any, ...]:
    """Return a key that sorts numbers in names by their size: step2 before step10."""
    parts: list[Any] = re.split("([0-9]+)", str(path))  # text at even places
    digits = [part.lstrip("0") for part in parts[1::2]]
    # By their count first, not as `int`: that refuses thousands of them.
    parts[1::2] = [(len(part), part) for part in digits]
    return tuple(parts), str(path)


def trajectories(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return the certified bounds of every layer's norm over the checkpoints.

    `{"checkpoints": [...], "layers": {name: {"lower": [...], "upper": [...]}}}` with an
    entry for every outcome, None where a layer or a document is missing. None if fewer
    than two outcomes have a document.
    """
    found = [_rows(outcome.document) for outcome in outcomes]
    if sum(outcome.document is not None for outcome in outcomes) < 2:
        return None
    names = dict.fromkeys(name for rows in found for name in rows)
    bounds = (("lower", "norm_lower"), ("upper", "norm_upper"))
    return {
        "checkpoints": [str(outcome.path) for outcome in outcomes],
        "layers": {
            name: {
                bound: [rows.get(name, {}).get(column) for rows in found]
                for bound, column in bounds
            }
            for name in names
        },
    }


def _rows(document: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in (document or {}).get("layers", ())}


def _settle(
    paths: list[Path],
    workers: contextlib.AbstractContextManager[Run],
    keep: Callable[[Attempt], None],
) -> None:
    """Run all paths, and once more, alone, those that may have had bad neighbors."""
    batches = [paths]
    with warnings.catch_warnings(), workers as run:
        # That work was given up, which the error says, or a worker replaced, which is
        # none of the user's business.
        warnings.filterwarnings("ignore", module=r"joblib\.")
        for batch in batches:
            with contextlib.closing(run(batch)) as results:
                for attempt in results:
                    if attempt.is_final or len(batch) == 1:
                        keep(attempt)
                    else:
                        batches.append([attempt.path])


def _make(folder: Path) -> None:
    """Make the folder and see that files can be written there, before the work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"The folder for results must be writable, got {str(folder)!r}: "
            f"{error.strerror or error}. Name another one."
        ) from error


def _target(folder: Path, path: Path) -> Path:
    """The result's file: a name to read, and one that no other path has."""
    # Without dots: on Windows `con.pt.json` would be the console.
    name = re.sub("[^A-Za-z0-9]+", "_", path.name)[:80].strip("_")
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()
    return folder / f"{name or 'checkpoint'}-{digest[:16]}.json"


def _identity(path: Path, key: dict[str, Any]) -> dict[str, Any]:
    """What a result must have in common with its checkpoint to belong to it."""
    files = stamps(path)
    is_young = time.time_ns() - max(changed for _, _, changed in files) < YOUNG
    return {
        "checkpoint": str(path),
        "files": files,
        # Checkpoints of a network are all of one size. A time stamp tells them apart,
        # unless the file changes again before the stamp does.
        "sha256": _sha256(files) if is_young else None,
        "key": key,
    }


def stamps(path: Path) -> list[Stamp]:
    """What tells whether a checkpoint is the one that it was, for each of its files."""
    found = [(str(file), file.stat()) for file in files_of(path)]
    return [[name, x.st_size, x.st_mtime_ns] for name, x in found]


def _done(target: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The document that an earlier run has left for this very checkpoint."""
    try:
        record = json.loads(target.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # not there, or cut short: it is done again
    if not isinstance(record, dict) or not isinstance(record.get("document"), dict):
        return None
    stated = record.get("sha256")
    if any(record.get(n) != identity[n] for n in identity.keys() - {"sha256"}):
        return None
    if stated and stated != (identity["sha256"] or _sha256(identity["files"])):
        return None
    return record["document"]


def _sha256(files: list[Stamp]) -> str:
    digests = []
    for name, _, _ in files:
        with Path(name).open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return " ".join(digests)
