"""Work in portions over the cores, in threads that call code which lets others run."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ._cache import cached

_here = threading.local()
PORTIONS = 4  # per core, so that a slow one does not keep the others waiting


def spread(work: Callable[[int, int], None], count: int, *, least: int = 1) -> None:
    """Call work(start, stop) for portions of range(count), multiples of `least` long.

    The order is not defined, and portions run at the same time: each may only write
    what belongs to its own part of the range. What is spread out within a portion is
    not spread out further.
    """
    if getattr(_here, "is_in_portion", False):
        work(0, count)
        return
    units = -(-count // least)
    portions = min(PORTIONS * cores(), units) if cores() > 1 else 1
    ends = [units * i // portions * least for i in range(portions)] + [count]
    todo = iter(range(portions))

    def some() -> None:
        _here.is_in_portion = True
        try:
            for i in todo:
                work(ends[i], ends[i + 1])
        finally:
            _here.is_in_portion = False

    others = [_pool().submit(some) for _ in range(min(cores(), portions) - 1)]
    try:
        some()
    finally:
        for other in others:
            other.result()


@cached(maxsize=None)
def cores() -> int:
    """How many cores this process may use.

    No more than OMP_NUM_THREADS: joblib, Dask, Ray and torchrun set it in the processes
    that they start, for these to share the machine.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        allowed = os.cpu_count() or 1
    stated = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(allowed, int(stated) or allowed) if stated.isdecimal() else allowed


@cached(maxsize=None)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="convspectra")


# A forked process has none of the threads that its pool believes in.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
