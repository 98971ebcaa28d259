"""Decompositions of batches of matrices, by whichever library at hand is fastest."""

import sys
from typing import Any

import array_api_compat
import numpy as np

from .array import Array, is_complex, is_host, namespace, stop_gradient, to_numpy
from .host import with_one_thread

# Entries times sides of matrices up to which NumPy takes less time than to start a
# thread: for eigenvectors, and for Cholesky factors.
EIGH_LIMIT, CHOLESKY_LIMIT = 2**17, 2**21


def svdvals(x: Array) -> Array:
    """The singular values of the matrices in the last two axes, descending."""
    xp = namespace(x)
    if min(x.shape[-2:]) > 1:
        return xp.linalg.svdvals(x)
    largest = xp.max(xp.abs(stop_gradient(x)), axis=(-2, -1), keepdims=True)
    # Divide by the largest entry, so that squares neither overflow nor underflow.
    largest = xp.clip(largest, min=float(xp.finfo(largest.dtype).smallest_normal))
    parts = (xp.real(x), xp.imag(x)) if is_complex(x) else (x,)
    square = sum(xp.sum((part / largest) ** 2, axis=(-2, -1)) for part in parts)
    # The root has no derivative at 0: do not take it there, nor its derivative.
    zero = square == 0
    root = xp.sqrt(xp.where(zero, xp.ones_like(square), square))
    root = xp.where(zero, xp.zeros_like(root), root)
    return (root * largest[..., 0, 0])[..., None]


def svdvals_of_single(x: np.ndarray) -> np.ndarray:
    """As `svdvals`, of real matrices in single precision, in a third of the time.

    The roots of the eigenvalues of Gram matrices, in double precision. A square is off
    by some 1e-16 of the largest one, and so a value by at most 1e-8 of the largest:
    less than single precision tells apart.
    """
    double = x.astype(np.float64)  # in which their squares are far from both ends
    double = double if x.shape[-2] <= x.shape[-1] else double.swapaxes(-2, -1)
    squares = np.linalg.eigvalsh(double @ double.swapaxes(-2, -1))[..., ::-1]
    return np.sqrt(np.maximum(squares, 0.0)).astype(np.float32)


def are_definite(matrices: Array) -> np.ndarray:
    """Whether each Hermitian matrix (batch, n, n) has a Cholesky factor."""
    xp = namespace(matrices)
    if matrices.shape[-1] == 1:
        return np.real(to_numpy(matrices))[:, 0, 0] > 0
    torch = _faster_torch(matrices, CHOLESKY_LIMIT)
    if torch is not None:
        found = with_one_thread(torch.linalg.cholesky_ex, torch.asarray(matrices))
        return to_numpy(found.info == 0) & are_factors(torch, found.L)
    if matrices.shape[-1] < 64 and _have_factors(xp, matrices):
        return np.ones(matrices.shape[0], dtype=bool)
    # NumPy does not say which one of a batch failed.
    each = (matrices[i, ...] for i in range(matrices.shape[0]))
    return np.array([_have_factors(xp, matrix) for matrix in each], dtype=bool)


def is_definite(matrix: np.ndarray) -> bool:
    """As `are_definite`, of one matrix of NumPy's: with less around it."""
    return _have_factors(np, matrix)


def _have_factors(xp: Any, matrices: Array) -> bool:
    try:
        factors = xp.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return False
    return bool(are_factors(xp, factors).all())


def are_factors(xp: Any, factors: Array) -> np.ndarray:
    """Whether each factorization went through.

    Some libraries mark a failure by NaN alone. The diagonal decides, whose squares are
    the pivots: all other entries have entered into them.
    """
    diagonal = np.real(to_numpy(xp.linalg.diagonal(factors)))
    return np.asarray(((diagonal > 0) & np.isfinite(diagonal)).all(axis=-1))


def eigh(x: Array) -> tuple[Array, Array]:
    """The ascending eigenvalues and the eigenvectors of Hermitian matrices."""
    torch = _faster_torch(x, EIGH_LIMIT) if is_host(x) else None
    if torch is None:
        values, vectors = namespace(x).linalg.eigh(x)
        return values, vectors
    values, vectors = with_one_thread(torch.linalg.eigh, torch.asarray(x))
    return values.numpy(), vectors.numpy()


def _faster_torch(x: Array, limit: int) -> Any:
    """Torch, if `x` is a tensor, or if torch is imported and its LAPACK is faster.

    For little work, up to `limit`, it is not.
    """
    torch = sys.modules.get("torch")
    if torch is None or array_api_compat.is_torch_array(x):
        return torch
    if not is_host(x) or x.size * x.shape[-1] <= limit:
        return None
    if not torch.backends.mkl.is_available():
        return None
    return torch
