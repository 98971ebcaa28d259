"""Run the units of an experiment: here, in several processes, or on a Dask cluster."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

from .options import Options
from .processes import is_first, world_size
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
    wrong: dict[str, BaseException] = {}
    for name, outcome in _outcomes(options, todo, work):
        if isinstance(outcome, BaseException):
            wrong[name] = outcome
            continue
        record.keep(name, *outcome)
        count = len(record.results.keys() & todo.keys())
        left = (time.perf_counter() - start) / count * (len(todo) - count)
        if is_first():
            say(f"{name}: {before + count} of {len(units)}, {duration(left)} left")
    if wrong:
        lines = (f"{name}: {type(e).__name__}: {e}" for name, e in wrong.items())
        text = "Every unit must give a result; did not:\n" + "\n".join(lines)
        raise OSError(text) from next(iter(wrong.values()))


def _outcomes(
    options: Options, units: Mapping[str, U], work: Callable[[U], Any]
) -> Iterator[tuple[str, tuple[Any, str] | BaseException]]:
    """The name of each unit that ends, with what `_worked` gave or with its error."""
    if options.jobs == 1 and options.scheduler is None:
        for name, unit in units.items():
            try:
                outcome = _worked(work, unit)
            except Exception as error:
                outcome = error
            yield name, outcome
        return
    if world_size() > 1:
        raise ValueError(
            f"The {world_size()} processes of torchrun share every training: --jobs "
            "and --scheduler must not be given as well."
        )
    with _executor(options) as executor:
        futures = {
            executor.submit(_worked, work, unit): name for name, unit in units.items()
        }
        for future in as_completed(futures):
            yield futures[future], future.exception() or future.result()


def _worked(work: Callable[[U], Any], unit: U) -> tuple[Any, str]:
    """The result of a unit, and the machine that worked on it."""
    return work(unit), machine()


@contextmanager
def _executor(options: Options) -> Iterator[Executor]:
    if options.scheduler is None:
        context = get_context("spawn")  # torch's threads do not survive a fork
        parent, others = (os.getpid(),), set(active_children())
        pool = ProcessPoolExecutor(options.jobs, context, _end_with, parent)
        try:
            yield pool
        except BaseException:  # units in the queue would still be begun
            for process in set(active_children()) - others:
                process.terminate()
            raise
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
