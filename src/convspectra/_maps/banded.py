"""A layer's Gram matrix, T^H T or T T^H, by sites: which of them couple, and how.

With W_t the matrix of tap t and R_t[r, j] = 1 where row r reads column j through it,
the layer is T = sum over t of W_t x R_t, and R_t is a product over the axes. So

    T^H T = sum over t, s of  (W_t^H W_s) x (R_t^T R_s),
    T T^H = sum over t, s of  (W_t W_s^H) x (R_t R_s^T),

for every boundary, stride and dilation. The matrices R_t^T R_s of an axis hold small
counts, and next to its diagonal alone: in rows of sites the Gram matrix is banded.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from .._base import cached
from .._layer.stencil import Stencil, columns_read

# Pairs of reads of one axis that are gone through: 7000 sites with three taps, which
# takes some ten milliseconds.
READS_LIMIT = 2**16
# Numbers in the table of which taps couple which sites: 64 MB. A kernel of 256 taps has
# 2^32 of them on an input of its own size.
COUPLINGS_LIMIT = 2**23


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Sites of one axis that couple with each other, directly or through others.

    The chains of an axis do not couple: under dilation they are its residue classes.
    """

    sites: int
    pairs: np.ndarray  # (pairs, 2): sites that couple, in either order
    pattern: np.ndarray  # (pairs,): through which taps they do, an index into counts

    @property
    def first(self) -> np.ndarray:
        """The first site that each one couples with."""
        found = np.arange(self.sites)
        np.minimum.at(found, self.pairs[:, 0], self.pairs[:, 1])
        return found


