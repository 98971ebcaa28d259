"""What a contender is: a name, and a way to set up each job that it can do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cases import Case

JOBS = ("values", "norm", "clip")
RTOL = 1e-4  # which norms are to be certified to, or as close as

# What the answer to a job is. A bound or an estimate is no rival of a norm.
VALUES, KERNEL = "all values", "clipped kernel"
COMPUTED, CERTIFIED = "norm, uncertified", "norm, certified"
UPPER, LOWER = "upper bound", "lower bound"

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A case with its kernel (out, in, kernel, kernel), and the level of a clip."""

    case: Case
    weight: np.ndarray
    level: float


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """A method, with what sets up each job that it can do.

    Attributes
    ----------
    name : str
    makers : mapping of job to function
        Each takes a `Task` and returns what is timed, without arguments. Layouts,
        libraries and compilation are settled before that. An answer is: all values in
        any order and shape; a norm, or its two ends where it is certified; the kernel
        (out, in, kernel, kernel).
    refuses : function
        Says why the contender does not do a case; nothing if it does.
    norm_kind : str
        What its norm is.
    """

    name: str
    makers: Mapping[str, Callable[[Task], Run]]
    refuses: Callable[[Case], str] = lambda _: ""
    norm_kind: str = COMPUTED

    @property
    def is_ours(self) -> bool:
        """Whether this is convspectra itself."""
        return self.name.startswith("convspectra")

    def kind(self, job: str) -> str:
        """What the answer to a job is."""
        return {"values": VALUES, "norm": self.norm_kind, "clip": KERNEL}[job]


def not_strided_nor_pointwise(case: Case) -> str:
    """Why the paper's lines as they stand do not do a case."""
    if case.stride > 1:
        return "the paper's lines have no stride"
    return not_pointwise(case)


def not_pointwise(case: Case) -> str:
    """Why nobody would take a Fourier transform for a case."""
    if case.kernel == 1:
        return "a 1x1 kernel has the same matrix at every frequency"
    return ""
