"""convspectra itself, as a user calls it."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import convspectra as cs

from ..cases import Task
from . import CERTIFIED, RTOL, Contender, Function

# Channels, kernel and grid of layers that between them run every compiled loop.
COMPILED = (
    (4, 3, 16),
    (32, 3, 8),
    (32, 11, 64),
    (64, 3, 16),
    (66, 3, 16),
    (130, 3, 16),
)


def values(weight: Any, task: Task) -> Any:
    """Every singular value."""
    return cs.singular_values(weight, task.case.geometry)


def norm(weight: Any, task: Task) -> tuple[float, float]:
    """Both bounds of the norm."""
    found = cs.operator_norm(weight, task.case.geometry, RTOL)
    return float(found.lower), float(found.upper)


def clip(weight: Any, task: Task) -> Any:
    """One clip and crop."""
    return cs.clip(weight, task.case.geometry, task.max_norm)


def ours(
    library: str,
    asarray: Callable[[np.ndarray], Any],
    wait: Callable[[Any], Any] = lambda found: found,
) -> Contender:
    """Return convspectra with weights in a library's arrays.

    `wait` returns an answer once it is there.
    """

    def compiled(function: Function, _: Any) -> Function:
        _compile_all()
        return lambda weight: wait(function(weight))

    jobs = {"values": values, "norm": norm, "clip": clip}
    name = f"convspectra, {library}"
    return Contender(name, jobs, asarray, compiled, norm_kind=CERTIFIED)


@functools.cache
def _compile_all() -> None:
    """Compile every loop before anything is timed, as is done for the others."""
    for channels, k, n in COMPILED:
        geometry = cs.Geometry(grid=(n, n))
        weight = np.random.default_rng(0).random((channels, channels, k, k), np.float32)
        cs.singular_values(weight, geometry)
        bounds = cs.operator_norm(weight, geometry, RTOL)
        cs.clip(weight, geometry, float(bounds.upper) / 2)
