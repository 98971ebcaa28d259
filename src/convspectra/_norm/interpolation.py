"""Trigonometric polynomials from their values at few frequencies, in single precision.

A polynomial of degree d is known from its values at 2 d + 1 equal steps around the
torus: it is the sum of these values times Dirichlet kernels, which are real.
"""

from collections.abc import Iterator

import numpy as np

from .._arrays.array import Array
from .._arrays.threads import cores, spread
from .._base import cached
from .._maps.symbol import phase_factors, runs_of

BY_AXIS = 49  # nodes from which on a sum goes axis by axis
TABLE = 2**16  # numbers of Dirichlet kernels that are worth keeping
HALF_WAY = 2**28  # bytes of sums over one axis
WORTHWHILE = 2**14  # numbers of a sum that are worth a thread


class Nodes:
    """Where a polynomial of this degree must be known; it has numbers for values.

    If it is `real`, its values at f and -f are conjugate: half of the nodes suffice.

    Attributes
    ----------
    parts : array, shape (axes,)
        Frequency f stands for f / grid_sizes cycles.
    frequencies : array, shape (nodes, axes)
    """

    def __init__(self, degree: np.ndarray, *, real: bool) -> None:
        self.degree, self.grid_sizes = degree, 2 * degree + 1
        every = np.indices(tuple(self.grid_sizes)).reshape(len(degree), -1).T
        other = -every % self.grid_sizes if real else every
        self.mirror = np.asarray(
            np.ravel_multi_index(tuple(other.T), tuple(self.grid_sizes))
        )
        self.kept = np.flatnonzero(np.arange(len(every)) <= self.mirror)
        self.frequencies = every[self.kept]
        self.by_axis = len(every) >= BY_AXIS and len(every) > self.grid_sizes[0]

    @property
    def terms(self) -> int:
        """How many terms a sum has; axis by axis, those of both sums together."""
        first = int(self.grid_sizes[0]) if self.by_axis else 0
        return first + len(self.mirror) // (first or 1)

    def weights(
        self, frequencies: np.ndarray, grid_sizes: np.ndarray
    ) -> list[np.ndarray]:
        """The Dirichlet kernels of each axis: (frequencies, nodes of the axis)."""
        found = []
        for f, n, d in zip(frequencies.T, map(int, grid_sizes), map(int, self.degree)):
            small = n * (2 * d + 1) <= TABLE
            found.append(_table(d, n)[f] if small else _dirichlet(d, f, n))
        return found


@cached(maxsize=64)
def _table(degree: int, grid_sizes: int) -> np.ndarray:
    return _dirichlet(degree, np.arange(grid_sizes), grid_sizes)


def _dirichlet(degree: int, frequencies: np.ndarray, grid_sizes: int) -> np.ndarray:
    """Dirichlet kernels around the nodes of one axis, (frequencies, nodes)."""
    wave, nodes = np.arange(degree + 1)[:, None], 2 * degree + 1
    own = phase_factors(wave, np.arange(nodes)[:, None], np.array([nodes]))
    own[:, 1:] *= 2
    here: Array = phase_factors(wave, frequencies[:, None], np.array([grid_sizes]))
    return (here @ own.conj().T).real / nodes


