"""The symbol with real and imaginary parts apart, one matrix after the other."""

from collections.abc import Iterator

import numpy as np

from ._array import Array
from ._symbol import SEPARABLE, Taps, phase_factors, runs_of

RUNS = 4  # frequencies of the first axis that are transformed together


class Planes:
    """Makes the matrices of NumPy's `taps`, transposed or not, at any frequencies.

    By real products, which are half of what complex ones take where the taps are real.
    """

    def __init__(self, taps: Taps, *, transposed: bool) -> None:
        groups, out, into = taps.block
        self.shifts, self.phases = taps.shifts, taps.phases
        self.shape = (into, out) if transposed else (out, into)  # of one phase
        self.side_by_side = 1 if transposed else 2  # the axis along which phases stand
        weight = taps.weight.reshape(-1, groups, out, into)
        weight = weight.swapaxes(2, 3) if transposed else weight
        weight = weight.reshape(len(weight), -1)
        self.re, self.im = np.ascontiguousarray(weight.real), None
        if weight.imag.any():
            self.im = np.ascontiguousarray(weight.imag)
        self.first = 1  # taps along the first axis, if that is gone through first
        if len(weight) >= SEPARABLE and len(self.phases) == 1 and self.im is None:
            self.first = len(np.unique(taps.shifts[:, 0]))

    def at(
        self, frequencies: np.ndarray, parts: np.ndarray, most: int
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Slices of the frequencies, with their real and imaginary parts.

        These are (frequencies * groups, rows, columns); each takes the place of the one
        before.
        """
        phase: Array = phase_factors(self.shifts, frequencies, parts)
        # Fresh memory takes longer than the products that are written to it.
        room = np.empty((2, min(most, len(phase)), self.re.shape[1]))
        if self.first > 1:
            yield from self._axis_by_axis(phase, room)
        elif len(self.phases) == 1:
            for part in _slices(0, len(phase), most):
                re, im = self._of_phase(phase[part], self.phases[0], room)
                yield part, re, im
        else:
            for part in _slices(0, len(phase), most):
                made = [
                    [x.copy() for x in self._of_phase(phase[part, own], own, room)]
                    for own in self.phases
                ]
                re, im = (np.concatenate(x, self.side_by_side) for x in zip(*made))
                yield part, re, im

    def _of_phase(self, phase: Array, own: slice, room: np.ndarray) -> list[np.ndarray]:
        """What the taps of one polyphase component contribute."""
        cos, sin = phase.real, phase.imag
        re, im = (
            np.matmul(x, self.re[own], out=out[: len(phase)])
            for x, out in zip((cos, sin), room)
        )
        if self.im is not None:
            re -= sin @ self.im[own]
            im += cos @ self.im[own]
        return [x.reshape(-1, *self.shape) for x in (re, im)]

    def _axis_by_axis(
        self, phase: Array, room: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Along the first axis, then for each frequency there along the rest."""
        rest = phase.shape[1] // self.first
        starts, runs = runs_of(phase[:, ::rest])
        for some in _slices(0, len(runs), RUNS):
            turned = np.stack([starts[some].real, starts[some].imag], axis=1)
            half_way = turned.reshape(-1, self.first) @ self.re.reshape(self.first, -1)
            half_way = half_way.reshape(-1, 2 * rest, self.re.shape[1])
            for both, run in zip(half_way, runs[some]):
                for part in _slices(run.start, run.stop, room.shape[1]):
                    cos, sin = phase[part, :rest].real, phase[part, :rest].imag
                    made = room[:, : len(cos)]
                    np.matmul(np.concatenate([cos, -sin], 1), both, out=made[0])
                    np.matmul(np.concatenate([sin, cos], 1), both, out=made[1])
                    re, im = (x.reshape(-1, *self.shape) for x in made)
                    yield part, re, im


def _slices(start: int, stop: int, most: int) -> list[slice]:
    return [slice(i, min(i + most, stop)) for i in range(start, stop, most)]
