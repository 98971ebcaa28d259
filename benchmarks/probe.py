"""One run in a process of its own, which says what memory it took at most."""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from .cases import Case, kernel_of
from .contender import Contender, Task
from .contenders import contender

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The answer of a run, its seconds, and the bytes it took beyond its inputs."""

    answer: np.ndarray
    seconds: float
    memory: int


class ProbeError(RuntimeError):
    """A run that did not end well, with its last words."""


def probed(one: Contender, job: str, task: Task) -> Measured:
    """Run a job of a contender in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "answer.npy")
        request = {
            "contender": one.name,
            "job": job,
            "case": asdict(task.case),
            "level": task.level,
            "answer": str(target),
        }
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.probe", json.dumps(request)],
            capture_output=True,
            check=False,
            text=True,
        )
        if done.returncode:
            words = done.stderr.strip().splitlines() or ["no words"]
            raise ProbeError(f"ended with code {done.returncode}: {words[-1]}")
        return Measured(np.load(target), **json.loads(done.stdout))


def main(request: dict[str, Any]) -> dict[str, float]:
    """Run what is asked for; save the answer, and return seconds and memory."""
    case = Case(**request["case"])
    task = Task(case, kernel_of(case), request["level"])
    one = contender(request["contender"])
    if one.is_ours and find_spec("torch"):
        import_module("torch")  # whose LAPACK we use if it is there, as in other runs
    run = one.makers[request["job"]](task)
    before, start = peak_memory(), time.perf_counter()
    answer = run()
    seconds = time.perf_counter() - start
    memory = peak_memory() - before
    np.save(request["answer"], np.asarray(answer))
    return {"seconds": seconds, "memory": memory}


def peak_memory() -> int:
    """The most bytes that this process has had so far."""
    if STATUS.exists():  # of Linux, where `getrusage` starts from what the parent had
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM"))
        return 1024 * int(peak.split()[1])
    import resource  # which Windows does not have

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))))
