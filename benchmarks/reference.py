"""The answer in double precision, computed apart, and how far others are from it."""

from typing import Any

import numpy as np

import convspectra as cs

from .cases import Case
from .contender import CERTIFIED, COMPUTED, KERNEL, LOWER, RTOL, UPPER, VALUES, Task

MOST_ROWS = 1024  # of a layer that is judged by its matrix
MOST_WORK = 10**9  # frequencies * rows * columns^2 that are judged in double precision
ROUNDING = 1e-5  # that single precision may be off by, of the norm
LOOSE = 0.05  # that a bound may be off by

# How far an answer may be below the reference, and above it.
ALLOWED = {
    VALUES: (2 * ROUNDING, 2 * ROUNDING),
    COMPUTED: (RTOL, RTOL),
    CERTIFIED: (RTOL + ROUNDING, RTOL + ROUNDING),
    UPPER: (ROUNDING, LOOSE),
    LOWER: (LOOSE, ROUNDING),
    KERNEL: (RTOL, RTOL),
}


def affordable(case: Case) -> bool:
    """Whether the answer in double precision takes seconds, not minutes."""
    rows, columns = case.matrix
    work = rows * columns * min(rows, columns) * case.frequencies
    return case.kernel == 1 or work <= MOST_WORK


def reference(task: Task, job: str) -> tuple[np.ndarray, str]:
    """The answer in double precision, and how it was found."""
    rows = max(task.case.matrix) * task.case.frequencies
    if job != "clip" and rows <= MOST_ROWS:
        matrix = cs.dense_matrix(task.weight.astype(np.float64), task.case.geometry)
        values, how = np.linalg.svd(matrix, compute_uv=False), "the full matrix"
    else:
        values, how = None, "an SVD per frequency in complex128"
    if job == "clip":
        return _clipped(task), how
    if values is None:
        values = np.linalg.svd(_symbol(task), compute_uv=False)
    if task.case.kernel == 1:  # found once, and the same at all frequencies
        values = np.broadcast_to(values, (task.case.frequencies, *values.shape))
    return (values if job == "values" else values.max()), how


def error(kind: str, answer: Any, want: np.ndarray) -> float:
    """How far an answer is from the one wanted, relative to the size of that.

    Norms have a sign: below zero they are too small. What cannot be compared, or is
    not finite, is infinitely far off.
    """
    got = np.asarray(answer, dtype=np.float64)
    if not np.isfinite(got).all():
        return np.inf
    if kind == VALUES:
        return _between_values(got, want)
    if kind == KERNEL:
        if got.shape != want.shape:
            return np.inf
        return float(np.linalg.norm(got - want) / np.linalg.norm(want))
    if kind == CERTIFIED:
        lower, upper = got / want - 1
        if lower > ROUNDING or upper < -ROUNDING:
            return np.inf  # the norm is not between the ends
        return float(max(lower, upper, key=abs))
    return float(got / want - 1)


def is_right(kind: str, off: float) -> bool:
    """Whether an error is within what an answer of this kind may be off by."""
    below, above = ALLOWED[kind]
    return -below <= off <= above


def as_reference(kind: str, answer: Any) -> np.ndarray:
    """An answer to judge others by: of an interval, the middle."""
    got = np.asarray(answer, dtype=np.float64)
    return got.mean() if kind == CERTIFIED else got


def _between_values(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference in descending order; values left out count as zero."""
    count = max(got.size, want.size)
    rows = np.zeros((2, count))
    rows[0, : got.size] = np.sort(got, axis=None)[::-1]
    rows[1, : want.size] = np.sort(want, axis=None)[::-1]
    return float(np.abs(rows[0] - rows[1]).max() / rows[1, 0])


def _phases(task: Task) -> np.ndarray:
    """exp(-2 pi i f t / n) for each frequency f and tap t."""
    n, k = task.case.grid, task.case.kernel
    return np.exp(-2j * np.pi / n * np.outer(np.arange(n), np.arange(k)))


def _symbol(task: Task) -> np.ndarray:
    """The sum of taps times phases; with a stride, frequencies that meet side by side.

    Of a 1x1 kernel the one matrix, at one frequency.
    """
    case, weight = task.case, task.weight.astype(np.float64)
    if case.kernel == 1:
        return weight[None, :, :, 0, 0]
    phases, m = _phases(task), case.grid // case.stride
    h = np.einsum("fs,gt,oist->fgoi", phases, phases, weight, optimize=True)
    h = h.reshape(case.stride, m, case.stride, m, case.out, case.into)
    h = h.transpose(1, 3, 4, 0, 2, 5).reshape(m * m, case.out, -1)
    return h / case.stride


def _clipped(task: Task) -> np.ndarray:
    case, s, m = task.case, task.case.stride, task.case.grid // task.case.stride
    u, values, vh = np.linalg.svd(_symbol(task), full_matrices=False)
    h = np.matmul(u * np.minimum(values, task.level)[:, None, :], vh)
    if case.kernel == 1:
        return h[0, :, :, None, None]
    h = h.reshape(m, m, case.out, s, s, case.into).transpose(3, 0, 4, 1, 2, 5)
    h = s * h.reshape(case.grid, case.grid, case.out, case.into)
    back = _phases(task).conj() / case.grid
    return np.einsum("fs,gt,fgoi->oist", back, back, h, optimize=True).real
