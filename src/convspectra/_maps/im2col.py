"""A convolution of NumPy's, and its adjoint, as one matrix product per block of rows.

What the taps read is gathered side by side (im2col), a block at a time, so that it
stays in the cache and one product does all taps. The adjoint has the same form: for
each polyphase component, taps in reverse on an image with a margin of zeros.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._arrays.array import Array
from .._arrays.threads import spread
from .._layer.stencil import Stencil
from .symbol import pattern_of

BLOCK_BYTES = 2**21  # gathered at once: larger blocks are no faster, and threads share
WORTHWHILE = 2**22  # products that are worth a thread


class Im2col:
    """The convolution of a stencil on images that are extended already."""

    def __init__(self, taps: np.ndarray, stencil: Stencil) -> None:
        """From `taps`, (taps, groups, out, in)."""
        self.stencil, pattern = stencil, pattern_of(stencil)
        starts = np.array(list(itertools.product(*map(range, stencil.kernel))))
        ends = tuple(zip(stencil.rows, stencil.stride))
        self.forward = _Gathered(
            matrices=_side_by_side(taps),
            windows=[_window(start, ends) for start in starts * stencil.dilation],
        )
        self.margin = pattern.shifts.max(axis=0)  # of zeros around rows
        self.sites = tuple(
            (m - 1) * s + reach
            for m, s, reach in zip(stencil.rows, stencil.stride, stencil.reach)
        )
        self.backward = []  # for each residue, what makes the columns there
        turned = taps.conj().swapaxes(2, 3)
        for own, residue in zip(pattern.phases, pattern.residues.tolist()):
            where = tuple(slice(r, None, s) for r, s in zip(residue, stencil.stride))
            cells = tuple(
                -(-(n - r) // s) for n, r, s in zip(self.sites, residue, stencil.stride)
            )
            gathered = _Gathered(
                matrices=_side_by_side(turned[pattern.order[own]]),
                windows=[
                    _window(start, [(n, 1) for n in cells])
                    for start in self.margin - pattern.shifts[own]
                ],
            )
            self.backward.append((where, cells, gathered))

    def apply(self, x: np.ndarray) -> np.ndarray:
        """From (groups, in, *sites) to (groups, out, *rows)."""
        return self.forward.apply(x, self.stencil.rows)

    def apply_adjoint(self, y: np.ndarray) -> np.ndarray:
        """From (groups, out, *rows) to (groups, in, *sites)."""
        y = np.pad(y, [(0, 0), (0, 0), *((d, d) for d in self.margin)])
        if all(s == 1 for s in self.stencil.stride):
            ((_, cells, gathered),) = self.backward
            return gathered.apply(y, cells)
        dtype = np.result_type(y, self.forward.matrices)
        x = np.zeros((len(y), self.stencil.in_channels, *self.sites), dtype)
        for where, cells, gathered in self.backward:
            x[..., *where] = gathered.apply(y, cells)
        return x


@dataclass(frozen=True, slots=True, eq=False)
class _Gathered:
    """The map from x to the sum over t of matrix t times x at `windows[t]`."""

    matrices: np.ndarray  # (groups, out, taps * channels)
    windows: Sequence[tuple[slice, ...]]  # of the sites of x

    def apply(self, x: np.ndarray, rows: tuple[int, ...]) -> np.ndarray:
        """From (groups, channels, *sites) to (groups, out, *rows)."""
        groups, out, terms = self.matrices.shape
        count, rest = rows[0], math.prod(rows[1:])
        y = np.empty((groups, out, count * rest), np.result_type(x, self.matrices))
        most = max(1, BLOCK_BYTES // (terms * rest * x.itemsize))
        shape = (len(self.windows), x.shape[1], min(most, count), *rows[1:])

        def some_rows(start: int, stop: int) -> None:
            block = np.empty(shape, x.dtype)
            for first, g in itertools.product(range(start, stop, most), range(groups)):
                last = min(first + most, stop)
                part = block[:, :, : last - first]
                self._gather(x[g], first, last, part)
                place = y[g, :, first * rest : last * rest]
                np.matmul(self.matrices[g], part.reshape(terms, -1), out=place)

        products = groups * out * terms * rest * count
        if groups > 1 or out < count * rest:
            spread(some_rows, count, least=-(-WORTHWHILE * count // products))
        else:  # few sites and a large matrix, of which each thread had best read a part
            block = np.empty((*shape[:2], *rows), x.dtype)
            self._gather(x[0], 0, count, block)
            block = block.reshape(terms, -1)

            def some_channels(start: int, stop: int) -> None:
                np.matmul(self.matrices[0, start:stop], block, out=y[0, start:stop])

            spread(some_channels, out, least=-(-WORTHWHILE * out // products))
        return y.reshape(groups, out, *rows)

    def _gather(self, x: np.ndarray, first: int, last: int, block: np.ndarray) -> None:
        """Set `block`, (taps, channels, ...), to what these rows read."""
        for here, (window, *others) in zip(block, self.windows):
            a, step = window.start, window.step
            own = slice(a + first * step, a + (last - 1) * step + 1, step)
            here[...] = x[:, own, *others]


def _side_by_side(taps: np.ndarray) -> np.ndarray:
    """From (taps, groups, out, in) to (groups, out, taps * into)."""
    moved = taps.transpose(1, 2, 0, 3)
    return np.ascontiguousarray(moved.reshape(*moved.shape[:2], -1))


def _window(start: Array, ends: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    """So many sites, so far apart, from `start` on, on each axis."""
    return tuple(
        slice(int(a), int(a) + (n - 1) * step + 1, step)
        for a, (n, step) in zip(start, ends)
    )
