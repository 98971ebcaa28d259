"""Small matrices on a torus, cut to the sites of a layer one axis after the other.

After a cut along one axis there is a matrix for each frequency of the others, between
directions on all sites of that axis. Of these again only some are kept: the Schur
complement on them takes the place of the matrix (see `schur`). It is no larger, so that
the cut along the next axis is still a lower bound of the cut along both.
"""

import math
from dataclasses import dataclass

import numpy as np

from .._arrays.threads import spread
from .._maps.symbol import phase_factors
from .block import Block
from .block_rounding import cut_loss, off_orthonormal, turned_loss
from .schur import Basis, SchurComplement, eliminate

# The largest side of a matrix between what is kept on all sites of the next axis. (A
# vector on two axes has no more directions than there are sites on one.)
KEPT_SIDE = 1024


@dataclass(frozen=True, slots=True, eq=False)
class CutMatrix:
    """A real symmetric matrix that bounds the cut from below.

    Attributes
    ----------
    matrix : array
    start : array
        A vector near its lowest eigenvector.
    lost : float
        By how much it may be too large, in norm.
    """

    matrix: np.ndarray
    start: np.ndarray
    lost: float


def cut_to_sites(
    complement: SchurComplement,
    images: list[np.ndarray],
    block: Block,
    added: float,
) -> CutMatrix | None:
    """Cut to the sites of a block; None if what is not kept is not positive definite.

    Parameters
    ----------
    complement : SchurComplement
        Matrices (frequencies, n, n).
    images : list of array
        A vector near the lowest eigenvector: on rows (*rows, directions), and on cells.
    added : float
        See `eliminate`.
    """
    matrices, lost = block.over_grid(complement.matrix), complement.lost
    sites = list(zip(block.rows, block.cells))
    for one, following in zip(sites, [*sites[1:], None]):
        lags = _by_lag(matrices)
        counts = [image.shape[-1] for image in images]
        axis_lost = cut_loss(matrices)
        # Sites of the axis become a part of the directions.
        images = [
            np.moveaxis(image, 0, -2).reshape(*image.shape[1:-1], -1)
            for image in images
        ]
        if following is None:
            matrix = np.real(_between_sites(lags, one, counts))
            start = np.concatenate([image.ravel() for image in images])
            return CutMatrix(matrix, start, lost + float(axis_lost))
        most = max(1, KEPT_SIDE // sum(map(len, following)))
        bases = [
            Basis.of(image.reshape(-1, image.shape[-1]).T, most) for image in images
        ]
        found = _keep(lags, one, counts, bases, axis_lost, added)
        if found is None:
            return None
        matrices, images = found.matrix, [i @ b.kept for i, b in zip(images, bases)]
        lost += found.lost
    raise AssertionError("A layer has an axis.")


def _by_lag(matrices: np.ndarray) -> np.ndarray:
    """The first axis transformed from frequencies to lags between two sites."""
    number = np.arange(len(matrices))[:, None]
    phases = phase_factors(number, number, np.array([len(matrices)])) / len(matrices)
    return np.tensordot(phases, matrices, ((0,), (0,)))


def _between_sites(
    lags: np.ndarray, sites: tuple[np.ndarray, ...], counts: list[int]
) -> np.ndarray:
    """The blocks (lags, n, n) between all rows and cells, as one matrix."""
    start = counts[0]
    parts = list(zip(sites, (slice(start), slice(start, None))))
    found = []
    for one, own in parts:
        line = []
        for other, its in parts:
            lag = (one[:, None] - other[None, :]) % len(lags)
            blocks = lags[lag][:, :, own, its].transpose(0, 2, 1, 3)
            rows = blocks.shape[0] * blocks.shape[1]
            line.append(blocks.reshape(rows, -1))
        found.append(line)
    return np.block(found)


def _keep(
    lags: np.ndarray,
    sites: tuple[np.ndarray, ...],
    counts: list[int],
    bases: list[Basis],
    axis_lost: np.ndarray,
    added: float,
) -> SchurComplement | None:
    """The complement at each frequency of the other axes: (*sizes, n, n)."""
    rest, n = lags.shape[1:-2], sum(basis.count for basis in bases)
    flat = lags.reshape(len(lags), -1, *lags.shape[-2:])
    every = np.indices(rest).reshape(len(rest), -1)
    mirrored = tuple(-every % np.array(rest)[:, None])
    mirror = np.asarray(np.ravel_multi_index(mirrored, rest))
    own = np.flatnonzero(np.arange(len(mirror)) <= mirror)
    matrices, lost = np.empty((len(mirror), n, n), complex), np.zeros(len(own))
    off = max(off_orthonormal(basis.vectors) for basis in bases)

    def some(start: int, stop: int) -> None:
        for number in range(start, stop):
            place = own[number]
            matrix = _between_sites(flat[:, place], sites, counts)
            before = turned_loss(matrix) + axis_lost.reshape(-1)[place]
            complement = eliminate(_in_bases(matrix, bases), n, added)
            if complement is None:
                lost[number] = np.inf
                return
            lost[number] = (before + complement.lost) * (1 + 4 * off)
            matrices[mirror[place]] = complement.matrix.conj()
            matrices[place] = complement.matrix
            if mirror[place] == place:  # the mean with its conjugate does as well
                matrices[place] = np.real(complement.matrix)

    spread(some, len(own))
    if not math.isfinite(float(lost.max())):
        return None
    return SchurComplement(matrices.reshape(*rest, n, n), float(lost.max()))


def _in_bases(matrix: np.ndarray, bases: list[Basis]) -> np.ndarray:
    """In these bases of its first and its last rows, with all that is kept last."""
    sides = [len(basis.vectors) for basis in bases]
    ends = np.cumsum([0, *sides])
    found = np.empty_like(matrix)
    for i, one in enumerate(bases):
        for j, other in enumerate(bases):
            block = matrix[ends[i] : ends[i + 1], ends[j] : ends[j + 1]]
            re, im = (
                one.vectors.T @ part @ other.vectors
                for part in (np.real(block), np.imag(block))
            )
            found[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = re + 1j * im
    is_kept = np.concatenate(
        [np.arange(side) >= side - b.count for side, b in zip(sides, bases)]
    )
    order = np.argsort(is_kept, kind="stable")
    return found[np.ix_(order, order)]
