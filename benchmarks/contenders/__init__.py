"""Who competes: methods that answer some of the jobs, each in one library's arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from ..cases import Case, Task

JOBS = ("values", "norm", "clip")
RTOL = 1e-4  # that norms are certified to, or should be right to

# What an answer is. A bound answers less than a norm does, and is compared apart.
VALUES, KERNEL = "all values", "clipped kernel"
COMPUTED, CERTIFIED = "norm, uncertified", "norm, certified"
UPPER, LOWER = "upper bound", "lower bound"
BOUNDS = (UPPER, LOWER)

PAPER, OURS = "paper, NumPy", "convspectra, NumPy"
LIBRARIES = {  # by the last words of a contender's name
    "NumPy": "in_numpy",
    "torch": "in_torch",
    "JAX": "in_jax",
    "TensorFlow": "in_tensorflow",
}

Job = Callable[[Any, Task], Any]
Function = Callable[[Any], Any]  # a job on one task, of its array
Run = Callable[[], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """A method, by the jobs that it can do.

    A job returns all values, in any order and shape; the norm, or both bounds of a
    certified one; or the clipped kernel (out, in, kernel, kernel).
    """

    name: str  # ends with a comma and the library
    jobs: Mapping[str, Job]  # of the weight as `asarray` returns it, and the task
    asarray: Callable[[np.ndarray], Any] = np.asarray  # to a library and a layout
    compiled: Callable[[Function, Any], Function] = lambda function, _: function
    refuses: Callable[[Case], str] = lambda _: ""  # says why, if it does
    norm_kind: str = COMPUTED

    @property
    def is_ours(self) -> bool:
        """Whether this is convspectra itself."""
        return self.name.startswith("convspectra")

    def kind(self, job: str) -> str:
        """What the answer to a job is."""
        return {"values": VALUES, "norm": self.norm_kind, "clip": KERNEL}[job]

    def prepare(self, job: str, task: Task) -> Run:
        """Return what is timed; conversion and compilation are done before that."""
        weight = self.asarray(task.weight)
        call = self.compiled(lambda weight: self.jobs[job](weight, task), weight)
        return lambda: call(weight)


def in_library(library: str) -> tuple[Contender, ...]:
    """The contenders of one library, which must be installed."""
    return import_module(f"{__name__}.{LIBRARIES[library]}").CONTENDERS


def contender(name: str) -> Contender:
    """The contender of this name; no other library is imported."""
    found = [one for one in in_library(name.rpartition(", ")[2]) if one.name == name]
    if not found:
        raise LookupError(f"no contender is named {name!r}.")
    return found[0]


def installed() -> tuple[tuple[Contender, ...], tuple[str, ...]]:
    """All contenders that can run here, ours last, and the libraries not installed."""
    found: list[Contender] = []
    missing: list[str] = []
    for library in LIBRARIES:
        try:
            found += in_library(library)
        except ModuleNotFoundError as error:
            if error.name != library.lower():
                raise
            missing.append(library)
    return tuple(sorted(found, key=lambda one: one.is_ours)), tuple(missing)


def not_pointwise(case: Case) -> str:
    """Refuse a case for which nobody would take a Fourier transform."""
    if case.kernel == 1:
        return "a 1x1 kernel has the same matrix at every frequency"
    return ""


def not_strided_nor_pointwise(case: Case) -> str:
    """Refuse a case that the paper's lines as they stand do not do."""
    return (
        "the paper's lines have no stride" if case.stride > 1 else not_pointwise(case)
    )
