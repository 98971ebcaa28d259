"""Multiply by a number at each frequency of a torus, cut to a box: how much at most?

This operator is a Toeplitz matrix of numbers. Its largest eigenvalue is bounded one
axis after the other: for each frequency of the other axes, the largest eigenvalue on
the first one takes the place of the numbers there. That leaves matrices with a row per
site of one axis, whose eigenvalues Cholesky factors certify. See docs/mathematics.md;
`cut_at_once.py` does without the order of axes.
"""

import math
from dataclasses import dataclass

import numpy as np

from .._arrays.linalg import are_definite, eigh
from .._base import cached
from .._route.norm import CUT_SITES
from .rounding import UP, Allowance, of_cut

# The part of the weight that may lie on lines whose eigenvalue is not known yet. These
# count with their largest value, which is too large by the gain of a cut.
UNSOLVED = 1e-3
# A line whose values differ by less than this part of them is not worth a cut.
FLAT = 1e-6
LINES_AT_ONCE = 2**22  # entries of the matrices that are decomposed together


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The certified largest eigenvalue of a multiplication that is cut to a box.

    Attributes
    ----------
    upper : float
    weights : array, shape of the grid of frequencies
        How much each frequency contributes to it: |v^(f)|^2 for the top eigenvector v,
        which is also its derivative.
    """

    upper: float
    weights: np.ndarray


def cut_to_box(a: np.ndarray, sites: tuple[int, ...], *, even: bool) -> Cut:
    """Bound the multiplication by `a`, cut to so many sites on each axis.

    Parameters
    ----------
    a : array, shape (*points)
        A non-negative number at each frequency of a torus.
    sites : tuple of int
        At most as many as there are points.
    even : bool
        Whether a(-f) = a(f).
    """
    if not sites:
        return Cut(float(a), np.ones(()))
    first, rest = sites[0], sites[1:]
    points, shape = a.shape[0], a.shape[1:]
    lines = a.reshape(points, -1).T  # one for each frequency of the other axes
    tops, weights = lines.max(axis=1), np.zeros_like(lines)
    weights[np.arange(len(lines)), lines.argmax(axis=1)] = 1.0
    done = (tops - lines.min(axis=1) <= FLAT * tops) | (first > CUT_SITES)
    mirror = _mirror(shape) if even else np.arange(len(lines))
    while True:
        found = cut_to_box(tops.reshape(shape), rest, even=even)
        share = found.weights.reshape(-1)
        heavy = heaviest(np.where(done, 0.0, share), UNSOLVED)
        if not len(heavy):
            break
        those = np.unique(np.minimum(heavy, mirror[heavy]))
        solved = _solve_lines(lines[those], first)
        other = mirror[those]
        tops[other], weights[other] = solved.uppers, _at_minus_f(solved.weights)
        tops[those], weights[those] = solved.uppers, solved.weights
        done[other] = done[those] = True
    return Cut(found.upper, (weights * share[:, None]).T.reshape(a.shape))


def _mirror(shape: tuple[int, ...]) -> np.ndarray:
    """The number of -f for each f of a grid."""
    if not shape:
        return np.zeros(1, dtype=int)
    index = np.indices(shape).reshape(len(shape), -1)
    mirrored = -index % np.array(shape)[:, None]
    return np.asarray(np.ravel_multi_index(tuple(mirrored), shape))


def heaviest(share: np.ndarray, rest: float) -> np.ndarray:
    """The numbers of the largest shares; all others sum to at most `rest`."""
    order = np.argsort(share)
    light = np.cumsum(share[order]) <= rest
    return order[~light]


def _at_minus_f(weights: np.ndarray) -> np.ndarray:
    """The weights at -f."""
    return weights[:, -np.arange(weights.shape[1])]


@dataclass(frozen=True, slots=True, eq=False)
class _Lines:
    uppers: np.ndarray  # (lines,)
    weights: np.ndarray  # (lines, points)


def _solve_lines(lines: np.ndarray, sites: int) -> _Lines:
    """Certified largest eigenvalues, and the weights of the frequencies in them."""
    count, points = lines.shape
    basis, allowance = waves(sites, points), of_cut((sites,), (points,))
    uppers, weights = np.empty(count), np.empty((count, points))

    most = max(1, LINES_AT_ONCE // sites**2)
    for first in range(0, count, most):
        part = slice(first, first + most)
        matrices = (basis * lines[part, None, :]) @ basis.T
        values, vectors = eigh(matrices)
        weights[part] = (vectors[:, :, -1] @ basis) ** 2
        largest = lines[part].max(axis=1)
        uppers[part] = _certified(matrices, values[:, -1], largest, allowance)
    return _Lines(uppers, weights)


def _certified(
    matrices: np.ndarray,
    values: np.ndarray,
    largest: np.ndarray,
    allowance: Allowance,
) -> np.ndarray:
    """Bounds of the largest eigenvalues, which LAPACK says are these values.

    Where a Cholesky factor contradicts it, the largest number of the line will do.
    """
    thresholds = values * (1 + 4 * allowance.certified)
    apart = thresholds[:, None, None] * np.eye(matrices.shape[-1]) - matrices
    uppers = thresholds * (1 + allowance.certified) + allowance.absolute * largest
    return np.where(are_definite(apart), np.minimum(uppers * UP, largest), largest)


@cached(maxsize=32)
def waves(sites: int, points: int) -> np.ndarray:
    """The waves of the torus on some of its sites, as real numbers: (sites, points).

    A wave exp(i angle h), with h counted from the middle of the sites, has the parts
    cos on even functions of h and i sin on odd ones. Without the i, which is a unitary
    change of basis, all is real. Rows are orthonormal.
    """
    twice = np.arange(1 + sites % 2, sites, 2)  # 2 h for h > 0
    steps = np.multiply.outer(twice, np.arange(points)) % (2 * points)
    angle = np.pi * steps / points
    rows = [np.full((sites % 2, points), math.sqrt(0.5)), np.cos(angle), np.sin(angle)]
    return np.concatenate(rows) * math.sqrt(2 / points)
