"""Interpolation of trigonometric polynomials, in single precision.

A polynomial of degree d is determined by its values at 2 d + 1 equispaced nodes: it is
the sum of these values times Dirichlet kernels, which are real.
"""

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from .._arrays.array import Array
from .._arrays.threads import cores, spread
from .._base import cached
from .._maps.symbol import phase_factors, runs_of

# Nodes from which on interpolation goes axis by axis.
AXIS_BY_AXIS_NODES = 49
# Largest table of Dirichlet kernels that is kept between calls, in numbers.
TABLE_NUMBERS = 2**16
# Most bytes for matrices that are interpolated along the first axis only.
PARTIAL_BYTES = 2**28
# Numbers of such matrices that are worth a thread.
THREAD_NUMBERS = 2**14

# Slices of the frequencies in hand, with real and imaginary parts of the values there.
# Each may overwrite the one before.
Batches: TypeAlias = Iterator[tuple[slice, np.ndarray, np.ndarray]]


class Nodes:
    """Interpolation nodes: 2 d + 1 equispaced points on an axis of degree d.

    A real kernel has conjugate values at f and -f: half of the nodes are kept.

    Attributes
    ----------
    grid_sizes : array, shape (axes,)
    frequencies : array, shape (kept, axes)
        Frequency f stands for f / grid_sizes cycles.
    """

    def __init__(self, degree: tuple[int, ...], *, real: bool) -> None:
        self.degree, self.grid_sizes = degree, 2 * np.array(degree) + 1
        shape = tuple(self.grid_sizes)
        every = np.indices(shape).reshape(len(degree), -1).T
        conjugate = -every % self.grid_sizes if real else every
        self.conjugate = np.asarray(np.ravel_multi_index(tuple(conjugate.T), shape))
        self.kept = np.flatnonzero(np.arange(len(every)) <= self.conjugate)
        self.frequencies = every[self.kept]
        many = len(every) >= AXIS_BY_AXIS_NODES
        self.by_axis = many and len(every) > self.grid_sizes[0]

    @property
    def terms(self) -> int:
        """How many terms a sum has; axis by axis, those of both sums together."""
        first = int(self.grid_sizes[0]) if self.by_axis else 0
        return first + len(self.conjugate) // (first or 1)

    def weights(
        self, frequencies: np.ndarray, grid_sizes: np.ndarray
    ) -> list[np.ndarray]:
        """The Dirichlet kernels of each axis: (frequencies, nodes of the axis)."""
        weights = []
        for f, n, d in zip(frequencies.T, map(int, grid_sizes), self.degree):
            small = n * (2 * d + 1) <= TABLE_NUMBERS
            weights.append(_dirichlet_table(d, n)[f] if small else _dirichlet(d, f, n))
        return weights

    def folded_weights(
        self, frequencies: np.ndarray, grid_sizes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the kept nodes' real and imaginary parts: (frequencies, kept).

        A node and its conjugate have the same real part, and opposite imaginary ones.
        """
        grid = tuple(map(int, grid_sizes))
        if math.prod(grid) * len(self.kept) <= TABLE_NUMBERS:
            numbers = np.ravel_multi_index(tuple(frequencies.T), grid)
            even, odd = _folded_table(self, grid)
            return even[numbers], odd[numbers]
        return _folded(self, frequencies, grid_sizes)


@cached(maxsize=64)
def nodes_of(degree: tuple[int, ...], *, real: bool) -> Nodes:
    """Cached: equal arguments give the identical object.

    On whose identity other caches are keyed.
    """
    return Nodes(degree, real=real)


@cached(maxsize=64)
def _folded_table(nodes: Nodes, grid: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Those of all frequencies of a grid, in the order of their numbers."""
    every = np.indices(grid).reshape(len(grid), -1).T
    return _folded(nodes, every, np.array(grid))


def _folded(
    nodes: Nodes, frequencies: np.ndarray, grid_sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    kept, conjugate = nodes.kept, nodes.conjugate[nodes.kept]
    every = _product(nodes.weights(frequencies, grid_sizes))
    own, other = every[:, kept], every[:, conjugate] * (conjugate != kept)
    return (own + other).astype(np.float32), (own - other).astype(np.float32)


@cached(maxsize=64)
def _dirichlet_table(degree: int, grid_size: int) -> np.ndarray:
    return _dirichlet(degree, np.arange(grid_size), grid_size)


def _dirichlet(degree: int, frequencies: np.ndarray, grid_size: int) -> np.ndarray:
    """Dirichlet kernels around the nodes of one axis: (frequencies, nodes)."""
    wave, nodes = np.arange(degree + 1)[:, None], 2 * degree + 1
    own = phase_factors(wave, np.arange(nodes)[:, None], np.array([nodes]))
    own[:, 1:] *= 2
    there: Array = phase_factors(wave, frequencies[:, None], np.array([grid_size]))
    return (there @ own.conj().T).real / nodes


class Interpolation:
    """Single-precision polynomials: `numbers` values per frequency.

    What comes out is (frequencies, numbers), or transposed if frequencies are last.
    """

    def __init__(
        self, nodes: Nodes, numbers: int, *, frequencies_last: bool = False
    ) -> None:
        self.nodes, self.frequencies_last = nodes, frequencies_last
        count = len(nodes.conjugate if nodes.by_axis else nodes.kept)
        first = int(nodes.grid_sizes[0]) if nodes.by_axis else 1
        # Real and imaginary parts on the second axis; the first axis of nodes is the
        # first one where interpolation goes axis by axis.
        self.values = np.empty((first, 2, count // first, numbers), np.float32)
        self.workspaces: list[np.ndarray] = []

    def set(self, which: slice, re: np.ndarray, im: np.ndarray) -> None:
        """Set the values at some of the kept nodes: (those, numbers)."""
        if not self.nodes.by_axis:
            self.values[0, 0, which], self.values[0, 1, which] = re, im
            return
        own, rest = self.nodes.kept[which], self.values.shape[2]
        # Conjugates first, so that self-conjugate nodes keep their own value.
        for nodes, sign in ((self.nodes.conjugate[own], -1), (own, 1)):
            first, second = np.divmod(nodes, rest)
            self.values[first, 0, second] = re
            self.values[first, 1, second] = sign * im

    def pieces(self, frequencies: np.ndarray) -> list[slice]:
        """Slices of frequencies for which PARTIAL_BYTES suffice."""
        if not self.nodes.by_axis:
            return [slice(0, len(frequencies))]
        runs = runs_of(frequencies[:, :1])[1]
        most = max(1, PARTIAL_BYTES // (self.values.nbytes // len(self.values)))
        groups = (runs[i : i + most] for i in range(0, len(runs), most))
        return [slice(group[0].start, group[-1].stop) for group in groups]

    def at(
        self, frequencies: np.ndarray, grid_sizes: np.ndarray, most: int
    ) -> Callable[[int, int], Batches]:
        """A function that interpolates to frequencies[start:stop], `most` at once."""
        if self.nodes.by_axis:
            first, *others = self.nodes.weights(frequencies, grid_sizes)
            starts, runs = runs_of(first.astype(np.float32))
            rest = _product(others).astype(np.float32)
            values, both = self._along_first_axis(starts), (rest, rest)
        else:
            runs, values = [slice(0, len(frequencies))], self.values
            both = self.nodes.folded_weights(frequencies, grid_sizes)
        workspaces = self._workspaces(min(most, len(frequencies)) * values.shape[3])

        def make(start: int, stop: int) -> Batches:
            workspace = workspaces.pop()
            for run, run_values in zip(runs, values):
                bounds = max(run.start, start), min(run.stop, stop)
                for first in range(*bounds, most):
                    part = slice(first, min(first + most, bounds[1]))
                    re, im = (
                        self._sum(w[part], x, out)
                        for w, x, out in zip(both, run_values, workspace)
                    )
                    yield part, re, im
            workspaces.append(workspace)

        return make

    def _workspaces(self, numbers: int) -> list[np.ndarray]:
        """Memory for each thread, allocated once.

        What a thread frees goes back to the system, and to fault in fresh memory takes
        longer than the sums.
        """
        if not self.workspaces or self.workspaces[0].shape[1] < numbers:
            shape = (2, numbers)
            self.workspaces = [np.empty(shape, np.float32) for _ in range(cores())]
        return self.workspaces

    def _along_first_axis(self, weights: np.ndarray) -> np.ndarray:
        """Sums over the nodes of the first axis: (runs, 2, other nodes, numbers)."""
        flat = self.values.reshape(len(self.values), -1)
        partial = np.empty((len(weights), flat.shape[1]), np.float32)

        def columns(start: int, stop: int) -> None:
            np.matmul(weights, flat[:, start:stop], out=partial[:, start:stop])

        spread(columns, flat.shape[1], least=THREAD_NUMBERS)
        return partial.reshape(-1, *self.values.shape[1:])

    def _sum(
        self, weights: np.ndarray, values: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """Weights (frequencies, nodes) times values (nodes, numbers)."""
        out = out[: len(weights) * values.shape[1]]
        if self.frequencies_last:
            return np.matmul(values.T, weights.T, out=out.reshape(-1, len(weights)))
        from .._compiled.weighted_sums import weighted_sums

        out = out.reshape(len(weights), -1)
        weighted_sums(np.ascontiguousarray(weights), values, out)
        return out


def _product(weights: list[np.ndarray]) -> np.ndarray:
    """The weights of all nodes of several axes, from those of each axis."""
    product = weights[0]
    for more in weights[1:]:
        product = (product[:, :, None] * more[:, None, :]).reshape(len(product), -1)
    return product
