"""Threads of our own over the cores, and one thread for the libraries below them."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from threadpoolctl import LibController, ThreadpoolController

from .._base import cached

# glibc gives freed memory back to the system if it is more than twice the largest array
# that was freed so far, and to fault it in again may take longer than what it is used
# for. This array is freed at once, and never touched.
np.empty(2**24, np.uint8)

T = TypeVar("T")
# The largest side of a single matrix for which BLAS starts no threads that cost much.
BLAS_SMALL_SIDE = 48
PORTIONS = 4  # per core, so that a slow one does not keep the others waiting


class _Here(threading.local):
    """What is known of the calling thread."""

    is_in_portion = False  # what it does is part of something spread out
    is_ours = False  # it belongs to the pool
    has_one_torch_thread = False


_here = _Here()


def spread(
    work: Callable[[int, int], None],
    count: int,
    *,
    least: int = 1,
    only_ours: bool = False,
) -> None:
    """Call work(start, stop) for portions of range(count), multiples of `least` long.

    The order is not defined, and portions run at the same time: each may only write
    what belongs to its own part of the range. What is spread out within a portion is
    not spread out further.

    The calling thread takes portions, too, unless they are `only_ours`: for work by
    torch, which has one thread in each of ours.
    """
    if _here.is_in_portion:
        work(0, count)
        return
    units = -(-count // least)
    portions = min(PORTIONS * cores(), units) if cores() > 1 else 1
    ends = [units * i // portions * least for i in range(portions)] + [count]
    todo = iter(range(portions))

    def some() -> None:
        with _portion():
            for i in todo:
                work(ends[i], ends[i + 1])

    threads = min(cores(), portions)
    others = [_start(some) for _ in range(threads if only_ours else threads - 1)]
    try:
        if not only_ours:
            some()
    finally:
        for other in others:
            other.result()


def in_our_thread(work: Callable[[], T]) -> T:
    """Return work(), called in a thread of ours, where torch has one thread.

    What it spreads out stays there: were it to wait for others of ours, all could wait.
    """
    if _here.is_ours:
        return work()

    def portion() -> T:
        with _portion():
            return work()

    return _start(portion).result()


@contextmanager
def _portion() -> Iterator[None]:
    _here.is_in_portion = True
    try:
        yield
    finally:
        _here.is_in_portion = False


def _start(work: Callable[[], T]) -> Future[T]:
    def ours() -> T:
        _here.is_ours = True
        _take_one_torch_thread()
        return work()

    return _pool().submit(ours)


def _take_one_torch_thread() -> None:
    """Have torch use one thread in this one of ours, for good.

    `torch.set_num_threads` means the calling thread, and all that call torch for the
    first time later on: a thread that does nothing else gives these back their number.
    """
    torch = sys.modules.get("torch")
    if _here.has_one_torch_thread or not hasattr(torch, "set_num_threads"):
        return  # done, or not imported, or being imported by another thread
    assert torch is not None
    with _limits.lock:
        number = torch.get_num_threads()
        torch.set_num_threads(1)
        other = threading.Thread(target=torch.set_num_threads, args=(number,))
        other.start()
        other.join()
    _here.has_one_torch_thread = True


class _Limits:
    """Who wants BLAS to have one thread: the first one in sets it, the last restores.

    The number of threads of a BLAS is one for the whole process.
    """

    def __init__(self) -> None:
        self.lock, self.inside = threading.Lock(), 0
        self.changed: list[tuple[LibController, int]] = []

    @contextmanager
    def one_blas_thread(self) -> Iterator[None]:
        with self.lock:
            if self.inside == 0:
                self._set()
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if self.inside == 0:
                    self._restore()

    def _set(self) -> None:
        for library in _blas_libraries():
            number = library.num_threads or 1  # None: cannot be asked, nor set
            _set_threads(library, 1)
            if library.num_threads != number:  # else a thread of the user's controls it
                self.changed.append((library, number))

    def _restore(self) -> None:
        while self.changed:
            _set_threads(*self.changed.pop())

    def after_fork(self) -> None:
        """Forget the threads that are inside: a forked process does not have them."""
        self._restore()
        self.lock, self.inside = threading.Lock(), 0


def _set_threads(library: LibController, number: int) -> None:
    library.set_num_threads(number)
    # Where threadpoolctl lets only the thread that has set it set it again, let all.
    getattr(library, "clear_controlling_thread", lambda: None)()


_limits = _Limits()
one_blas_thread = _limits.one_blas_thread


@cached(maxsize=None)
def _blas_libraries() -> list[LibController]:
    """Those that were loaded at the first call: it takes a while to find them."""
    return ThreadpoolController().select(user_api="blas").lib_controllers


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
    os.register_at_fork(after_in_child=_limits.after_fork)
