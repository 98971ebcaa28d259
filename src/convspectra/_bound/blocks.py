"""The linear map A from a kernel to the blocks whose largest norm is the layer's.

A kernel is flat here: (taps, groups * out_channels * in_channels), complex on a torus.
Blocks are (count, groups, rows, columns): the matrices of the frequencies of a torus,
or the one matrix of the layer. `of` is A. `fold` is its adjoint A*, if the inner
product of blocks is weighted by `weights`.
"""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from .._arrays.array import (
    Array,
    asarray_like,
    indices_like,
    is_complex,
    namespace,
    to_complex,
    to_numpy,
)
from .._layer.stencil import Stencil
from .._maps.matrix import matrix_shape, tap_reads
from .._maps.symbol import (
    Frequencies,
    Taps,
    chunks,
    fold_back,
    frequencies_of,
    grid_phases,
    phase_like,
    phases_are_kept,
    symbol,
    taps_of,
    to_kernel,
)


@dataclass(frozen=True, slots=True, eq=False)
class TorusBlocks:
    """One block per frequency; one of every conjugate pair if the layer is real."""

    taps: Taps
    frequencies: Frequencies
    table: Array | None  # (count, taps), phase factors; None if they are too many
    weights: np.ndarray  # (count,), they add up to 1
    merged: np.ndarray  # (taps,) how many taps read the same site of the torus
    real: bool

    @property
    def start(self) -> Array:
        return self.taps.weight

    @property
    def shape(self) -> tuple[int, int]:
        return self.taps.channel_shape[1], self.taps.columns

    @property
    def stretch(self) -> float:
        """The norm of A* A."""
        return float(self.merged.max())

    def of(self, kernel: Array, which: np.ndarray) -> Array:
        return symbol(replace(self.taps, weight=kernel), self.phases(which))

    def fold(self, blocks: Array, which: np.ndarray) -> Array:
        if not len(which):
            return 0 * self.start
        xp = namespace(blocks)
        weights = asarray_like(blocks, self.weights[which])[:, None, None, None]
        flat = fold_back(blocks * weights, self.taps, self.phases(which))
        return to_complex(xp.real(flat)) if self.real else flat

    def parts(self, numbers: np.ndarray | None = None) -> list[np.ndarray]:
        """Indices of blocks (by default all) in portions that fit into memory."""
        if numbers is None:
            numbers = np.arange(len(self.weights))
        return [numbers[part] for part in chunks(self.taps, len(numbers))]

    def kernel(self, flat: Array, weight: Array) -> Array:
        return to_kernel(flat, self.taps, weight)

    def phases(self, which: np.ndarray) -> Array:
        """The phase factors of some frequencies: (frequencies, taps)."""
        if self.table is None:
            points = self.frequencies.points[which]
            return phase_like(self.taps, points, self.frequencies.grid_sizes)
        indices = indices_like(self.table, which)
        return namespace(self.table).take(self.table, indices, axis=0)

    @property
    def all_phases(self) -> Array:
        """Those of all frequencies, however many they are."""
        if self.table is not None:
            return self.table
        return self.phases(np.arange(len(self.weights)))


def torus_blocks(weight: Array, stencil: Stencil) -> TorusBlocks:
    """The blocks of a layer that is on a torus."""
    taps, real = taps_of(weight, stencil), not is_complex(weight)
    kept = frequencies_of(taps.pattern, stencil.rows, real=real)
    sites = np.concatenate(
        [
            np.repeat(
                taps.pattern.residues, [p.stop - p.start for p in taps.phases], axis=0
            ),
            taps.shifts % stencil.rows,
        ],
        axis=1,
    )
    table = None
    if phases_are_kept(taps.pattern, kept):
        table = asarray_like(taps.weight, grid_phases(taps.pattern, kept))
    _, site, count = np.unique(sites, axis=0, return_inverse=True, return_counts=True)
    return TorusBlocks(
        taps=taps,
        frequencies=kept,
        table=table,
        weights=kept.stands_for / kept.stands_for.sum(),
        merged=count[site.reshape(-1)],
        real=real,
    )


@dataclass(frozen=True, slots=True, eq=False)
class MatrixBlocks:
    """The matrix of the layer as its one block; a matrix for each group."""

    stencil: Stencil
    start: Array
    reads: Array  # (taps, row sites * column sites), zeros and ones
    weights: np.ndarray  # (1,)

    @property
    def stretch(self) -> float:
        """The norm of A* A."""
        reads = np.real(to_numpy(self.reads))
        return float(self.weights[0] * np.linalg.norm(reads, 2) ** 2)

    def of(self, kernel: Array, which: np.ndarray) -> Array:
        xp, s = namespace(kernel), self.stencil
        sites = xp.matmul(xp.matrix_transpose(kernel), self.reads)
        shape = (
            s.groups,
            s.out_channels,
            s.in_channels,
            math.prod(s.rows),
            math.prod(s.columns),
        )
        apart = xp.permute_dims(xp.reshape(sites, shape), (0, 1, 3, 2, 4))
        return xp.reshape(apart, (1, s.groups, *matrix_shape(s)))[: len(which), ...]

    def fold(self, blocks: Array, which: np.ndarray) -> Array:
        if not len(which):
            return 0 * self.start
        xp, s = namespace(blocks), self.stencil
        shape = (
            s.groups,
            s.out_channels,
            math.prod(s.rows),
            s.in_channels,
            math.prod(s.columns),
        )
        sites = xp.permute_dims(xp.reshape(blocks, shape), (0, 1, 3, 2, 4))
        flat = xp.reshape(sites, (-1, self.reads.shape[1]))
        folded = xp.matmul(self.reads, xp.matrix_transpose(flat))
        return folded * float(self.weights[0])

    def parts(self) -> list[np.ndarray]:
        return [np.arange(1)]

    def kernel(self, flat: Array, weight: Array) -> Array:
        xp = namespace(flat)
        moved = xp.reshape(xp.matrix_transpose(flat), weight.shape)
        return xp.astype(moved, weight.dtype)


def matrix_blocks(weight: Array, stencil: Stencil) -> MatrixBlocks:
    """The block of any layer whose matrix can be built."""
    xp = namespace(weight)
    start = xp.matrix_transpose(xp.reshape(weight, (-1, stencil.taps)))
    taps = itertools.product(*map(range, stencil.kernel))
    reads = np.stack([tap_reads(stencil, tap).reshape(-1) for tap in taps])
    return MatrixBlocks(
        stencil=stencil,
        start=start,
        reads=asarray_like(start, reads),
        weights=np.array([1 / math.prod(stencil.rows)]),
    )


Blocks = TorusBlocks | MatrixBlocks
