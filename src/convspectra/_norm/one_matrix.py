"""The norm where all frequencies have the same real matrix.

That is so with a 1x1 kernel, and with patches side by side: no tap reaches from one to
the next.
"""

import math
from dataclasses import dataclass

import numpy as np

from .._arrays.array import Array, asarray_like
from .._arrays.linalg import is_definite
from .._maps.symbol import Taps
from .peak import NO_PROGRESS, Peak
from .rounding import UNIT_DOUBLE, Allowance, effective_rtol, of_symbol

# The largest side at which a decomposition takes less time than an iteration; and that
# at which SQUARINGS products of a matrix take less time than Lanczos.
DECOMPOSED_SIDE, SQUARED_SIDE, SQUARINGS = 24, 80, 7
# Steps of Lanczos before inverse iteration, and the most steps of that.
LANCZOS_STEPS, INVERSE_STEPS = 20, 4
# Relative residual at which inverse iteration stops: the eigenvalue's error is about
# its square.
CONVERGED = 1e-6


def norm_of_one_matrix(taps: Taps, rtol: float) -> Peak:
    """The norm of the matrix of all frequencies, in real arithmetic."""
    _, out, in_channels = taps.channel_shape
    # Each polyphase component has one tap.
    components = taps.weight.real.reshape(-1, out, in_channels)
    matrix = np.ascontiguousarray(components.swapaxes(0, 1)).reshape(out, -1)
    found = norm_of_matrix(matrix, of_symbol(taps, UNIT_DOUBLE), rtol)
    return Peak(
        lower=found.lower,
        upper=found.upper,
        cycles=np.zeros(taps.shifts.shape[1]),
        group=0,
        left=asarray_like(taps.weight, found.left),
        right=asarray_like(taps.weight, found.right),
    )


@dataclass(frozen=True, slots=True, eq=False)
class MatrixNorm:
    """Bounds of a matrix's norm, and the unit vectors that attain the lower one."""

    lower: float
    upper: float
    left: np.ndarray
    right: np.ndarray


def norm_of_matrix(matrix: np.ndarray, allowance: Allowance, rtol: float) -> MatrixNorm:
    """The norm of a real matrix in double precision, with entries near 1."""
    wide = matrix.shape[0] <= matrix.shape[1]
    short = matrix if wide else matrix.T
    gram = short @ short.T

    def certified(x: np.ndarray, rtol: float) -> MatrixNorm | None:
        """The norm with the vector x, if no gain is larger by more than `rtol`."""
        other, length = x @ short, _length(x)
        gain = _length(other) / length
        threshold = allowance.threshold(gain, rtol)
        if threshold:
            rest = -gram
            rest.reshape(-1)[:: len(gram) + 1] += threshold * threshold
            if not is_definite(rest):
                return None
        x, other = x / length, other / (length * gain or 1.0)
        left, right = (x, other) if wide else (other, x)
        lower, upper = allowance.lower(gain), allowance.upper(threshold)
        return MatrixNorm(lower, upper, left, right)

    found, rtol = None, effective_rtol(rtol)
    if len(gram) > DECOMPOSED_SIDE:
        found = certified(top_eigenvector(gram), rtol)
    found = found or certified(np.linalg.eigh(gram)[1][:, -1], rtol)
    if found is None:
        raise ArithmeticError(NO_PROGRESS)
    return found


def top_eigenvector(gram: np.ndarray) -> Array:
    """The top eigenvector of a real symmetric matrix, or one of the next.

    A high power of the matrix or a few steps of Lanczos come near it, and inverse
    iteration, shifted by the Rayleigh quotient, converges from there with the third
    power of the error.
    """
    x = _by_squaring(gram) if len(gram) <= SQUARED_SIDE else _by_lanczos(gram)
    for _ in range(INVERSE_STEPS):
        image = gram @ x
        quotient = float(x @ image)
        if _length(image - quotient * x) <= CONVERGED * quotient:
            break
        shifted = gram.copy()
        shifted.reshape(-1)[:: len(gram) + 1] -= quotient
        try:
            x = np.linalg.solve(shifted, x)
        except np.linalg.LinAlgError:  # the quotient is an eigenvalue, to the last bit
            break
        x /= _length(x)
    return x


def _by_squaring(gram: np.ndarray) -> np.ndarray:
    """The largest column of a high power of the matrix: of its 128th."""
    # No eigenvalue is above 1, and the largest at least 1 / sqrt(side): with 80 rows,
    # the square of its 128th power is 1e-244.
    power = gram / (_length(gram.reshape(-1)) or 1.0)
    for _ in range(SQUARINGS):
        power = power @ power
    x = power[power.diagonal().argmax()]
    length = _length(x)
    return x / length if length else np.ones(len(x)) / math.sqrt(len(x))


def _by_lanczos(gram: np.ndarray) -> np.ndarray:
    """The Ritz vector of a few steps of Lanczos."""
    v = np.random.default_rng(0).standard_normal(len(gram))
    v /= _length(v)
    basis, diagonal, beside = [v], [], []
    for _ in range(LANCZOS_STEPS):
        image = gram @ v
        diagonal.append(float(image @ v))
        image -= diagonal[-1] * v
        if len(basis) > 1:
            image -= beside[-1] * basis[-2]
        beside.append(_length(image))
        if beside[-1] <= CONVERGED * diagonal[0]:  # an invariant subspace
            break
        v = image / beside[-1]
        basis.append(v)
    lower = np.diag(diagonal) + np.diag(beside[:-1], -1)  # which eigh reads
    weights = np.linalg.eigh(lower)[1][:, -1]
    x = weights @ np.array(basis[: len(weights)])
    return x / _length(x)


def _length(x: np.ndarray) -> float:
    return math.sqrt(float(x @ x))