@dataclass(frozen=True, slots=True, eq=False)
class AxisGram:
    """How the sites of one axis couple: the chains that differ, each once."""

    chains: tuple[Chain, ...]
    taps: np.ndarray  # those that read a column at some row
    # (patterns, taps, taps): how often through tap t of the one and s of the other
    counts: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One chain per axis: a part of the Gram matrix that couples with no other.

    Its rows are ordered by site of the axis `leading`, then by those of the other axes,
    then by channel.
    """

    leading: int
    chains: tuple[Chain, ...]  # by axis
    channels: int

    @property
    def lines(self) -> int:
        """Sites of the leading axis: as many blocks stand on the diagonal."""
        return self.chains[self.leading].sites

    @property
    def sites(self) -> int:
        """Sites of a line: all other axes together."""
        return math.prod(chain.sites for chain in self.across)

    @property
    def block(self) -> int:
        """The side of a block."""
        return self.sites * self.channels

    @property
    def side(self) -> int:
        return self.lines * self.block

    @property
    def across(self) -> tuple[Chain, ...]:
        """The chains of all axes but the leading one."""
        return self.chains[: self.leading] + self.chains[self.leading + 1 :]

    @property
    def first_across(self) -> np.ndarray:
        """The first site of a line that each one couples with, in another line too."""
        found = np.zeros(1, dtype=int)
        for chain in self.across:
            found = (found[:, None] * chain.sites + chain.first).reshape(-1)
        return found

    @property
    def beyond(self) -> int:
        """Numbers by which a row begins before its own place in another line, at most.

        A row begins in the first line that its own couples with.
        """
        away = np.arange(self.sites) - self.first_across
        return self.channels * int(away.max())

    @property
    def lengths(self) -> np.ndarray:
        """For each line, the numbers of its longest row, up to the diagonal."""
        away = np.arange(self.lines) - self.chains[self.leading].first
        return away * self.block + self.beyond

    @property
    def products(self) -> float:
        """Operations of a factorization that keeps within the band, about.

        To a row of length l, from its first number to the diagonal, belong l^2 of them;
        less where the columns between are shorter.
        """
        b, beyond, lengths = self.block, self.beyond, self.lengths
        found = 0.0
        for line, start in enumerate(self.chains[self.leading].first):
            away = (np.arange(line - start) + 0.5) * b
            found += 2 * b * float(np.minimum(away, lengths[start:line]).sum())
            found += beyond * (2 * float(lengths[line]) - beyond)
        return found * b + self.side * self.channels**2


@dataclass(frozen=True, slots=True, eq=False)
class BandedGram:
    """The Gram matrix of each group of a layer, in pieces: see `banded_gram`."""

    stencil: Stencil
    on_rows: bool  # T T^H, which is as long as the output; else T^H T
    axes: tuple[AxisGram, ...]
    pieces: tuple[Piece, ...]

    @property
    def products(self) -> float:
        """Operations to factorize the pieces of all groups, about."""
        return self.stencil.groups * sum(piece.products for piece in self.pieces)

    @property
    def tap_products(self) -> int:
        """Numbers in the products of all pairs of taps of a group."""
        return (math.prod(len(axis.taps) for axis in self.axes) * self.channels) ** 2

    @property
    def channels(self) -> int:
        return self.stencil.out_channels if self.on_rows else self.stencil.in_channels


@cached(maxsize=256)
def banded_gram(stencil: Stencil) -> BandedGram | None:
    """The Gram matrix of a layer by rows of sites: of its two, the cheaper one.

    None where the pairs of reads of an axis are too many to be gone through, or its
    taps too many to list those of each pair.
    """
    found = [_gram(stencil, on_rows=on_rows) for on_rows in (False, True)]
    return min(
        (gram for gram in found if gram is not None),
        key=lambda gram: gram.products,
        default=None,
    )


def _gram(stencil: Stencil, *, on_rows: bool) -> BandedGram | None:
    axes = []
    for axis in range(len(stencil.kernel)):
        found = _axis_gram(stencil, axis, on_rows=on_rows)
        if found is None:
            return None
        axes.append(found)
    channels = stencil.out_channels if on_rows else stencil.in_channels
    pieces = []
    for chains in product(*(axis.chains for axis in axes)):
        each = [Piece(leading, chains, channels) for leading in range(len(chains))]
        pieces.append(min(each, key=lambda piece: piece.products))
    return BandedGram(stencil, on_rows, tuple(axes), tuple(pieces))


def _axis_gram(stencil: Stencil, axis: int, *, on_rows: bool) -> AxisGram | None:
    rows, taps = stencil.rows[axis], stencil.kernel[axis]
    if rows * taps > READS_LIMIT:
        return None
    row, tap = np.indices((rows, taps)).reshape(2, -1)
    site = stencil.stride[axis] * row + stencil.dilation[axis] * tap
    column = columns_read(stencil, axis)[site]
    is_read = column >= 0
    row, tap, column = row[is_read], tap[is_read], column[is_read]
    # Rows couple that read the same column; columns couple that the same row reads.
    member, shared = (row, column) if on_rows else (column, row)
    count = rows if on_rows else stencil.columns[axis]
    order = np.argsort(shared, kind="stable")
    member, tap, sizes = member[order], tap[order], np.bincount(shared)
    if np.sum(sizes**2) > READS_LIMIT:
        return None
    return _coupled(*_pairs(sizes), member, tap, count=count)


def _pairs(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of entries within runs of these sizes."""
    starts, times = np.cumsum(sizes) - sizes, np.repeat(sizes, sizes)
    one = np.repeat(np.arange(len(times)), times)
    within = np.arange(len(one)) - np.repeat(np.cumsum(times) - times, times)
    return one, np.repeat(np.repeat(starts, sizes), times) + within


