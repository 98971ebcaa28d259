"""How a banded matrix is cut into tiles for its factorization."""

import bisect
from dataclasses import dataclass

import numpy as np

from .banded import BandedGram, Piece

# Rows of a tile: products of 128 run at full speed, fewer than 32 are not worth a call.
# In between as many as the band is wide.
LARGEST_TILE, SMALLEST_TILE = 128, 32


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the rows of a piece are cut into tiles, and where each row of them begins."""

    ends: tuple[int, ...]  # (tiles + 1,): rows of the matrix
    start: tuple[int, ...]  # (tiles,): the first tile that is not zero

    @property
    def count(self) -> int:
        return len(self.start)

    @property
    def side(self) -> int:
        """Of the largest tile."""
        return max(b - a for a, b in zip(self.ends, self.ends[1:]))

    @property
    def reach(self) -> int:
        """Numbers of the longest row, up to the diagonal."""
        return max(self.ends[i + 1] - self.ends[k] for i, k in enumerate(self.start))

    @property
    def neighbors(self) -> int:
        """Tiles of the whole matrix, not of a triangle, in a row of it at most."""
        beside = np.zeros(self.count + 1, dtype=int)
        for i, first in enumerate(self.start):  # i is beside all from first on
            beside[first] += 1
            beside[i] -= 1
        after = np.cumsum(beside)[:-1]
        return int(np.max(after + np.arange(self.count) - self.start + 1))

    @property
    def numbers(self) -> int:
        """Most numbers that the rows in memory have."""
        change = np.zeros(self.count + 1, dtype=int)
        for i, first in enumerate(self.start):
            size = (self.ends[i + 1] - self.ends[i]) * (
                self.ends[i + 1] - self.ends[first]
            )
            change[first] += size
            change[i + 1] -= size
        return int(np.max(np.cumsum(change)))


def tiling(piece: Piece) -> Tiling:
    """Tiles of equal parts of a line, or of several lines."""
    b, lines = piece.block, piece.lines
    side = min(LARGEST_TILE, max(SMALLEST_TILE, int(piece.lengths.max())))
    if b >= side:
        parts = -(-b // side)
        inner = [b * i // parts for i in range(parts)]
        ends = [line * b + at for line in range(lines) for at in inner]
    else:
        ends = [line * b for line in range(0, lines, side // b)]
    first, across = piece.chains[piece.leading].first, piece.first_across
    start = []
    for low, high in zip(ends, [*ends[1:], lines * b]):
        column = low
        for line in range(low // b, -(-high // b)):
            sites = slice(
                max(low - line * b, 0) // piece.channels,
                -(-min(high - line * b, b) // piece.channels),
            )
            mine = int(first[line]) * b + int(across[sites].min()) * piece.channels
            column = min(column, mine)
        start.append(bisect.bisect_right(ends, column) - 1)
    return Tiling((*ends, lines * b), tuple(start))


def working_set(gram: BandedGram, piece: Piece) -> int:
    """Numbers in memory while a piece of one group is factorized.

    Rows of the band, blocks between two lines, and products of taps.
    """
    blocks = len(gram.axes[piece.leading].counts) * piece.block**2
    return tiling(piece).numbers + blocks + gram.tap_products
