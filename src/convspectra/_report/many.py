"""Work on many checkpoints: each once, beside others, with its result kept on disk."""

import contextlib
import functools
import hashlib
import json
import os
import re
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._base import replacing, require, size
from .._checkpoint.files import Refusal

BACKENDS = ("loky", "dask", "ray")
# Nanoseconds. Two changes within this time may leave one and the same time stamp: no
# file system in use has coarser ones.
YOUNG = 2 * 10**9
DIED = (
    "The process that works on a checkpoint must stay alive, but it was killed, even "
    "when it ran alone. The usual cause is a lack of memory: use a machine with more."
)

Work = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a checkpoint: a document, or a sentence that says why not."""

    path: Path
    document: dict[str, Any] | None
    error: str | None
    was_done_before: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """What came back for a path; not final if it may have failed for its neighbors."""

    path: Path
    document: dict[str, Any] | None = None
    error: str | None = None
    is_final: bool = True


Run = Callable[[Sequence[Path]], Generator[_Found, None, None]]


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
    while path, size and time stamp of its file are the same, and `key`: the options and
    versions that it depends on. Errors are written too, and tried again next time.
    Outcomes have the order of `paths`; `advance` is called after each different one.
    """
    running = _running(work, jobs, backend, scheduler)
    given, key = list(paths), json.loads(json.dumps(key))
    _make(folder)
    outcomes: dict[Path, Outcome] = {}
    todo: dict[Path, dict[str, Any]] = {}

    def settle(outcome: Outcome) -> None:
        outcomes[outcome.path] = outcome
        advance()

    def keep(found: _Found) -> None:
        result = {"document": found.document, "error": found.error}
        with replacing(_target(folder, found.path)) as partial:
            partial.write_text(json.dumps(todo[found.path] | result), encoding="utf-8")
        settle(Outcome(found.path, found.document, found.error))

    for path in dict.fromkeys(path.absolute() for path in given):
        try:
            identity = _identity(path, key)
            document = _done(_target(folder, path), identity)
        except (OSError, ValueError) as error:
            settle(Outcome(path, None, str(error)))
            continue
        if document is None:
            todo[path] = identity
        else:
            settle(Outcome(path, document, None, was_done_before=True))
    if todo:
        _settle(list(todo), running, keep)
    return [replace(outcomes[path.absolute()], path=path) for path in given]


def shard(paths: Iterable[Path], number: int, count: int) -> list[Path]:
    """Return the part `number`, from 1, of `count` that make up all the paths.

    Every `count`-th of the sorted paths: parts that are taken from the same paths by
    different machines have nothing in common, and miss nothing.
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
    """Return the certified ends of every layer's norm over the checkpoints.

    `{"checkpoints": [...], "layers": {name: {"lower": [...], "upper": [...]}}}` with an
    entry for every outcome, None where a layer or a document is missing. None if fewer
    than two outcomes have a document.
    """
    found = [_rows(outcome.document) for outcome in outcomes]
    if sum(outcome.document is not None for outcome in outcomes) < 2:
        return None
    names = dict.fromkeys(name for rows in found for name in rows)
    ends = (("lower", "norm_lower"), ("upper", "norm_upper"))
    return {
        "checkpoints": [str(outcome.path) for outcome in outcomes],
        "layers": {
            name: {
                end: [rows.get(name, {}).get(field) for rows in found]
                for end, field in ends
            }
            for name in names
        },
    }


def _rows(document: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in (document or {}).get("layers", ())}


def _settle(
    paths: list[Path],
    running: contextlib.AbstractContextManager[Run],
    keep: Callable[[_Found], None],
) -> None:
    """Run all paths, and once more, alone, those that may have had bad neighbors."""
    batches = [paths]
    with warnings.catch_warnings(), running as run:
        # That work was given up, which the error says, or a worker replaced, which is
        # none of the user's business.
        warnings.filterwarnings("ignore", module=r"joblib\.")
        for batch in batches:
            with contextlib.closing(run(batch)) as results:
                for found in results:
                    if found.is_final or len(batch) == 1:
                        keep(found)
                    else:
                        batches.append([found.path])


def _running(
    work: Work, jobs: int, backend: str, scheduler: str | None
) -> contextlib.AbstractContextManager[Run]:
    """Check where the work is to be done, and return what opens and closes it."""
    if backend not in BACKENDS:
        raise ValueError(
            f"`backend` must be one of {', '.join(BACKENDS)}, got {backend!r}."
        )
    if size("jobs", jobs, least=1) > 1 and backend != "loky":
        raise ValueError(
            f"`jobs` must be left out on a cluster, got {jobs} for {backend}: the "
            "cluster's workers determine the number."
        )
    if (backend == "dask" and not scheduler) or (backend == "loky" and scheduler):
        raise ValueError(
            "`scheduler` must be the address of a cluster, and given only for one, got "
            f"{scheduler!r} for {backend}."
        )
    if backend == "dask":
        return _dask(work, require("distributed", extra="dask"), scheduler)
    if backend == "ray":
        return _ray(work, require("ray", extra="ray"), scheduler)
    if jobs == 1:
        return contextlib.nullcontext(functools.partial(_in_turn, work))
    joblib = require("joblib", extra="report")
    return contextlib.nullcontext(functools.partial(_beside, work, joblib, jobs))


def _in_turn(work: Work, paths: Sequence[Path]) -> Generator[_Found, None, None]:
    for path in paths:
        yield replace(_attempt(work, path), is_final=True)


def _beside(
    work: Work, joblib: Any, jobs: int, paths: Sequence[Path]
) -> Generator[_Found, None, None]:
    """Run in joblib's processes; if one dies, all of them do, and new ones go on."""
    loky = require("joblib.externals.loky.process_executor", extra="report")
    processes = min(jobs, max(len(paths), 2))  # joblib takes this one for one
    left, in_flight, is_over = iter(paths), set(), False

    def calls() -> Iterator[Any]:
        for path in left:
            in_flight.add(path)
            yield joblib.delayed(_attempt)(work, path)

    while not is_over:
        # No more in flight than there are processes: all these are under suspicion
        # when one dies. Nothing is memory-mapped, and stays behind in /dev/shm.
        pool = joblib.Parallel(
            n_jobs=processes,
            backend="loky",
            return_as="generator_unordered",
            batch_size=1,
            pre_dispatch=processes,
            max_nbytes=None,
            initializer=_end_with,
            initargs=(os.getpid(),),
        )
        with contextlib.closing(pool(calls())) as results:
            try:
                for found in results:
                    in_flight.remove(found.path)
                    yield found
                is_over = True
            except loky.TerminatedWorkerError:
                for path in sorted(in_flight):
                    yield _Found(path, error=DIED, is_final=False)
                in_flight.clear()


