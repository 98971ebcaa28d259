"""Run the units of an experiment: here, in several processes, or on a Dask cluster."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from .options import Options
from .record import Record, machine
from .talk import duration, say

U = TypeVar("U")


def run_units(
    options: Options,
    record: Record,
    units: Mapping[str, U],
    work: Callable[[U], Any],
) -> None:
    """Keep `work(unit)` of every unit whose result is not in the record yet.

    Units are begun in their order, `options.jobs` at a time. `work` must be picklable
    if that is more than one or there is a cluster, where all paths must mean the same
    files. Only this process writes the record, after each unit. One that fails is named
    when all others are done.
    """
    todo = {name: unit for name, unit in units.items() if name not in record.results}
    start, before = time.perf_counter(), len(units) - len(todo)

    def keep(name: str, result: Any, where: str) -> None:
        record.keep(name, result, where)
        done = len(record.results.keys() & todo.keys())
        spent = time.perf_counter() - start
        left = spent / done * (len(todo) - done)
        say(f"{name}: {before + done} of {len(units)}, {duration(left)} left")

    wrong: dict[str, str] = {}
    if options.jobs == 1 and options.scheduler is None:
        for name, unit in todo.items():
            keep(name, *_worked(work, unit))
    else:
        with _executor(options) as executor:
            futures = {
                executor.submit(_worked, work, unit): name
                for name, unit in todo.items()
            }
            for future in as_completed(futures):
                if error := future.exception():
                    wrong[futures[future]] = f"{type(error).__name__}: {error}"
                else:
                    keep(futures[future], *future.result())
    if wrong:
        lines = (f"{name}: {text}" for name, text in wrong.items())
        raise OSError("Every unit must give a result; did not:\n" + "\n".join(lines))


def _worked(work: Callable[[U], Any], unit: U) -> tuple[Any, str]:
    """The result of a unit, and the machine that worked on it."""
    return work(unit), machine()


@contextmanager
def _executor(options: Options) -> Iterator[Executor]:
    if options.scheduler is None:
        context = get_context("spawn")  # torch's threads do not survive a fork
        parent = (os.getpid(),)
        pool = ProcessPoolExecutor(options.jobs, context, _end_with, parent)
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)
        return
    import distributed

    with distributed.Client(options.scheduler) as connected:
        client: Any = connected  # whose methods may be coroutines; not of this one
        threads = set(client.nthreads().values())
        if threads - {1}:  # they would share random numbers and processor seconds
            raise ValueError(
                f"Workers must have one thread each, got {max(threads)}. Start them "
                "with `dask worker --nworkers auto --nthreads 1`."
            )
        yield client.get_executor(pure=False)


def _end_with(parent: int) -> None:
    """Use one thread, and end soon after the process that started this one."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"  # torch and convspectra follow it
