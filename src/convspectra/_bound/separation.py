"""Separation oracle of the cutting planes: norms above a bound, and cuts there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .._arrays.array import Array, to_complex
from .._maps.symbol import symbol
from .._norm.small_matrices import SmallMatrices
from .blocks import TorusBlocks
from .clip import soft_thresholded
from .cuts import NewCuts
from .half_spaces import DenseHalfSpaces, LowRankHalfSpaces
from .top_triplets import Triplets, concatenated, top_triplets

# The largest side at which matrices are decomposed, one per lane of a vector.
DENSE_CUTS_SIDE = 128


@dataclass(frozen=True, slots=True, eq=False)
class Separation:
    """What separates a kernel from those within a bound. None of it is certified.

    Attributes
    ----------
    norms : array, shape (frequencies,)
        Estimates of the symbol's norms.
    cuts : function
        From a bound c and the numbers of frequencies where the norm is above it to the
        cuts there.
    vectors : array, shape (frequencies, side, kept), or None
        Estimates of the top singular vectors of the short side; None if matrices are
        small.
    """

    norms: np.ndarray
    cuts: Callable[[float, np.ndarray], NewCuts]
    vectors: np.ndarray | None

    @property
    def largest(self) -> float:
        return float(self.norms.max())


def separate(
    blocks: TorusBlocks, kernel: np.ndarray, vectors: np.ndarray | None
) -> Separation:
    """Of a kernel (taps, out * in), from the vectors of one that is not far from it."""
    if min(blocks.shape) <= DENSE_CUTS_SIDE:
        taps = replace(blocks.taps, weight=to_complex(kernel))
        norms = SmallMatrices(taps, blocks.all_phases).estimates()[:, 0]
        return Separation(norms, partial(_dense_cuts, blocks, kernel), None)
    single = replace(blocks.taps, weight=kernel.astype(np.complex64))
    found = concatenated(
        [
            top_triplets(
                symbol(single, blocks.phases(part).astype(np.complex64))[:, 0],
                None if vectors is None else vectors[part],
            )
            for part in blocks.parts()
        ]
    )
    return Separation(
        found.s[:, 0], partial(_low_rank_cuts, blocks, found), found.short
    )


def _dense_cuts(
    blocks: TorusBlocks, kernel: np.ndarray, c: float, where: np.ndarray
) -> NewCuts:
    parts: Array = soft_thresholded(blocks, kernel.astype(np.complex64), c, where)
    squares = np.sum(parts.real**2 + parts.imag**2, axis=(1, 2), dtype=np.float64)
    phase = blocks.phases(where)
    half_spaces = DenseHalfSpaces.of(parts, phase, blocks.taps)
    inner = half_spaces.gains(kernel, blocks.taps)
    # Re <U max(S - c, 0) V^H, U S V^H> is the square plus c times the nuclear norm.
    nuclear = (inner - squares) / c
    own = nuclear > 0
    scaled = half_spaces.only(own).divided(nuclear[own])
    return NewCuts(scaled, where[own], inner[own] / nuclear[own], nuclear[own])


def _low_rank_cuts(
    blocks: TorusBlocks, found: Triplets, c: float, where: np.ndarray
) -> NewCuts:
    excess = np.maximum(found.s[where].astype(np.float64) - c, 0.0)
    nuclear = excess.sum(axis=1)
    weights = excess / nuclear[:, None]
    owner, kept = np.nonzero(weights)
    terms = where[owner], slice(None), kept
    half_spaces = LowRankHalfSpaces(
        found.u[terms] * weights[owner, kept, None].astype(np.float32),
        found.v[terms],
        owner,
        blocks.phases(where),
        where,
    )
    gains = np.vecdot(weights, found.s[where])
    return NewCuts(half_spaces, where, gains, nuclear)
