"""What a run ran on, and how fast that multiplies matrices."""

import hashlib
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

import convspectra as cs

PACKAGES = ("convspectra", "numpy", "torch", "jax", "jaxlib", "tensorflow")
GEMM_SIZE, GEMM_ROUNDS = 1024, 5


def machine() -> dict[str, Any]:
    """The processor, the versions, and the libraries that multiply matrices."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "blas": sorted(
            f"{blas['internal_api']} {blas['version']}, {blas['num_threads']} threads"
            for blas in threadpool_info()
            if blas["user_api"] == "blas"
        ),
    }


def load() -> float | None:
    """How many processes wanted a core over the last minute, where that is known."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def source_digest() -> str:
    """A digest of this package's source: results belong to the code that gave them."""
    digest = hashlib.sha256()
    for path in sorted(Path(cs.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def gemm_rate() -> float:
    """Real operations per second in products of complex64 matrices, the best seen.

    By NumPy, and by torch where it is installed: the faster one counts.
    """
    shape = (GEMM_SIZE, GEMM_SIZE)
    a = np.random.default_rng(0).standard_normal((*shape, 2), dtype=np.float32)
    square = a.view(np.complex64)[..., 0]
    products: list[Callable[[], Any]] = [lambda: square @ square]
    if _version("torch") is not None:
        import torch

        tensor = torch.from_numpy(square.copy())
        products.append(lambda: tensor @ tensor)
    least = min(_seconds(product) for product in products for _ in range(GEMM_ROUNDS))
    return 8 * GEMM_SIZE**3 / least


def _seconds(product: Callable[[], Any]) -> float:
    start = time.perf_counter()
    product()
    return time.perf_counter() - start


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
