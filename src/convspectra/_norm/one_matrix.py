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
from .rounding import UNIT_DOUBLE, Allowance, effective_rtol, of_symbol, power_error

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
    vectors = [asarray_like(taps.weight, x) for x in found.vectors]
    left, right = vectors if out <= matrix.shape[1] else vectors[::-1]
    return Peak(
        lower=found.lower,
        upper=found.upper,
        cycles=np.zeros(taps.shifts.shape[1]),
        group=0,
        left=left,
        right=right,
    )


@dataclass(frozen=True, slots=True, eq=False)
class MatrixNorm:
    """Bounds of a matrix's norm, and vectors that attain the lower one.

    Attributes
    ----------
    x : array
        As long as the shorter side.
    image : array
        Of x under the matrix or its transpose, as long as the other side.
    """

    lower: float
    upper: float
    x: np.ndarray
    image: np.ndarray

    @property
    def vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Both scaled to length 1, unless the matrix is zero."""
        return self.x / _length(self.x), self.image / (_length(self.image) or 1.0)


def norm_of_matrix(matrix: np.ndarray, allowance: Allowance, rtol: float) -> MatrixNorm:
    """The norm of a real matrix in double precision; its squares are in range."""
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    gram = short @ short.T
    found = None
    if len(gram) <= SQUARED_SIDE:
        found = _by_power(short, gram, allowance, rtol)
    if found is not None:
        return found

    def certified(x: np.ndarray, rtol: float) -> MatrixNorm | None:
        """The norm with the vector x, if no gain is larger by more than `rtol`."""
        image = x @ short
        gain = _length(image) / _length(x)
        threshold = allowance.threshold(gain, rtol)
        if threshold:
            rest = -gram
            rest.reshape(-1)[:: len(gram) + 1] += threshold * threshold
            if not is_definite(rest):
                return None
        lower, upper = allowance.lower(gain), allowance.upper(threshold)
        return MatrixNorm(lower, upper, x, image)

    rtol = effective_rtol(rtol)
    if len(gram) > DECOMPOSED_SIDE:
        found = certified(top_eigenvector(gram), rtol)
    found = found or certified(np.linalg.eigh(gram)[1][:, -1], rtol)
    if found is None:
        raise ArithmeticError(NO_PROGRESS)
    return found


def _by_power(
    short: np.ndarray, gram: np.ndarray, allowance: Allowance, rtol: float
) -> MatrixNorm | None:
    """The norm of a matrix by a high power of its Gram matrix, if within `rtol`.

    Let the power be that of exponent p. Its norm is the p-th power of the largest
    eigenvalue, and at most its Frobenius norm, which counts the p-th powers of all
    eigenvalues. Unless the largest are very close, the other powers are nothing beside
    the first.
    """
    size = _length(gram.reshape(-1))
    if not size:
        return None
    high = _high_power(gram, size)
    root = _length(high.reshape(-1))
    for _ in range(SQUARINGS):
        root = math.sqrt(root)
    x = _largest_row(high)
    image = x @ short
    lower = allowance.lower(_length(image) / _length(x))
    upper = allowance.upper(math.sqrt(size * root * (1 + power_error(len(gram)))))
    return MatrixNorm(lower, upper, x, image) if upper <= lower * (1 + rtol) else None


def _high_power(gram: np.ndarray, size: float) -> np.ndarray:
    """The 128th power of gram / size, with the matrix's Frobenius norm as size.

    No eigenvalue is above 1, and the largest at least 1 / sqrt(side): with 80 rows, its
    128th power is at least 1e-122, and the square of that 1e-244.
    """
    high = gram / size
    for _ in range(SQUARINGS):
        high = high @ high.T
    return high


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
    """The largest column of a high power of the matrix."""
    high = _high_power(gram, _length(gram.reshape(-1)) or 1.0)
    return _largest_row(high) if high.any() else np.ones(len(high)) / len(high) ** 0.5


def _largest_row(high: np.ndarray) -> np.ndarray:
    """Of a high power: near the top eigenvector, and of length 1."""
    x = high[high.diagonal().argmax()]
    return x / _length(x)


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
