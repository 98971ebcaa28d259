"""Contenders in NumPy: the full matrix, the paper's lines, one matrix for 1x1."""

import math

import numpy as np

import convspectra as cs

from .cases import Case
from .contender import Contender, Run, Task, not_strided_nor_pointwise

MOST_ROWS = 1024  # of a full matrix


def matrix_values(task: Task) -> Run:
    """Write the layer as one matrix, and take its singular values."""
    weight, geometry = task.weight, task.case.geometry
    return lambda: np.linalg.svd(cs.dense_matrix(weight, geometry), compute_uv=False)


def matrix_norm(task: Task) -> Run:
    """Write the layer as one matrix, and take its norm."""
    weight, geometry = task.weight, task.case.geometry
    return lambda: np.linalg.norm(cs.dense_matrix(weight, geometry), 2)


def fft_values(task: Task) -> Run:
    """The values of the transformed kernel, frequency by frequency."""
    kernel, n = _turned(task.weight), task.case.grid
    return lambda: np.linalg.svd(_transform(kernel, n), compute_uv=False)


def fft_norm(task: Task) -> Run:
    """The largest of all values."""
    values = fft_values(task)
    return lambda: values().max()


def fft_clip(task: Task) -> Run:
    """Clip the values at every frequency, transform back, and crop."""
    kernel, n, level = _turned(task.weight), task.case.grid, task.level

    def run() -> np.ndarray:
        u, s, vh = np.linalg.svd(_transform(kernel, n), full_matrices=False)
        clipped = np.matmul(u * np.minimum(s, level)[..., None, :], vh)
        back = np.fft.ifft2(clipped, axes=(0, 1)).real  # (n, n, in, out)
        k = len(kernel)
        return back[:k, :k].transpose(3, 2, 0, 1)

    return run


def pointwise_values(task: Task) -> Run:
    """The values of the one matrix, at every frequency."""
    matrix, n = task.weight[:, :, 0, 0], math.isqrt(task.case.frequencies)

    def run() -> np.ndarray:
        values = np.linalg.svd(matrix, compute_uv=False)
        return np.broadcast_to(values, (n, n, values.size)).copy()

    return run


def pointwise_norm(task: Task) -> Run:
    """The norm of the one matrix."""
    matrix = task.weight[:, :, 0, 0]
    return lambda: np.linalg.norm(matrix, 2)


def pointwise_clip(task: Task) -> Run:
    """Clip the values of the one matrix."""
    matrix, level = task.weight[:, :, 0, 0], task.level

    def run() -> np.ndarray:
        u, s, vh = np.linalg.svd(matrix, full_matrices=False)
        return np.matmul(u * np.minimum(s, level), vh)[:, :, None, None]

    return run


def _turned(weight: np.ndarray) -> np.ndarray:
    """(kernel, kernel, in, out), the layout of the paper."""
    return np.ascontiguousarray(weight.transpose(2, 3, 1, 0))


def _transform(kernel: np.ndarray, n: int) -> np.ndarray:
    return np.fft.fft2(kernel, (n, n), axes=(0, 1))  # (n, n, in, out)


def _too_large(case: Case) -> str:
    if max(case.matrix) * case.frequencies <= MOST_ROWS:
        return ""
    return f"its matrix has more than {MOST_ROWS} rows or columns"


def _not_only_pointwise(case: Case) -> str:
    return "" if case.kernel == 1 else "for 1x1 kernels alone"


CONTENDERS = (
    Contender(
        "full matrix, NumPy",
        {"values": matrix_values, "norm": matrix_norm},
        _too_large,
    ),
    Contender(
        "paper, NumPy",
        {"values": fft_values, "norm": fft_norm, "clip": fft_clip},
        not_strided_nor_pointwise,
    ),
    Contender(
        "one matrix, NumPy",
        {"values": pointwise_values, "norm": pointwise_norm, "clip": pointwise_clip},
        _not_only_pointwise,
    ),
)
