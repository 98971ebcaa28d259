"""Is an answer right? Judged by one in double precision, computed another way."""

from typing import Any

import numpy as np

import convspectra as cs

from .cases import Case, Task
from .contenders import CERTIFIED, COMPUTED, KERNEL, LOWER, RTOL, UPPER, VALUES

MOST_ROWS = 1024  # of a layer that is judged by its full matrix
MOST_WORK = 10**9  # frequencies * rows * columns * the smaller of the two
ROUNDING = 1e-5  # relative error allowed for single precision
# The same for all values. TensorFlow's SVD in single precision is off by up to 2.5e-5
# of the largest with 256 rows, some 200 units of rounding.
OF_VALUES = 5e-5
LOOSE = 0.05  # relative error allowed for a bound

ALLOWED = {  # relative errors: this much below the reference, this much above it
    VALUES: (OF_VALUES, OF_VALUES),
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
    """The answer in double precision, and how it was computed."""
    case, how = task.case, "an SVD per frequency in complex128"
    if job == "clip":
        return _clipped(task), how
    if max(case.matrix) * case.frequencies <= MOST_ROWS:
        how = "the full matrix"
        matrix = cs.dense_matrix(task.weight.astype(np.float64), case.geometry)
        values = np.linalg.svd(matrix, compute_uv=False)
    else:
        values = np.linalg.svd(_symbol(task), compute_uv=False)
        values = np.broadcast_to(values, (case.frequencies, values.shape[1]))
    return (values if job == "values" else values.max()), how


def as_reference(kind: str, answer: Any) -> np.ndarray:
    """An answer to judge others by; of a certified norm, the middle of its bounds."""
    got = np.asarray(answer, dtype=np.float64)
    return got.mean() if kind == CERTIFIED else got


def error(kind: str, answer: Any, want: np.ndarray) -> float:
    """The relative error of an answer; negative if a norm or a bound is too small.

    It is infinite for an answer of the wrong shape, or one that is not finite.
    """
    got = np.asarray(answer, dtype=np.float64)
    if not np.isfinite(got).all():
        return np.inf
    if kind == VALUES:
        return _error_of_values(got, want)
    if kind == KERNEL:
        if got.shape != want.shape:
            return np.inf
        return float(np.linalg.norm(got - want) / np.linalg.norm(want))
    if kind == CERTIFIED:
        lower, upper = got / want - 1
        if lower > ROUNDING or upper < -ROUNDING:
            return np.inf  # the norm is not between its bounds
        return float(max(lower, upper, key=abs))
    return float(got / want - 1)


def is_right(kind: str, off: float) -> bool:
    """Whether an error is within what is allowed for this kind of answer."""
    below, above = ALLOWED[kind]
    return -below <= off <= above


def _error_of_values(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference in descending order; missing values count as zero."""
    rows = np.zeros((2, max(got.size, want.size)))
    rows[0, : got.size] = np.sort(got, axis=None)[::-1]
    rows[1, : want.size] = np.sort(want, axis=None)[::-1]
    return float(np.abs(rows[0] - rows[1]).max() / rows[1, 0])


def _phases(case: Case) -> np.ndarray:
    """exp(-2 pi i f t / n) for each frequency f and tap t."""
    n, k = case.grid, case.kernel
    return np.exp(-2j * np.pi / n * np.outer(np.arange(n), np.arange(k)))


def _symbol(task: Task) -> np.ndarray:
    """The sum of taps times phases; with a stride, aliases stand side by side.

    Its shape is (frequencies, rows, columns); for a 1x1 kernel there is one frequency.
    """
    case, weight = task.case, task.weight.astype(np.float64)
    if case.kernel == 1:
        return weight[None, :, :, 0, 0]
    phases, s, m = _phases(case), case.stride, case.grid // case.stride
    h = np.einsum("fs,gt,oist->fgoi", phases, phases, weight, optimize=True)
    h = h.reshape(s, m, s, m, case.out_channels, case.in_channels)
    return h.transpose(1, 3, 4, 0, 2, 5).reshape(case.frequencies, *case.matrix) / s


def _clipped(task: Task) -> np.ndarray:
    case, s, m = task.case, task.case.stride, task.case.grid // task.case.stride
    u, values, vh = np.linalg.svd(_symbol(task), full_matrices=False)
    h = np.matmul(u * np.minimum(values, task.max_norm)[:, None, :], vh)
    if case.kernel == 1:
        return h[0, :, :, None, None]
    h = h.reshape(m, m, case.out_channels, s, s, case.in_channels)
    h = h.transpose(3, 0, 4, 1, 2, 5).reshape(
        case.grid, case.grid, *task.weight.shape[:2]
    )
    back = _phases(case).conj() / case.grid
    return s * np.einsum("fs,gt,fgoi->oist", back, back, h, optimize=True).real
