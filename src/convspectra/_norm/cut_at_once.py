"""Multiply by a number at each frequency, cut to a box: on all axes at once.

`cut.py` goes axis by axis, which gives away about as much as the compression itself.
Where the box has few sites, the matrix between all of them is small enough to be
factorized.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._arrays.linalg import is_definite
from .cut import Cut, cut_to_box, waves
from .lanczos import BASIS, top_vector
from .rounding import UP, of_cut

MOST_SITES = 2**10  # of the box: 10 to 30 ms
# Where to ask for a factor, above what Lanczos finds, relatively: the first that has.
STEPS = (1e-5, 1e-4, 1e-3)
# Lanczos ends where so many steps gain less than this, relatively; and the noise in its
# start, so that nothing is out of reach.
CONVERGED, PATIENCE, NOISE = 1e-6, 4, 1e-3


def cut_at_once(a: np.ndarray, sites: tuple[int, ...], *, even: bool) -> Cut:
    """As `cut_to_box`, and mostly closer; for boxes of at most MOST_SITES."""
    bases = [waves(n, points) for n, points in zip(sites, a.shape)]
    matrix, largest = _compressed_matrix(a, bases), float(a.max())
    parts = _by_parity(sites) if even else [np.arange(len(matrix))]
    blocks = [matrix[np.ix_(part, part)] for part in parts]
    wave = _damped_wave(np.unravel_index(a.argmax(), a.shape), bases)
    starts = [wave[part] for part in parts]
    top, allowance = _top_of(blocks, starts, PATIENCE), of_cut(sites, a.shape)
    if not _are_below(blocks, top.gain * (1 + STEPS[0])):  # another wave is at the top
        top = _top_of(blocks, [0 * start for start in starts], BASIS)
    for step in STEPS:
        threshold = top.gain * (1 + step)
        if _are_below(blocks, threshold):
            above = threshold * (1 + allowance.certified) + allowance.absolute * largest
            break
    else:  # Lanczos has missed the largest eigenvalue
        return cut_to_box(a, sites, even=even)
    vector = np.zeros(len(matrix))
    vector[parts[top.block]] = top.vector
    wave = vector.reshape(sites)
    for basis in bases:
        wave = np.tensordot(wave, basis, axes=(0, 0))
    return Cut(min(above * UP, largest), wave**2)


def _compressed_matrix(a: np.ndarray, bases: Sequence[np.ndarray]) -> np.ndarray:
    """B diag(a) B^T, where B is the product of the bases of all axes."""
    found = a
    for basis in bases:
        pairs = basis[:, None, :] * basis[None, :, :]
        found = np.tensordot(found, pairs, axes=(0, 2))
    rows = range(0, found.ndim, 2)
    side = math.isqrt(found.size)
    return found.transpose([*rows, *(k + 1 for k in rows)]).reshape(side, side)


def _by_parity(sites: tuple[int, ...]) -> list[np.ndarray]:
    """Rows that are even or odd if all axes are reversed: an even `a` keeps them apart.

    Waves have n - n // 2 cosines, and then sines.
    """
    odd = np.zeros(sites, dtype=int)
    for axis, n in enumerate(sites):
        own = np.arange(n) >= n - n // 2
        odd += own.reshape((-1,) + (1,) * (len(sites) - axis - 1))
    parts = (np.flatnonzero(odd % 2 == parity) for parity in range(2))
    return [part for part in parts if len(part)]


def _damped_wave(
    frequency: Sequence[np.integer], bases: Sequence[np.ndarray]
) -> np.ndarray:
    """The wave of a frequency, damped towards the edge of the box: close to the top."""
    found = np.ones(())
    for f, basis in zip(frequency, bases):
        n = len(basis)
        cosines = np.arange(n - n // 2) + (0 if n % 2 else 0.5)
        distance = np.concatenate([cosines, cosines[n % 2 :]])  # from the middle
        window = np.cos(np.pi * distance / (n + 1))
        found = np.multiply.outer(found, window * basis[:, f])
    return found.reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class _Top:
    block: int
    vector: np.ndarray
    gain: float


def _top_of(
    blocks: Sequence[np.ndarray], starts: Sequence[np.ndarray], patience: int
) -> _Top:
    """The largest eigenvalue that Lanczos finds, from these starts and some noise."""
    found = []
    for number, (block, start) in enumerate(zip(blocks, starts)):
        vector = _top_vector(block, start, patience)
        found.append(_Top(number, vector, float(vector @ block @ vector)))
    return max(found, key=lambda top: top.gain)


def _top_vector(block: np.ndarray, start: np.ndarray, patience: int) -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal(len(block))
    start = start / (np.linalg.norm(start) or 1.0)
    start = start + NOISE * noise / np.linalg.norm(noise)
    return top_vector(lambda x: x @ block, start, rtol=CONVERGED, patience=patience)


def _are_below(blocks: Sequence[np.ndarray], threshold: float) -> bool:
    """Whether no eigenvalue of these matrices is above the threshold."""
    for block in blocks:
        rest = -block
        rest.reshape(-1)[:: len(block) + 1] += threshold
        if not is_definite(rest):
            return False
    return True
