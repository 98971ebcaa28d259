"""The norm where all frequencies have the same real matrix.

That is so with a 1x1 kernel, and with patches side by side: no tap reaches from one to
the next.
"""

import math

import numpy as np

from .._arrays.array import Array, asarray_like
from .._arrays.linalg import are_definite
from .._maps.symbol import Taps
from .peak import NO_PROGRESS, Peak
from .rounding import UNIT_DOUBLE, effective_rtol, of_symbol

# The largest side at which a decomposition takes less time than an iteration.
DECOMPOSED_SIDE = 48
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
    wide = matrix.shape[0] <= matrix.shape[1]
    short = matrix if wide else matrix.T
    gram = short @ short.T
    allowance = of_symbol(taps, UNIT_DOUBLE)

    def certified(x: np.ndarray, rtol: float) -> Peak | None:
        """The peak with the vector x, if no gain is larger by more than `rtol`."""
        other, length = x @ short, _length(x)
        gain = _length(other) / length
        threshold = allowance.threshold(gain, rtol)
        if threshold:
            rest = threshold * threshold * np.eye(len(gram)) - gram
            if not are_definite(rest[None]).all():
                return None
        x, other = x / length, other / (length * gain or 1.0)
        left, right = (x, other) if wide else (other, x)
        return Peak(
            lower=allowance.lower(gain),
            upper=allowance.upper(threshold),
            cycles=np.zeros(taps.shifts.shape[1]),
            group=0,
            left=asarray_like(taps.weight, left),
            right=asarray_like(taps.weight, right),
        )

    peak, rtol = None, effective_rtol(rtol)
    if len(gram) > DECOMPOSED_SIDE:
        peak = certified(top_eigenvector(gram), rtol)
    peak = peak or certified(np.linalg.eigh(gram)[1][:, -1], rtol)
    if peak is None:
        raise ArithmeticError(NO_PROGRESS)
    return peak


def top_eigenvector(gram: np.ndarray) -> Array:
    """The top eigenvector of a real symmetric matrix, or one of the next.

    A few steps of Lanczos come near it, and inverse iteration, shifted by the Rayleigh
    quotient, converges from there with the third power of the error.
    """
    x = _by_lanczos(gram)
    for _ in range(INVERSE_STEPS):
        image = gram @ x
        quotient = float(x @ image)
        if _length(image - quotient * x) <= CONVERGED * quotient:
            break
        try:
            x = np.linalg.solve(gram - quotient * np.eye(len(gram)), x)
        except np.linalg.LinAlgError:  # the quotient is an eigenvalue, to the last bit
            break
        x /= _length(x)
    return x


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
