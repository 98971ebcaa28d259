"""Lanczos in the array's own library: top singular pairs, and estimates of norms.

For NumPy's Gram matrices `_compiled/packed.py` has a compiled one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._arrays.array import (
    Array,
    asarray_like,
    conj,
    frobenius_norm,
    is_complex,
    namespace,
    to_numpy,
)
from .._compiled.packed import lanczos_steps, start_vector

BASIS_BYTES = 2**29  # memory that the basis of a top pair may take
BASIS, RESTARTS = 24, 12  # steps between two restarts, and the most restarts
# Off-diagonal entry, over the first diagonal one, from which on a Krylov space counts
# as invariant: what is left of the next vector is rounding error.
INVARIANT = 1e-14


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A unit input x of a linear map, its output y, and the gain |y| / |x|.

    The map's norm is at least its gain.
    """

    gain: float
    x: Array
    y: Array


def gain_of(apply: Callable[[Array], Array], x: Array) -> Pair:
    """The gain of a map for the input `x`, scaled to length 1."""
    x = x / (frobenius_norm(x) or 1.0)
    y = apply(x)
    return Pair(frobenius_norm(y), x, y)


def top_pair(
    apply: Callable[[Array], Array],
    gram: Callable[[Array], Array],
    start: Array,
    *,
    rtol: float,
    goal: float = math.inf,
) -> Pair:
    """The top singular pair of a linear map, by restarted Lanczos from `start`.

    `gram` is the map followed by its adjoint. Stops when a restart gains less than
    `rtol`, or the gain has reached `goal`.
    """
    xp, shape, length = namespace(start), start.shape, math.prod(start.shape)
    steps = min(max(3, min(BASIS, BASIS_BYTES // (16 * length))), length)

    def flat_gram(x: Array) -> Array:
        return xp.reshape(gram(xp.reshape(x, shape)), (1, -1))

    x = start / frobenius_norm(start)
    best = Pair(0.0, x, apply(x))
    for _ in range(RESTARTS):
        krylov = _lanczos(flat_gram, xp.reshape(best.x, (1, -1)), steps)
        d, e = krylov.diagonal[0], krylov.off_diagonal[0]
        tridiagonal = np.diag(d) + np.diag(e[:-1], -1)  # eigh reads the lower triangle
        weights = np.linalg.eigh(tridiagonal)[1][:, -1]
        ritz = xp.matmul(asarray_like(start, weights), krylov.basis[0, ...])
        pair = gain_of(apply, xp.reshape(ritz, shape))
        if pair.gain <= best.gain:
            break
        converged = pair.gain <= best.gain * (1 + rtol) or pair.gain >= goal
        best = pair
        if converged:
            break
    return best


def norm_estimates(grams: Array) -> np.ndarray:
    """The largest eigenvalues of Gram matrices (count, side, side), from below.

    As close as a few steps of Lanczos bring them.
    """
    from .._compiled.tridiagonal import top_eigenvalues

    xp, (count, side, _) = namespace(grams), grams.shape
    start = asarray_like(grams, np.tile(start_vector(side), (count, 1)))

    def gram(x: Array) -> Array:
        return xp.matmul(grams, x[:, :, None])[:, :, 0]

    krylov = _lanczos(gram, start, lanczos_steps(side))
    values = np.empty(count)
    top_eigenvalues(krylov.diagonal, krylov.off_diagonal, values)
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _Krylov:
    diagonal: np.ndarray  # (count, steps) of the projected matrices
    off_diagonal: np.ndarray  # (count, steps); the last one couples to what is left
    basis: Array  # (count, steps, length), orthonormal


def _lanczos(gram: Callable[[Array], Array], start: Array, steps: int) -> _Krylov:
    """Lanczos with full reorthogonalization, from unit vectors (count, length).

    Takes fewer steps if all Krylov spaces become invariant.
    """
    xp = namespace(start)
    basis = asarray_like(start, np.zeros((start.shape[0], steps, start.shape[1])))
    basis[:, 0, :] = start
    diagonal, off_diagonal = [], []
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
        goes_on = beta > INVARIANT * xp.abs(diagonal[0])
        beta = xp.where(goes_on, beta, xp.zeros_like(beta))
        off_diagonal.append(beta)
        if j + 1 == steps or not bool(xp.any(goes_on)):
            break
        inverse = xp.where(goes_on, 1 / beta, beta)  # 0 where nothing is left
        basis[:, j + 1, :] = v * inverse[:, None]
    return _Krylov(
        diagonal=to_numpy(xp.stack(diagonal, axis=1)),
        off_diagonal=to_numpy(xp.stack(off_diagonal, axis=1)),
        basis=basis[:, : len(diagonal), :],
    )
