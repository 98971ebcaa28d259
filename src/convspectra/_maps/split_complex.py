"""The symbol with real and imaginary parts apart, one matrix after the other."""

import math
from collections.abc import Iterator

import numpy as np

from .._arrays.array import Array
from .symbol import SEPARABLE, Taps, phase_factors, runs_of

RUNS = 4  # frequencies of the first axis that are transformed together
CACHED = 2**17  # entries of small matrices that are made together
AT_ONCE, SEVERAL = 2**21, 8  # entries and frequencies of larger ones


class Planes:
    """Makes the matrices of NumPy's `taps`, transposed or not, at any frequencies.

    They lie column by column. Columns are so far `apart`, and filled up with zeros.
    Real products are half of what complex ones take where the taps are real.
    """

    def __init__(self, taps: Taps, *, transposed: bool, apart: int) -> None:
        groups, out, in_channels = taps.channel_shape
        self.shifts, self.phases, self.transposed = taps.shifts, taps.phases, transposed
        self.whole = (groups, out if transposed else taps.columns, apart)
        weight = taps.weight.reshape(-1, groups, out, in_channels)
        weight = weight if transposed else weight.swapaxes(2, 3)
        rows = weight.shape[3]
        # What a polyphase component contributes; if there is one, that is the whole.
        self.shape = self.whole if len(self.phases) == 1 else weight.shape[1:]
        self.is_real = not weight.imag.any()
        parts = (weight.real,) if self.is_real else (weight.real, weight.imag)
        self.taps = []  # of each component, those of real parts first
        for own in self.phases:
            planes = np.zeros((len(parts), own.stop - own.start, *self.shape))
            for plane, part in zip(planes, parts):
                plane[..., :rows] = part[own]
            self.taps.append(planes.reshape(-1, math.prod(self.shape)))
        self.first = 1  # taps along the first axis, if that is gone through first
        if len(weight) >= SEPARABLE and len(self.phases) == 1 and self.is_real:
            self.first = len(np.unique(taps.shifts[:, 0]))

    def at(
        self, frequencies: np.ndarray, grid_sizes: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Slices of the frequencies, with their real and imaginary parts.

        These are (frequencies * groups, columns, apart); each takes the place of the
        one before.
        """
        phase: Array = phase_factors(self.shifts, frequencies, grid_sizes)
        entries = math.prod(self.whole)
        most = min(max(SEVERAL, CACHED // entries), AT_ONCE // entries, len(phase))
        # Fresh memory takes longer than the products that are written to it.
        new = np.empty if len(self.phases) == 1 else np.zeros
        room = new((2 * max(1, most), *self.whole))
        make = self._axis_by_axis if self.first > 1 else self._at_once
        for part in make(phase, room):
            both = room[: 2 * (part.stop - part.start)]
            re, im = both.reshape(2, -1, *self.whole[1:])
            yield part, re, im

    def _at_once(self, phase: Array, room: np.ndarray) -> Iterator[slice]:
        for part in _slices(0, len(phase), len(room) // 2):
            both = room[: 2 * (part.stop - part.start)]
            for number, (own, taps) in enumerate(zip(self.phases, self.taps)):
                weights = _weights(phase[part, own], is_real=self.is_real)
                if len(self.phases) == 1:
                    np.matmul(weights, taps, out=both.reshape(len(both), -1))
                else:
                    found = (weights @ taps).reshape(-1, *self.shape)
                    self._place(both, number)[...] = found
            yield part

    def _place(self, both: np.ndarray, number: int) -> np.ndarray:
        """Where the numbers of one polyphase component go."""
        _, columns, rows = self.shape
        if self.transposed:
            return both[..., number * rows : (number + 1) * rows]
        return both[:, :, number * columns : (number + 1) * columns, :rows]

    def _axis_by_axis(self, phase: Array, room: np.ndarray) -> Iterator[slice]:
        """Along the first axis, then for each frequency there along the rest."""
        rest = phase.shape[1] // self.first
        starts, runs = runs_of(phase[:, ::rest])
        taps = self.taps[0].reshape(self.first, -1)
        for some in _slices(0, len(runs), RUNS):
            turned = np.stack([starts[some].real, starts[some].imag], axis=1)
            half_way = turned.reshape(-1, self.first) @ taps
            half_way = half_way.reshape(len(turned), 2 * rest, -1)
            for planes, run in zip(half_way, runs[some]):
                for part in _slices(run.start, run.stop, len(room) // 2):
                    weights = _weights(phase[part, :rest], is_real=False)
                    both = room[: len(weights)].reshape(len(weights), -1)
                    np.matmul(weights, planes, out=both)
                    yield part


def _weights(phase: Array, *, is_real: bool) -> np.ndarray:
    """How real parts, and imaginary ones after them, follow from those of the taps."""
    cos, sin = phase.real, phase.imag
    if is_real:
        return np.concatenate([cos, sin])
    return np.block([[cos, -sin], [sin, cos]])


def _slices(start: int, stop: int, most: int) -> list[slice]:
    return [slice(i, min(i + most, stop)) for i in range(start, stop, most)]