def _coupled(
    one: np.ndarray,
    other: np.ndarray,
    member: np.ndarray,
    tap: np.ndarray,
    *,
    count: int,
) -> AxisGram | None:
    """The chains of `count` sites, of which these pairs of reads couple two each."""
    used, tap = np.unique(tap, return_inverse=True)
    taps = len(used)
    pairs, place = np.unique(member[one] * count + member[other], return_inverse=True)
    if len(pairs) * taps * taps > COUPLINGS_LIMIT:
        return None
    each = np.zeros((len(pairs), taps * taps), dtype=int)
    np.add.at(each, (place, tap[one] * taps + tap[other]), 1)
    counts, pattern = np.unique(each, axis=0, return_inverse=True)
    counts = counts.reshape(len(counts), taps, taps)
    pattern = pattern.reshape(-1)  # NumPy 2.0 returns a column
    i, j = np.divmod(pairs, count)
    label = np.arange(count)  # of the chain that a site is part of: its first site
    while (label[i] != label[j]).any():
        np.minimum.at(label, i, label[j])
        label = label[label]
    order = np.argsort(label[i], kind="stable")
    chains: dict[bytes, Chain] = {}
    ends = np.flatnonzero(np.diff(label[i[order]])) + 1
    for mine in np.split(order, ends) if len(order) else ():  # nothing may be read
        sites = np.unique(i[mine])
        local = np.searchsorted(sites, np.stack([i[mine], j[mine]], axis=1))
        chain = Chain(len(sites), local, pattern[mine])
        chains.setdefault(local.tobytes() + chain.pattern.tobytes(), chain)
    return AxisGram(tuple(chains.values()), used, counts)


class PieceBlocks:
    """The blocks of a piece, each as it stands between two lines, for some groups."""

    def __init__(self, gram: BandedGram, piece: Piece, weight: np.ndarray) -> None:
        """With the weight of these groups, (groups, out, into, *kernel)."""
        self.gram, self.piece = gram, piece
        weight = weight[:, :, :, *np.ix_(*(axis.taps for axis in gram.axes))]
        taps = math.prod(weight.shape[3:])
        flat = weight.reshape(*weight.shape[:3], taps)
        # W_t W_s^H, or the conjugate of W_t^H W_s: the conjugate of a Gram matrix has
        # the same eigenvalues.
        own = flat.transpose(0, 3, 1, 2) if gram.on_rows else flat.transpose(0, 3, 2, 1)
        long = own.reshape(len(weight), taps * gram.channels, -1)
        products = long @ long.conj().transpose(0, 2, 1)
        kernel, c = weight.shape[3:], gram.channels
        products = products.reshape(-1, *kernel, c, *kernel, c)
        # (groups, t of the leading axis, s of it, others..., channels, channels)
        axes, lead = len(kernel), 1 + piece.leading
        others = [1 + a for a in range(axes) if a != piece.leading]
        order = [0, lead, lead + axes + 1]
        for a in others:
            order += [a, a + axes + 1]
        self._products = products.transpose(*order, axes + 1, 2 * axes + 2)
        chain = piece.chains[piece.leading]
        self._between: list[dict[int, int]] = [{} for _ in range(chain.sites)]
        for (i, j), pattern in zip(chain.pairs, chain.pattern):
            if j <= i:
                self._between[i][int(j)] = int(pattern)
        wanted = {p for line in self._between for p in line.values()}
        self._blocks = {p: self._block(p) for p in wanted}

    def line(self, i: int) -> Iterator[tuple[int, np.ndarray]]:
        """The lines up to i that couple with it, and the blocks (groups, b, b)."""
        for j, pattern in self._between[i].items():
            yield j, self._blocks[pattern]

    def _block(self, pattern: int) -> np.ndarray:
        gram, piece = self.gram, self.piece
        counts = gram.axes[piece.leading].counts[pattern]
        found = np.einsum("ts,gts...->g...", counts.astype(float), self._products)
        # One axis after the other, from (groups, t, s, t', s', ..., channels twice):
        # taps become sites, and these go to the front.
        across = [a for a in range(len(piece.chains)) if a != piece.leading]
        for done, a in enumerate(across):
            chain, counts = piece.chains[a], gram.axes[a].counts.astype(float)
            at = 1 + 2 * done
            taken = np.tensordot(counts, found, axes=((1, 2), (at, at + 1)))
            placed = np.zeros((chain.sites, chain.sites, *taken.shape[1:]), taken.dtype)
            placed[chain.pairs[:, 0], chain.pairs[:, 1]] = taken[chain.pattern]
            found = placed
        n = 2 * len(across)  # the last axis comes first
        sites = [list(range(n - 2 + k, -1, -2)) for k in range(2)]
        found = found.transpose(n, *sites[0], n + 1, *sites[1], n + 2)
        return np.ascontiguousarray(found.reshape(-1, piece.block, piece.block))
