"""The symbol of NumPy's taps with real and imaginary parts in separate arrays.

`ColumnSymbols` makes one matrix after the other, column by column, for large matrices.
`BatchedSymbols` has the batch on the last axis, for small ones in the lanes of vectors.
Where taps are real, both need half of the multiplications of a complex product. Large
kernels are transformed along the first axis, and for each frequency there along the
rest, which takes a fraction of the multiplications.
"""

import copy
import math
from collections.abc import Iterator

import numpy as np

from .._arrays.array import Array
from .symbol import Taps, first_axis_taps, phase_factors, runs_of

# Frequencies of the first axis that are transformed together.
RUNS = 4
# Entries of matrices that are made together: a cache's worth of small matrices, or
# LARGE_BATCH large ones, if these have no more than MOST_ENTRIES.
SMALL_BATCH_ENTRIES, LARGE_BATCH, MOST_ENTRIES = 2**17, 8, 2**21


class ColumnSymbols:
    """Makes the matrices of `taps`, transposed or not, at any frequencies.

    They lie column by column. A column has `leading_dimension` numbers, zeros after its
    rows.
    """

    def __init__(self, taps: Taps, *, transposed: bool, leading_dimension: int) -> None:
        groups, out, in_channels = taps.channel_shape
        self.shifts, self.phases, self.transposed = taps.shifts, taps.phases, transposed
        columns = out if transposed else taps.columns
        self.shape = (groups, columns, leading_dimension)
        weight = taps.weight.reshape(-1, groups, out, in_channels)
        weight = weight if transposed else weight.swapaxes(2, 3)
        rows = weight.shape[3]
        # A polyphase component is a part of the matrix; a single one is the whole.
        self.component_shape = self.shape if len(self.phases) == 1 else weight.shape[1:]
        self.is_real = not weight.imag.any()
        parts = (weight.real,) if self.is_real else (weight.real, weight.imag)
        self.taps = []  # of each component, real parts before imaginary ones
        for own in self.phases:
            split = np.zeros((len(parts), own.stop - own.start, *self.component_shape))
            for target, part in zip(split, parts):
                target[..., :rows] = part[own]
            self.taps.append(split.reshape(-1, math.prod(self.component_shape)))
        self.first = first_axis_taps(taps.pattern) if self.is_real else 1

    def at(
        self, frequencies: np.ndarray, grid_sizes: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Slices of the frequencies, with the matrices' real and imaginary parts.

        These are (frequencies * groups, columns, leading_dimension). Each overwrites
        the one before.
        """
        phase: Array = phase_factors(self.shifts, frequencies, grid_sizes)
        entries = math.prod(self.shape)
        most = max(LARGE_BATCH, SMALL_BATCH_ENTRIES // entries)
        most = max(1, min(most, MOST_ENTRIES // entries, len(phase)))
        # One workspace: to fault in fresh memory takes longer than the products.
        new = np.empty if len(self.phases) == 1 else np.zeros
        workspace = new((2 * most, *self.shape))
        make = self._axis_by_axis if self.first > 1 else self._all_taps
        for part in make(phase, workspace):
            both = workspace[: 2 * (part.stop - part.start)]
            re, im = both.reshape(2, -1, *self.shape[1:])
            yield part, re, im

    def _all_taps(self, phase: Array, workspace: np.ndarray) -> Iterator[slice]:
        for part in _slices(0, len(phase), len(workspace) // 2):
            both = workspace[: 2 * (part.stop - part.start)]
            for number, (own, taps) in enumerate(zip(self.phases, self.taps)):
                weights = _weights(phase[part, own], is_real=self.is_real)
                if len(self.phases) == 1:
                    np.matmul(weights, taps, out=both.reshape(len(both), -1))
                else:
                    component = (weights @ taps).reshape(-1, *self.component_shape)
                    self._component(both, number)[...] = component
            yield part

    def _component(self, both: np.ndarray, number: int) -> np.ndarray:
        """The part of the matrices that one polyphase component fills."""
        _, columns, rows = self.component_shape
        if self.transposed:
            return both[..., number * rows : (number + 1) * rows]
        return both[:, :, number * columns : (number + 1) * columns, :rows]

    def _axis_by_axis(self, phase: Array, workspace: np.ndarray) -> Iterator[slice]:
        rest = phase.shape[1] // self.first
        starts, runs = runs_of(phase[:, ::rest])
        taps = self.taps[0].reshape(self.first, -1)
        for group in _slices(0, len(runs), RUNS):
            weights = np.stack([starts[group].real, starts[group].imag], axis=1)
            partial = weights.reshape(-1, self.first) @ taps
            partial = partial.reshape(len(weights), 2 * rest, -1)
            for taps_of_run, run in zip(partial, runs[group]):
                for part in _slices(run.start, run.stop, len(workspace) // 2):
                    weights = _weights(phase[part, :rest], is_real=False)
                    both = workspace[: len(weights)].reshape(len(weights), -1)
                    np.matmul(weights, taps_of_run, out=both)
                    yield part


def _weights(phase: Array, *, is_real: bool) -> np.ndarray:
    """The matrix that takes split taps to split symbols: real parts first, in both."""
    cos, sin = phase.real, phase.imag
    if is_real:
        return np.concatenate([cos, sin])
    return np.block([[cos, -sin], [sin, cos]])


def _slices(start: int, stop: int, most: int) -> list[slice]:
    return [slice(i, min(i + most, stop)) for i in range(start, stop, most)]


class BatchedSymbols:
    """Makes the matrices of `taps`, (out, columns, frequencies * groups).

    Attributes
    ----------
    dtype : dtype
        Of the taps' real parts, and of the matrices.
    taps_needed : array
        The taps whose phase factors are needed, in this order.
    """

    def __init__(self, taps: Taps) -> None:
        flat = taps.weight.T
        self.taps, self.dtype = taps, flat.real.dtype
        self.re = [np.ascontiguousarray(flat.real[:, part]) for part in taps.phases]
        self.im = None
        if flat.imag.any():
            self.im = [np.ascontiguousarray(flat.imag[:, part]) for part in taps.phases]
        self.taps_needed = np.arange(len(taps.shifts))
        self.first, self.by_axis = first_axis_taps(taps.pattern), None
        if self.first > 1 and self.im is None:
            split = self.re[0].reshape(len(flat), self.first, -1)
            self.by_axis = np.ascontiguousarray(split.swapaxes(0, 1))
            rest = split.shape[2]
            every = self.taps_needed
            self.taps_needed = np.append(every[::rest], every[:rest])

    def in_single(self) -> "BatchedSymbols":
        """The same in single precision, which takes the same phase factors.

        Also where imaginary parts vanish there.
        """
        found = copy.copy(self)
        found.dtype = np.dtype(np.float32)
        found.re = [x.astype(np.float32) for x in self.re]
        if self.im is not None:
            found.im = [x.astype(np.float32) for x in self.im]
        if self.by_axis is not None:
            found.by_axis = self.by_axis.astype(np.float32)
        return found

    def phases(self, frequencies: np.ndarray, grid_sizes: np.ndarray) -> np.ndarray:
        """The phase factors that `at` takes."""
        shifts = self.taps.shifts[self.taps_needed]
        return phase_factors(shifts, frequencies, grid_sizes)

    def workspace(self, count: int) -> np.ndarray:
        """Memory for the matrices of `count` frequencies, to be used many times."""
        groups, out, _ = self.taps.channel_shape
        return np.empty((2, groups * out * self.taps.columns * count), self.dtype)

    def at(self, phase: Array, workspace: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Real and imaginary parts of the matrices, in the workspace.

        Returns
        -------
        arrays, shape (out, columns, frequencies * groups)
        """
        groups, out, in_channels = self.taps.channel_shape
        count, components = len(phase), len(self.taps.phases)
        size = groups * out * self.taps.columns * count
        if components == groups == 1:  # in place
            parts = [x[:size].reshape(-1, count) for x in workspace]
            self._set_component(0, phase, parts)
        else:
            shape = (out, components, in_channels, count, groups)
            targets = [x[:size].reshape(shape) for x in workspace]
            parts = np.empty((2, size // (components * count), count), self.dtype)
            for number in range(components):
                self._set_component(number, phase, parts)
                for target, part in zip(targets, parts):
                    by_group = part.reshape(groups, out, in_channels, count)
                    target[:, number] = by_group.transpose(1, 2, 3, 0)
        re, im = (
            x[:size].reshape(out, self.taps.columns, count * groups) for x in workspace
        )
        return re, im

    def _set_component(
        self, number: int, phase: Array, parts: list[np.ndarray] | np.ndarray
    ) -> None:
        """Set parts, each (groups * out * in, count), to a polyphase component."""
        if self.by_axis is not None:
            self._set_axis_by_axis(phase, parts)
            return
        own = phase[:, self.taps.phases[number]].T
        cos, sin = (np.ascontiguousarray(x, self.dtype) for x in (own.real, own.imag))
        np.matmul(self.re[number], cos, out=parts[0])
        np.matmul(self.re[number], sin, out=parts[1])
        if self.im is not None:
            parts[0] -= self.im[number] @ sin
            parts[1] += self.im[number] @ cos

    def _set_axis_by_axis(
        self, phase: Array, parts: list[np.ndarray] | np.ndarray
    ) -> None:
        taps = self.by_axis
        assert taps is not None
        _, entries, other = taps.shape
        first, rest = phase[:, : self.first], phase[:, self.first :]
        starts, runs = runs_of(first)
        weights = np.concatenate([starts.real, starts.imag]).astype(self.dtype)
        partial = weights @ taps.reshape(self.first, -1)
        partial = partial.reshape(2, len(starts), entries, other)
        for i, run in enumerate(runs):
            both = np.concatenate(partial[:, i], axis=1)  # (entries, 2 * other)
            own = rest[run].T
            cos, sin = own.real.astype(self.dtype), own.imag.astype(self.dtype)
            np.matmul(both, np.concatenate([cos, -sin]), out=parts[0][:, run])
            np.matmul(both, np.concatenate([sin, cos]), out=parts[1][:, run])

    def fold_back(self, re: np.ndarray, im: np.ndarray, phase: Array) -> np.ndarray:
        """The real part of the adjoint of `at`: (taps, groups * out * in).

        `phase` has the factors of all taps.
        """
        groups, out, in_channels = self.taps.channel_shape
        shape = (out, -1, in_channels, len(phase), groups)
        cos, sin = (
            np.ascontiguousarray(x, self.dtype) for x in (phase.real, phase.imag)
        )
        by_tap = []
        for number, own in enumerate(self.taps.phases):
            component_re, component_im = (
                x.reshape(shape)[:, number]
                .transpose(3, 0, 1, 2)
                .reshape(-1, len(phase))
                for x in (re, im)
            )
            by_tap.append((component_re @ cos[:, own] + component_im @ sin[:, own]).T)
        return np.concatenate(by_tap)