def _end_with(parent: int) -> None:
    """End this process soon after the one that started it, however that was ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _dask(work: Work, distributed: Any, scheduler: str | None) -> Iterator[Run]:
    """A Dask cluster by its own client.

    Not by joblib's: that waits forever for a task whose worker died, and does the work
    in this process if the cluster has one thread.
    """
    try:
        client = distributed.Client(scheduler)
    except OSError as error:
        raise OSError(
            f"A Dask scheduler must answer at {scheduler!r}: {error}. Start one with "
            "`dask scheduler`, and workers with `dask worker`."
        ) from error

    def run(paths: Sequence[Path]) -> Generator[_Found, None, None]:
        futures = client.map(functools.partial(_attempt, work), paths, pure=False)
        path_of = {future.key: path for future, path in zip(futures, paths)}
        for future in distributed.as_completed(futures):
            try:
                yield future.result()
            except distributed.KilledWorker:
                yield _Found(path_of[future.key], error=DIED, is_final=False)
            except CancelledError as error:
                raise OSError(
                    f"The Dask scheduler at {scheduler!r} must run to the end, but the "
                    "connection was lost. Finished results are kept: run this again."
                ) from error
            future.release()  # the cluster need not hold what is written here

    with client:
        yield run


@contextlib.contextmanager
def _ray(work: Work, ray: Any, address: str | None) -> Iterator[Run]:
    """A Ray cluster by its own tasks: joblib's backend gives no result before the last.

    Without an address it is what RAY_ADDRESS names, or this machine.
    """

    def run(paths: Sequence[Path]) -> Generator[_Found, None, None]:
        attempt = ray.remote(max_retries=0)(_attempt)
        path_of = {attempt.remote(work, path): path for path in paths}
        while path_of:
            (ready,), _ = ray.wait(list(path_of), num_returns=1)
            path = path_of.pop(ready)
            try:
                yield ray.get(ready)
            except ray.exceptions.RayTaskError:  # not of the work: it cannot run there
                raise
            except ray.exceptions.RayError:
                yield _Found(path, error=DIED, is_final=False)

    ray.init(address=address)
    try:
        yield run
    finally:
        ray.shutdown()


def _attempt(work: Work, path: Path) -> _Found:
    """Call the work, here or in another process; it fails with a sentence alone."""
    try:
        return _Found(path, json.loads(json.dumps(work(path))))
    except MemoryError as error:
        text = f"The memory must suffice for this checkpoint, and does not ({error})."
        return _Found(path, error=text, is_final=False)
    except (ImportError, OSError, ValueError) as error:
        return _Found(path, error=str(error) or type(error).__name__)
    except Exception as error:
        return _Found(path, error=f"{type(error).__name__}: {error}")


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
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise Refusal("A checkpoint must be a regular file, got something else.")
    is_young = time.time_ns() - found.st_mtime_ns < YOUNG
    return {
        "checkpoint": str(path),
        "size": found.st_size,
        "modified_ns": found.st_mtime_ns,
        # Checkpoints of a network are all of one size. A time stamp tells them apart,
        # unless the file changes again before the stamp does.
        "sha256": _sha256(path) if is_young else None,
        "key": key,
    }


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
    if stated and stated != (identity["sha256"] or _sha256(Path(record["checkpoint"]))):
        return None
    return record["document"]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
