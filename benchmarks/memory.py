"""How much memory does a run take? Each is measured in a process of its own."""

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .cases import Case, Task
from .contenders import contender

STATUS = Path("/proc/self/status")


def run_in_process(name: str, job: str, task: Task) -> tuple[np.ndarray, float, int]:
    """A contender's answer, its seconds, and its peak memory in bytes.

    Memory that was in use before the run does not count.
    """
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, fresh) as pool:
        return pool.submit(_run, name, job, task.case, task.max_norm).result()


def _run(
    name: str, job: str, case: Case, max_norm: float
) -> tuple[np.ndarray, float, int]:
    one = contender(name)
    if one.is_ours and find_spec("torch"):
        import_module("torch")  # convspectra uses its LAPACK, as it does in other runs
    run = one.prepare(job, Task(case, case.weight(), max_norm))
    before, start = _peak_memory(), time.perf_counter()
    answer = run()
    seconds = time.perf_counter() - start
    return np.asarray(answer), seconds, _peak_memory() - before


def _peak_memory() -> int:
    """The most bytes that this process has held so far."""
    if STATUS.exists():  # on Linux, where `getrusage` starts from the parent's peak
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM"))
        return 1024 * int(peak.split()[1])
    import resource  # which Windows does not have

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
