"""Is the norm of a layer below t, as it is, on its own grid? A banded Cholesky factor.

t^2 - G with the Gram matrix G of the layer is banded in rows of sites, and so is its
factor: see `_maps/banded.py`. Both are cut into tiles. Column by column of tiles,

    S_ik = (t^2 - G)_ik - sum over m < k of L_im L_km^H,
    L_kk = the Cholesky factor of S_kk,   L_ik = S_ik L_kk^-H,

where a row of tiles begins with the first one that is not zero. Only the rows that
reach column k are in memory.
"""

import math
from dataclasses import dataclass

import numpy as np

from .._arrays.linalg import are_factors
from .._arrays.threads import cores, spread
from .._maps.banded import BandedGram, Piece, PieceBlocks
from .._maps.tiling import tiling, working_set
from .banded_rounding import BandedRounding, formed_gram, inverse_residual

GROUP_NUMBERS = 2**23  # in memory for groups that go together, unless one needs more


@dataclass(frozen=True, slots=True)
class Failure:
    """There is no factor: some of these groups have a larger norm, or nearly so."""

    groups: slice


def certified(
    gram: BandedGram, weight: np.ndarray, threshold: float
) -> float | Failure:
    """An upper bound on the layer's norm just above `threshold`, if there is one."""
    stencil, square = gram.stencil, threshold * threshold
    kernel = weight.reshape(stencil.groups, stencil.out_channels, *weight.shape[1:])
    rounding = BandedRounding(formed=formed_gram(weight, gram), square=square)
    errors, failures = [0.0], []
    for piece in gram.pieces:
        size = GROUP_NUMBERS // working_set(gram, piece)
        size = min(max(size, 1), -(-stencil.groups // cores()))

        def some(start: int, stop: int, piece: Piece = piece, size: int = size) -> None:
            for low in range(start, stop, size):
                if failures:
                    return
                groups = slice(low, min(low + size, stop))
                factor = BandedFactor(gram, piece, kernel[groups], rounding)
                errors.append(factor.error())
                if not errors[-1] < math.inf:
                    failures.append(groups)

        if stencil.groups > 1:
            spread(some, stencil.groups, least=size)
        else:  # all cores share the factorization
            some(0, 1)
        if failures:
            return Failure(failures[0])
    return rounding.upper(max(errors))


class BandedFactor:
    """The factorization of t^2 - G, for one piece of some groups."""

    def __init__(
        self,
        gram: BandedGram,
        piece: Piece,
        weight: np.ndarray,
        rounding: BandedRounding,
    ) -> None:
        """With the weight of these groups, (groups, out, into, *kernel)."""
        self.blocks, self.piece = PieceBlocks(gram, piece, weight), piece
        self.tiles, self.groups = tiling(piece), len(weight)
        self.rounding, self.dtype = rounding, weight.dtype

    def error(self) -> float:
        """Factorize, and return what L L^H is off by in norm; infinite if it fails."""
        tiles, rows = self.tiles, {}
        by_start: dict[int, list[int]] = {}
        for i, first in enumerate(tiles.start):
            by_start.setdefault(first, []).append(i)
        lost = np.zeros(self.groups)  # squares of what the columns are off by
        for k in range(tiles.count):
            for i in by_start.get(k, ()):
                rows[i] = self._row(i)
            active = sorted(rows)
            self._update(rows, active, k)
            own = self._part(rows[k], k, k)
            try:
                factor = np.linalg.cholesky(own)
            except np.linalg.LinAlgError:
                return math.inf
            if not are_factors(np, factor).all():
                return math.inf
            if len(active) > 1:
                inverse = np.linalg.inv(factor)
                left = inverse_residual(factor, inverse)
                lost += (left * self._solve(rows, active[1:], k, inverse)) ** 2
            del rows[k]
        return self.rounding.factor(tiles, math.sqrt(lost.max()))

    def _row(self, i: int) -> np.ndarray:
        """Row i of tiles of t^2 - G up to the diagonal, (groups, rows, columns)."""
        ends, b = self.tiles.ends, self.piece.block
        low, high, begin = ends[i], ends[i + 1], ends[self.tiles.start[i]]
        row = np.zeros((self.groups, high - low, high - begin), self.dtype)
        for line in range(low // b, -(-high // b)):
            top, bottom = max(low - line * b, 0), min(high - line * b, b)
            at = slice(line * b + top - low, line * b + bottom - low)
            for other, block in self.blocks.line(line):
                # Columns of the block that are in this row of tiles.
                left = max(begin - other * b, 0)
                right = min(high - other * b, b)
                to = slice(other * b + left - begin, other * b + right - begin)
                row[:, at, to] -= block[:, top:bottom, left:right]
        diagonal = np.arange(high - low)
        row[:, diagonal, diagonal + low - begin] += self.rounding.square
        return row

    def _part(self, row: np.ndarray, i: int, k: int) -> np.ndarray:
        """Tile k of row i."""
        begin, ends = self.tiles.ends[self.tiles.start[i]], self.tiles.ends
        return row[:, :, ends[k] - begin : ends[k + 1] - begin]

    def _update(self, rows: dict[int, np.ndarray], active: list[int], k: int) -> None:
        """Turn column k of t^2 - G into S: take off what earlier columns contribute."""
        ends, start = self.tiles.ends, self.tiles.start

        def some(low: int, high: int) -> None:
            for i in active[low:high]:
                first = ends[max(start[i], start[k])]
                mine = slice(first - ends[start[i]], ends[k] - ends[start[i]])
                own = slice(first - ends[start[k]], ends[k] - ends[start[k]])
                if mine.stop > mine.start:
                    left, right = rows[i][:, :, mine], rows[k][:, :, own]
                    product = left @ right.conj().swapaxes(1, 2)
                    self._part(rows[i], i, k)[...] -= product

        spread(some, len(active))

    def _solve(
        self, rows: dict[int, np.ndarray], below: list[int], k: int, inverse: np.ndarray
    ) -> np.ndarray:
        """Turn S in column k into L; the Frobenius norms of S, by group."""
        squares = np.zeros((len(below), self.groups))
        turned = inverse.conj().swapaxes(1, 2)

        def some(low: int, high: int) -> None:
            for n in range(low, high):
                part = self._part(rows[below[n]], below[n], k)
                squares[n] = np.sum(np.abs(part) ** 2, axis=(1, 2))
                part[...] = part @ turned

        spread(some, len(below))
        return np.sqrt(squares.sum(axis=0))
