"""A child process within limits, for parsers that a file can crash or never end.

As a script it is that child, which limits itself and then runs another script: hence it
imports nothing of the package.
"""

import contextlib
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# All that a child sees of the environment: what Python and its libraries are found by.
KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "HOME", "APPDATA"),
    *("PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX"),
)
# No threads, whose stacks count as memory; no plugins that an HDF5 file asks for.
ADDED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
ADDED["HDF5_PLUGIN_PRELOAD"] = "::"
LAST_WORDS = "\0"  # before the exception that ends a child


class Limits(NamedTuple):
    """What a child may take."""

    memory: int  # bytes of address space, libraries included
    work: int  # seconds of the processor
    elapsed: float  # seconds on the clock, waiting for the disk included


def hdf5_limits(file: int, array: int = 0) -> Limits:
    """For bytes of a file and of an array in it, unpacked at 8 MiB a second or more."""
    return Limits(2**31 + 16 * file + 3 * array, 10 + array // 2**23, 600)


def onnx_limits(graph: int) -> Limits:
    """For shape inference in a graph of so many bytes."""
    return Limits(2**30 + 20 * graph, 60, 60)


class Died(Exception):
    """A child without a result: "Kind: text" of an exception; empty after a crash."""


def run(script: Path, limits: Limits, *arguments: str, data: bytes = b"") -> bytes:
    """What a script prints that gets these arguments, and `data` as its input."""
    options = ("-PB", "-Wignore", __file__, str(limits.memory), str(limits.work))
    try:
        done = subprocess.run(
            [sys.executable, *options, str(script), *arguments],
            input=data,
            capture_output=True,
            check=False,
            timeout=limits.elapsed,
            env={name: os.environ[name] for name in KEPT if name in os.environ} | ADDED,
        )
    except subprocess.TimeoutExpired:
        raise Died from None
    if done.returncode == 0:
        return done.stdout
    last = done.stderr.decode(errors="replace").partition(LAST_WORDS)[2]
    raise Died(last.partition("\n")[0])


def _limit(memory: int, work: int) -> None:
    import resource  # not on Windows

    most = {resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: work}
    for what, value in (most | {resource.RLIMIT_CORE: 0}).items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):  # not all, on some systems
            resource.setrlimit(what, (value, value))


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        _limit(int(sys.argv[1]), int(sys.argv[2]))
    sys.argv = sys.argv[3:]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        sys.exit(f"{LAST_WORDS}{type(error).__name__}: {error}")
