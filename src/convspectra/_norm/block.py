"""A layer that pads with zeros, as a block of a convolution on a torus.

Row r of the torus reads the cells r + shift, each of `stride` columns. Cells are
counted from the first column that the layer reads, so that few hold them all.
"""

from dataclasses import dataclass, replace

import numpy as np

from .._layer.stencil import Stencil, rows_and_columns
from .._maps.symbol import Frequencies, Taps, frequencies_of, matrix_at, taps_of


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The symbol of a torus, and which of its sites are those of the layer.

    Attributes
    ----------
    taps : Taps
        Whose shifts lead from rows to cells.
    frequencies : Frequencies
        Of a torus on which no row of the layer reads a cell of it twice.
    rows, cells : tuple of array
        Those that the layer has, for each axis; rows by their own numbers.
    columns : array, shape (phases, cells)
        The column, flat, that each cell has of a polyphase component; -1 for none.
    """

    taps: Taps
    frequencies: Frequencies
    rows: tuple[np.ndarray, ...]
    cells: tuple[np.ndarray, ...]
    columns: np.ndarray

    def matrix(self, number: int) -> np.ndarray:
        """The symbol at a frequency: (out, phases * in)."""
        frequencies = self.frequencies
        place, sizes = frequencies.points[number], frequencies.grid_sizes
        return matrix_at(self.taps, place, 0, sizes)

    def over_grid(self, matrices: np.ndarray) -> np.ndarray:
        """Matrices at `frequencies` as (*grid, n, n): at -f the conjugate of f's.

        Where f = -f that is the mean of a matrix and its conjugate.
        """
        kept = self.frequencies
        where, sizes = kept.representative, kept.representative.shape
        # Frequencies of axes on which all taps have the same shift are all alike.
        shifts = self.taps.shifts
        differs = ((shifts - shifts[0]) % sizes).any(axis=0)
        every = np.moveaxis(np.indices(sizes), 0, -1) * differs
        is_conjugate = (kept.points[where] != every).any(axis=-1)
        found = matrices[where]
        found[is_conjugate] = found[is_conjugate].conj()
        return (found + found[np.ix_(*(-np.arange(n) % n for n in sizes))].conj()) / 2

    def by_row(self, image: np.ndarray) -> np.ndarray:
        """The rows of an output (out, *rows) that read some column."""
        return image[:, *np.ix_(*self.rows)]

    def by_cell(self, image: np.ndarray) -> np.ndarray:
        """An input (in, *columns) as (phases * in, *cells)."""
        flat = image.reshape(len(image), -1)
        padded = np.concatenate([flat, np.zeros((len(flat), 1))], axis=1)
        taken = padded[:, self.columns]  # (in, phases, cells)
        return taken.swapaxes(0, 1).reshape(-1, *map(len, self.cells))


def block_of(weight: np.ndarray, stencil: Stencil) -> Block:
    """Of a real layer of one group that reads zeros outside of its input."""
    taps = taps_of(weight, stencil)
    pattern = taps.pattern
    shifts, sizes = pattern.shifts.copy(), []
    rows, cells, columns = [], [], []
    for axis, (before, s) in enumerate(zip(stencil.pad_before, stencil.stride)):
        reading, read = rows_and_columns(stencil, axis)
        first = read.start
        start, residue = np.divmod(pattern.residues[:, axis] - before - first, s)
        for phase, more in zip(pattern.phases, start.tolist()):
            shifts[phase, axis] += more
        offset = int(shifts[:, axis].min())
        shifts[:, axis] -= offset  # a row's first cell has its own number
        most = -(-len(read) // s)
        rows.append(np.array(reading))
        cells.append(np.arange(most) - offset)
        own = first + s * np.arange(most) + residue[:, None]  # (phases, cells)
        columns.append(np.where(own < read.stop, own, -1))
        # Neither way around the torus does a row reach a cell once more.
        reached = reading.stop - 1 + int(shifts[:, axis].max())
        sizes.append(1 + max(reached + offset, most - 1 - offset - reading.start))
    moved = replace(taps, pattern=replace(pattern, shifts=shifts))
    return Block(
        taps=moved,
        frequencies=frequencies_of(moved.pattern, tuple(sizes), real=True),
        rows=tuple(rows),
        cells=tuple(cells),
        columns=_flat_columns(columns, stencil.columns),
    )


def _flat_columns(columns: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """The flat numbers of columns, (phases, cells), from those of each axis."""
    found = np.zeros((len(columns[0]), 1), dtype=int)
    for own, n in zip(columns, shape):
        missing = (found[:, :, None] < 0) | (own[:, None, :] < 0)
        both = np.where(missing, -1, found[:, :, None] * n + own[:, None, :])
        found = both.reshape(len(found), -1)
    return found
