"""Who works on many checkpoints: this process, others beside it, or a cluster."""

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._base import require, size
from .._text import sentence_of

CLUSTERS = ("dask", "ray")
BACKENDS = ("loky", *CLUSTERS)
DIED = (
    "The process that works on a checkpoint must stay alive, but it was killed, even "
    "when it ran alone. The usual cause is a lack of memory: use a machine with more."
)

Work = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came back for a path; not final if it may have failed for its neighbors."""

    path: Path
    document: dict[str, Any] | None = None
    error: str | None = None
    is_final: bool = True


Run = Callable[[Sequence[Path]], Generator[Attempt, None, None]]


def running(
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


def _in_turn(work: Work, paths: Sequence[Path]) -> Generator[Attempt, None, None]:
    for path in paths:
        yield replace(_attempt(work, path), is_final=True)


def _beside(
    work: Work, joblib: Any, jobs: int, paths: Sequence[Path]
) -> Generator[Attempt, None, None]:
    """Run in joblib's processes; if one dies, all of them do, and new ones go on."""
    loky = require("joblib.externals.loky.process_executor", extra="report")
    processes = min(jobs, max(len(paths), 2))  # joblib takes this one for one
    waiting, in_flight, is_over = iter(paths), set(), False

    def calls() -> Iterator[Any]:
        for path in waiting:
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
                for attempt in results:
                    in_flight.remove(attempt.path)
                    yield attempt
                is_over = True
            except loky.TerminatedWorkerError:
                for path in sorted(in_flight):
                    yield Attempt(path, error=DIED, is_final=False)
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

    def run(paths: Sequence[Path]) -> Generator[Attempt, None, None]:
        futures = client.map(functools.partial(_attempt, work), paths, pure=False)
        path_of = {future.key: path for future, path in zip(futures, paths)}
        for future in distributed.as_completed(futures):
            try:
                yield future.result()
            except distributed.KilledWorker:
                yield Attempt(path_of[future.key], error=DIED, is_final=False)
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

    def run(paths: Sequence[Path]) -> Generator[Attempt, None, None]:
        task = ray.remote(max_retries=0)(_attempt)
        path_of = {task.remote(work, path): path for path in paths}
        while path_of:
            (ready,), _ = ray.wait(list(path_of), num_returns=1)
            path = path_of.pop(ready)
            try:
                yield ray.get(ready)
            except ray.exceptions.RayTaskError:  # not of the work: it cannot run there
                raise
            except ray.exceptions.RayError:
                yield Attempt(path, error=DIED, is_final=False)

    ray.init(address=address)
    try:
        yield run
    finally:
        ray.shutdown()


def _attempt(work: Work, path: Path) -> Attempt:
    """Call the work, here or in another process; it fails with a sentence alone."""
    try:
        return Attempt(path, json.loads(json.dumps(work(path))))
    except MemoryError as error:
        text = f"The memory must suffice for this checkpoint, and does not ({error})."
        return Attempt(path, error=text, is_final=False)
    except (ImportError, OSError, ValueError) as error:
        return Attempt(path, error=sentence_of(error))
    except Exception as error:
        return Attempt(path, error=f"{type(error).__name__}: {error}")