class Interpolation:
    """From the values at the nodes, so many numbers at each, to those anywhere.

    These are (frequencies, numbers), or the other way round if frequencies are last.
    """

    def __init__(
        self, nodes: Nodes, numbers: int, *, frequencies_last: bool = False
    ) -> None:
        self.nodes, self.frequencies_last = nodes, frequencies_last
        count = len(nodes.mirror if nodes.by_axis else nodes.kept)
        first = int(nodes.grid_sizes[0]) if nodes.by_axis else 1
        shape = (first, 2, count // first, numbers)
        self.planes = np.empty(shape, np.float32)

    def set(self, which: slice, re: np.ndarray, im: np.ndarray) -> None:
        """State real and imaginary parts at some of the nodes, (those, numbers)."""
        if not self.nodes.by_axis:
            self.planes[0, 0, which], self.planes[0, 1, which] = re, im
            return
        numbers, rest = self.nodes.kept[which], self.planes.shape[2]
        # First as mirrors, then as themselves: for nodes that are both that holds.
        for those, sign in ((self.nodes.mirror[numbers], -1), (numbers, 1)):
            first, second = np.divmod(those, rest)
            self.planes[first, 0, second] = re
            self.planes[first, 1, second] = sign * im

    def pieces(self, frequencies: np.ndarray) -> list[slice]:
        """Slices of frequencies for which there is room half way."""
        if not self.nodes.by_axis:
            return [slice(0, len(frequencies))]
        runs = runs_of(frequencies[:, :1])[1]
        most = max(1, HALF_WAY // (self.planes.nbytes // len(self.planes)))
        return [
            slice(some[0].start, some[-1].stop)
            for some in (runs[i : i + most] for i in range(0, len(runs), most))
        ]

    def at(self, weights: list[np.ndarray], most: int) -> "Sums":
        """The values at frequencies with these weights, made when asked for."""
        if self.nodes.by_axis:
            return self._axis_by_axis(weights, most)
        kept = self.nodes.kept
        mirror, every = self.nodes.mirror[kept], _product(weights)
        here, there = every[:, kept], every[:, mirror] * (mirror != kept)
        even, odd = here + there, here - there
        runs = [slice(0, len(even))]
        return Sums(runs, self.planes, even, odd, most, self.frequencies_last)

    def _axis_by_axis(self, weights: list[np.ndarray], most: int) -> "Sums":
        """Sum over the nodes of the first axis; `Sums` goes over the rest."""
        starts, runs = runs_of(weights[0].astype(np.float32))
        rest = _product(weights[1:])
        first, _, nodes, numbers = self.planes.shape
        flat = self.planes.reshape(first, -1)
        half_way = np.empty((len(starts), flat.shape[1]), np.float32)

        def some(start: int, stop: int) -> None:
            np.matmul(starts, flat[:, start:stop], out=half_way[:, start:stop])

        spread(some, flat.shape[1], least=WORTHWHILE)
        half_way = half_way.reshape(-1, 2, nodes, numbers)
        return Sums(runs, half_way, rest, rest, most, self.frequencies_last)


class Sums:
    """Sums over nodes: for each run of frequencies those of its planes.

    Parameters
    ----------
    runs : list of slices
        Of the frequencies.
    planes : array, shape (runs, 2, nodes, numbers)
        Real parts and imaginary parts at the nodes.
    even, odd : array, shape (frequencies, nodes)
        The weights of real parts and of imaginary parts.
    most : int
        Frequencies that are made at once.
    frequencies_last : bool
    """

    def __init__(
        self,
        runs: list[slice],
        planes: np.ndarray,
        even: np.ndarray,
        odd: np.ndarray,
        most: int,
        frequencies_last: bool,
    ) -> None:
        self.runs, self.planes, self.most = runs, planes, most
        self.frequencies_last = frequencies_last
        self.weights = even.astype(np.float32), odd.astype(np.float32)
        # One for each thread, and all from the memory of this one: what others free
        # goes back to the system, and fresh memory takes longer than the sums.
        shape = (2, min(most, len(even)) * planes.shape[3])
        self.rooms = [np.empty(shape, np.float32) for _ in range(cores())]

    def between(
        self, start: int, stop: int
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Slices of the frequencies, with their real and imaginary parts.

        Each takes the place of the one before.
        """
        room = self.rooms.pop()
        try:
            yield from self._between(start, stop, room)
        finally:
            self.rooms.append(room)

    def _between(
        self, start: int, stop: int, room: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        numbers = self.planes.shape[3]
        for run, planes in zip(self.runs, self.planes):
            ends = max(run.start, start), min(run.stop, stop)
            for first in range(*ends, self.most):
                part = slice(first, min(first + self.most, ends[1]))
                count = part.stop - part.start
                re, im = (
                    self._sum(weights[part], plane, out[: count * numbers])
                    for weights, plane, out in zip(self.weights, planes, room)
                )
                yield part, re, im

    def _sum(
        self, weights: np.ndarray, plane: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        if self.frequencies_last:
            return np.matmul(plane.T, weights.T, out=out.reshape(-1, len(weights)))
        from .._compiled.weighted_sums import weighted_sums

        out = out.reshape(len(weights), -1)
        weighted_sums(weights, plane, out)
        return out


def _product(weights: list[np.ndarray]) -> np.ndarray:
    """The weights of all nodes of some axes."""
    found = weights[0]
    for more in weights[1:]:
        found = (found[:, :, None] * more[:, None, :]).reshape(len(found), -1)
    return found
