"""Lanczos in the array's own library: top singular pairs, and estimates of norms.

For NumPy's Gram matrices `_compiled/packed.py` has a compiled one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays.array import (
    Array,
    asarray_like,
    conj,
    frobenius_norm,
    is_complex,
    namespace,
    spacing,
    to_numpy,
    zeros_for,
)
from .._compiled.packed import lanczos_steps, start_vector

BASIS_BYTES = 2**29  # memory that the basis of a top pair may take
BASIS, RESTARTS = 24, 12  # steps between two restarts, and the most restarts
# Off-diagonal entry, over the first diagonal one and in units of the precision, up to
# which a Krylov space counts as invariant: what is left is rounding error, and vectors
# made of it are not orthogonal to the others.
INVARIANT = 45


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A unit input x of a linear map, its output y, and the gain |y| / |x|.

    The map's norm is at least its gain.
    """

    gain: float
    x: Array
    y: Array


def unit_pair(apply: Callable[[Array], Array], x: Array) -> Pair:
    """The pair of the input `x`, scaled to length 1; of a constant one if `x` is 0."""
    if not frobenius_norm(x):
        x = namespace(x).ones_like(x)
    x = x / frobenius_norm(x)
    y = apply(x)
    return Pair(frobenius_norm(y), x, y)


def top_vector(
    gram: Callable[[Array], Array],
    start: Array,
    *,
    rtol: float,
    goal: float = math.inf,
    patience: int = BASIS,
) -> Array:
    """The top right singular vector of a linear map, by restarted Lanczos from `start`.

    `gram` is the map followed by its adjoint. Stops when a restart gains less than
    `rtol`, or so many steps of one (`patience`) do, or the gain has reached `goal`.
    """
    xp, shape, length = namespace(start), start.shape, math.prod(start.shape)
    steps = min(max(3, min(BASIS, BASIS_BYTES // (16 * length))), length)

    def flat_gram(x: Array) -> Array:
        return xp.reshape(gram(xp.reshape(x, shape)), (1, -1))

    def is_settled(diagonal: list[Array], off_diagonal: list[Array]) -> bool:
        if len(diagonal) <= patience and goal == math.inf:
            return False
        d, e = ([float(x[0]) for x in entries] for entries in (diagonal, off_diagonal))
        gain = _top_of_tridiagonal(d, e).gain
        k = len(d) - patience
        earlier = _top_of_tridiagonal(d[:k], e[:k]).gain if k > 0 else 0.0
        return gain <= earlier * (1 + rtol) or gain >= goal

    x, best = start / frobenius_norm(start), 0.0
    for _ in range(RESTARTS):
        krylov = _lanczos(flat_gram, xp.reshape(x, (1, -1)), steps, is_settled)
        ritz = _top_of_tridiagonal(krylov.diagonal[0], krylov.off_diagonal[0])
        if ritz.gain <= best:
            break
        weights = asarray_like(start, ritz.weights)
        x = xp.reshape(xp.matmul(weights, krylov.basis[0, ...]), shape)
        x = x / frobenius_norm(x)
        if len(ritz.weights) < steps or ritz.gain <= best * (1 + rtol):
            break
        best = ritz.gain
    return x


@dataclass(frozen=True, slots=True, eq=False)
class _Ritz:
    gain: float  # the root of the largest eigenvalue of a projected matrix
    weights: np.ndarray  # of the basis in its eigenvector


def _top_of_tridiagonal(diagonal: Any, off_diagonal: Any) -> _Ritz:
    lower = np.diag(diagonal) + np.diag(off_diagonal[:-1], -1)  # which eigh reads
    values, vectors = np.linalg.eigh(lower)
    return _Ritz(math.sqrt(max(float(values[-1]), 0.0)), vectors[:, -1])


def norm_estimates(grams: Array) -> np.ndarray:
    """The largest eigenvalues of Gram matrices (count, side, side), from below.

    As close as a few steps of Lanczos bring them.
    """
    from .._compiled.tridiagonal import top_eigenvalues

    xp, (count, side, _) = namespace(grams), grams.shape
    start = asarray_like(grams, np.tile(start_vector(side), (count, 1)))

    def gram(x: Array) -> Array:
        return xp.matmul(grams, x[:, :, None])[:, :, 0]

    krylov = _lanczos(gram, start, lanczos_steps(side), lambda *_: False)
    values = np.empty(count)
    top_eigenvalues(krylov.diagonal, krylov.off_diagonal, values)
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _Krylov:
    diagonal: np.ndarray  # (count, steps) of the projected matrices
    off_diagonal: np.ndarray  # (count, steps); the last one couples to what is left
    basis: Array  # (count, steps, length), orthonormal


# OpenBLAS may set the flag of an invalid operation where all numbers are finite: seen
# on AVX-512 for a product of five rows.
@np.errstate(invalid="ignore")
def _lanczos(
    gram: Callable[[Array], Array],
    start: Array,
    steps: int,
    is_settled: Callable[[list[Array], list[Array]], bool],
) -> _Krylov:
    """Lanczos with full reorthogonalization, from unit vectors (count, length).

    Takes fewer steps if all Krylov spaces become invariant, or `is_settled` says so of
    the projected matrices.
    """
    xp = namespace(start)
    basis = zeros_for(start, (start.shape[0], steps, start.shape[1]))
    basis[:, 0, :] = start
    diagonal, off_diagonal, least = [], [], INVARIANT * spacing(start)
    for j in range(steps):
        known = basis[:, : j + 1, :]
        v, alpha = gram(basis[:, j, :]), 0.0
        for _ in range(2):  # twice is enough to stay orthogonal
            along = xp.matmul(known, conj(v)[:, :, None])  # (count, j + 1, 1)
            v = v - xp.matmul(conj(xp.matrix_transpose(along)), known)[:, 0, :]
            last = along[:, j, 0]
            alpha = alpha + (xp.real(last) if is_complex(last) else last)
        diagonal.append(alpha)
        beta = xp.linalg.vector_norm(v, axis=1)
        goes_on = beta > least * xp.abs(diagonal[0])
        beta = xp.where(goes_on, beta, xp.zeros_like(beta))
        off_diagonal.append(beta)
        settled = is_settled(diagonal, off_diagonal)
        if settled or j + 1 == steps or not bool(xp.any(goes_on)):
            break
        inverse = xp.where(goes_on, 1 / beta, beta)  # 0 where nothing is left
        basis[:, j + 1, :] = v * inverse[:, None]
    return _Krylov(
        diagonal=to_numpy(xp.stack(diagonal, axis=1)),
        off_diagonal=to_numpy(xp.stack(off_diagonal, axis=1)),
        basis=basis[:, : len(diagonal), :],
    )
