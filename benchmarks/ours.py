"""convspectra itself, as a user calls it."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import convspectra as cs

from .contender import CERTIFIED, RTOL, Contender, Run, Task

Turn = Callable[[np.ndarray], Any]


def values(task: Task, turn: Turn) -> Run:
    """Every singular value."""
    weight, geometry = turn(task.weight), task.case.geometry
    return lambda: cs.singular_values(weight, geometry)


def norm(task: Task, turn: Turn) -> Run:
    """Both ends of the norm."""
    weight, geometry = turn(task.weight), task.case.geometry

    def run() -> tuple[float, float]:
        found = cs.operator_norm(weight, geometry, RTOL)
        return float(found.lower), float(found.upper)

    return run


def clip(task: Task, turn: Turn) -> Run:
    """One clip and crop."""
    weight, geometry, level = turn(task.weight), task.case.geometry, task.level
    return lambda: cs.clip(weight, geometry, level)


@functools.cache
def compile_all() -> None:
    """Have all be compiled before anything is timed, as it is for the others."""
    for channels in (4, 64, 66, 130):  # each size has kernels of its own
        weight = np.random.default_rng(0).random((channels, channels, 3, 3), np.float32)
        geometry = cs.Geometry(grid=(16, 16))
        cs.singular_values(weight, geometry)
        bound = float(cs.operator_norm(weight, geometry, RTOL).upper) / 2
        cs.clip(weight, geometry, bound)


def taking(make: Callable[[Task, Turn], Run], turn: Turn) -> Callable[[Task], Run]:
    """What sets up a job with the kernel in the library that `turn` leads to."""

    def made(task: Task) -> Run:
        compile_all()
        return make(task, turn)

    return made


MAKERS = {"values": values, "norm": norm, "clip": clip}
CONTENDERS = (
    Contender(
        "convspectra, NumPy",
        {job: taking(make, np.asarray) for job, make in MAKERS.items()},
        norm_kind=CERTIFIED,
    ),
)
