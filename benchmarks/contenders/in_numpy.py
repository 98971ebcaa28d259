"""In NumPy: the full matrix, the paper's lines, one matrix for 1x1, convspectra."""

import math

import numpy as np

import convspectra as cs

from ..cases import Case, Task
from . import PAPER, Contender, not_strided_nor_pointwise
from .ours import ours
from .paper import LAYOUT, paper_jobs

MOST_ROWS = 4096  # of a full matrix: 16 channels on 16x16


def matrix_values(weight: np.ndarray, task: Task) -> np.ndarray:
    """Write the layer as one matrix, and take its singular values."""
    matrix = cs.dense_matrix(weight, task.case.geometry)
    return np.linalg.svd(matrix, compute_uv=False)


def matrix_norm(weight: np.ndarray, task: Task) -> np.floating:
    """Write the layer as one matrix, and take its norm."""
    return np.linalg.norm(cs.dense_matrix(weight, task.case.geometry), 2)


def pointwise_values(weight: np.ndarray, task: Task) -> np.ndarray:
    """The singular values of the one matrix, at every frequency."""
    values = np.linalg.svd(weight[:, :, 0, 0], compute_uv=False)
    n = math.isqrt(task.case.frequencies)
    return np.broadcast_to(values, (n, n, values.size)).copy()


def pointwise_norm(weight: np.ndarray, _: Task) -> np.floating:
    """The norm of the one matrix."""
    return np.linalg.norm(weight[:, :, 0, 0], 2)


def pointwise_clip(weight: np.ndarray, task: Task) -> np.ndarray:
    """Clip the singular values of the one matrix."""
    u, s, vh = np.linalg.svd(weight[:, :, 0, 0], full_matrices=False)
    return np.matmul(u * np.minimum(s, task.max_norm), vh)[:, :, None, None]


def _too_large(case: Case) -> str:
    if max(case.matrix) * case.frequencies <= MOST_ROWS:
        return ""
    return f"its matrix has more than {MOST_ROWS} rows or columns"


CONTENDERS = (
    Contender(
        "full matrix, NumPy",
        {"values": matrix_values, "norm": matrix_norm},
        refuses=_too_large,
    ),
    Contender(
        PAPER,
        paper_jobs(np),
        asarray=lambda weight: np.ascontiguousarray(weight.transpose(LAYOUT)),
        refuses=not_strided_nor_pointwise,
    ),
    Contender(
        "one matrix, NumPy",
        {"values": pointwise_values, "norm": pointwise_norm, "clip": pointwise_clip},
        refuses=lambda case: "" if case.kernel == 1 else "for 1x1 kernels alone",
    ),
    ours("NumPy", np.asarray),
)
