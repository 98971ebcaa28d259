"""The norm of a layer that pads with zeros, by small matrices of its symbol.

`compression.py` keeps one number of the symbol at each frequency. This keeps a small
matrix, between a few directions of the channels. With the symbol H(f) of a torus around
the layer and D(f) = [[0, H], [H^H, 0]], any matrix B, and any Hermitian matrices M(f),

    (1)  t - D(f) >= B M(f) B^H  at every frequency,
    (2)  M, cut to the sites of the layer, is positive semidefinite

give: t - D, cut to the sites, is at least B (M cut to the sites) B^H >= 0. That is, the
norm of the layer is at most t. If B has orthonormal columns, the largest M is the Schur
complement of t - D(f) on B, where t - D(f) must be positive on all that is orthogonal
to B. The columns of B are directions in which an input that nearly attains the norm has
most of its length, and the same of its output. See docs/mathematics.md.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._arrays.linalg import is_definite
from .._layer.stencil import Stencil
from .._price import directions_kept
from .block import block_of
from .block_rounding import factor_loss
from .kept_channels import ADDED, KeptChannels
from .kept_sites import CutMatrix, cut_to_sites
from .lanczos import Pair, top_vector
from .rounding import SLACK, UP
from .schur import Basis

# Thresholds that are tried at most.
ROUNDS = 6
# What an estimate of the least eigenvalue of a cut may be off by, over itself.
ESTIMATE = 0.02
# Relative gain of a restart of Lanczos at which that estimate is good enough.
CONVERGED = 1e-8
# The part of the gap that another threshold must promise to close.
WORTHWHILE = 0.2


def block_compression(
    weight: np.ndarray,
    stencil: Stencil,
    pair: Pair,
    rtol: float,
    most: float,
    *,
    rounds: int = ROUNDS,
) -> float | None:
    """A certified bound of the norm, within `rtol` of the gain of a pair if it can be.

    Parameters
    ----------
    weight : array
        Real, of a layer of one group that reads zeros outside of its input.
    pair : Pair
        An input that nearly attains the norm, and its output.
    most : float
        A bound that is no lower than this is of no use.
    rounds : int
        Thresholds that are tried at most, from that of `rtol` upwards.

    Returns
    -------
    float or None
        None if no bound below `most` is found.
    """
    block, kept = block_of(weight, stencil), directions_kept(stencil)
    inputs, outputs = block.by_cell(pair.x[0]), block.by_row(pair.y[0])
    left, right = (
        Basis.of(image.reshape(len(image), -1), kept) for image in (outputs, inputs)
    )
    channels = KeptChannels(block, left, right)
    images = [
        np.tensordot(image, basis.kept, ((0,), (0,)))
        for image, basis in ((outputs, left), (inputs, right))
    ]

    def attempt(t: float) -> _Attempt:
        small = channels.at(t)
        cut = None
        if small is not None:
            cut = cut_to_sites(small, images, block, ADDED * t)
        if cut is None:  # t is too low for all that is not kept
            return _Attempt(t, None, is_definite=False)
        return _Attempt(t, cut, is_definite=is_definite(cut.matrix))

    found = _lowest(attempt, pair.gain, rtol, most, rounds)
    if found is None or found.cut is None:
        return None
    lost = found.cut.lost + factor_loss(found.cut.matrix)
    upper = (found.t + lost) * channels.distortion * UP
    return upper if upper < most else None


@dataclass(frozen=True, eq=False)
class _Attempt:
    """A threshold, the cut there, and whether that has a Cholesky factor."""

    t: float
    cut: CutMatrix | None
    is_definite: bool

    @functools.cached_property
    def least(self) -> float:
        """The least eigenvalue of the cut, about: it takes longer than a factor."""
        return _least_eigenvalue(self.cut) if self.cut else -math.inf


def _lowest(
    attempt: Callable[[float], _Attempt],
    gain: float,
    rtol: float,
    most: float,
    rounds: int,
) -> _Attempt | None:
    """The lowest threshold, about, at which the least eigenvalue is not negative."""
    t, low, high = gain * (1 + SLACK * rtol), None, None
    for _ in range(rounds):
        if low is not None:
            t = _next(low, high, rtol, most)
        is_worthwhile = high is None or high.t - t >= WORTHWHILE * (high.t - gain)
        if not (0 < t < most and is_worthwhile):
            break
        tried = attempt(t)
        if tried.is_definite:
            high = tried
        else:
            low = tried
        if low is None:
            break
    return high


def _next(low: _Attempt, high: _Attempt | None, rtol: float, most: float) -> float:
    """Where the least eigenvalue is about 0.

    It grows at least as fast as the threshold, and is a concave function of it: a chord
    over its zero has its own zero above that.
    """
    least = min(low.least, -rtol * low.t / 10)  # an estimate may be positive
    if high is None:
        return min(low.t - least * (1 + ESTIMATE), (low.t + most) / 2)
    part = -least / (high.least - least) if low.cut else 0.5
    return low.t + (part + ESTIMATE) * (high.t - low.t)


def _least_eigenvalue(cut: CutMatrix) -> float:
    """About; it is not below this."""
    matrix = cut.matrix
    largest = float(np.abs(matrix).sum(axis=1).max())
    x = top_vector(lambda x: largest * x - matrix @ x, cut.start, rtol=CONVERGED)
    return float(x @ (matrix @ x) / (x @ x))
