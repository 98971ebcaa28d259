"""What does a run run on, with which versions, and how fast does it multiply?"""

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from timeit import repeat
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

import convspectra as cs

MODULES = ("convspectra", "numpy", "torch", "jax", "jaxlib", "tensorflow")
GEMM_SIZE, GEMM_ROUNDS = 1024, 5


def machine() -> dict[str, Any]:
    """The processor, the versions, and the libraries that multiply matrices."""
    return {
        **computer(),
        **versions(MODULES),
        "blas": sorted(
            f"{blas['internal_api']} {blas['version']}, {blas['num_threads']} threads"
            for blas in threadpool_info()
            if blas["user_api"] == "blas"
        ),
    }


def computer() -> dict[str, Any]:
    """The processor and the system."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
    }


def load() -> float | None:
    """How many processes wanted a core over the last minute, where that is known."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def source_digest() -> str:
    """A digest of the package and of these benchmarks: results belong to both."""
    digest = hashlib.sha256()
    for folder in (Path(cs.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def gemm_rate() -> float:
    """Real operations per second in products of complex64 matrices, the best seen.

    In NumPy, and in torch where it is installed: the faster one counts.
    """
    parts = np.random.default_rng(0).standard_normal((2, GEMM_SIZE, GEMM_SIZE))
    square = (parts[0] + 1j * parts[1]).astype(np.complex64)
    seconds = repeat(lambda: square @ square, number=1, repeat=GEMM_ROUNDS)
    try:
        import torch
    except ModuleNotFoundError:
        pass
    else:
        tensor = torch.from_numpy(square)
        seconds += repeat(lambda: tensor @ tensor, number=1, repeat=GEMM_ROUNDS)
    return 8 * GEMM_SIZE**3 / min(seconds)


def versions(modules: Sequence[str]) -> dict[str, str | None]:
    """The version of Python and of each module, None where it is not installed.

    A distribution may have another name than its module: tensorflow-cpu does.
    """
    distributions = _distributions()
    found: dict[str, str | None] = {"python": platform.python_version()}
    for module in modules:
        try:
            found[module] = version(distributions.get(module, [module])[0])
        except PackageNotFoundError:
            found[module] = None
    return found


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Of each module; to look them up takes more than a second."""
    return packages_distributions()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
