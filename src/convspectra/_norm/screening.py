"""Gram matrices in single precision, interpolated: what settles most frequencies.

Every entry of G(f) is a trigonometric polynomial. `ScreeningPass` makes the products at
few frequencies, the nodes, in double precision, and interpolates them elsewhere in
single precision. What that may lose, there and in the factorization, is bounded (see
`rounding`) and taken off the threshold. So what it finds to be below certainly is. Of
the rest nothing is known.

A trigonometric polynomial of degree d is determined by its values at 2 d + 1 equispaced
nodes: it is the sum of these values times Dirichlet kernels, which are real.
"""

import math
from collections.abc import Callable

import numpy as np

from .._arrays.array import Array, frobenius_norm
from .._arrays.threads import cores, spread
from .._base import cached
from .._compiled.packed import storage_of
from .._maps.symbol import phase_factors, runs_of
from .gram_certificate import Batches, DoublePass, GramPass
from .rounding import (
    DOWN_SINGLE,
    UNIT_SINGLE,
    cholesky_norm,
    interpolation,
    lebesgue_constant,
)

# Numbers interpolated at once in a thread: a cache's worth, but BATCH frequencies if
# these have no more than MOST_NUMBERS, since a sum for fewer wastes its call.
CACHED_NUMBERS, BATCH, MOST_NUMBERS = 2**18, 8, 2**22
# Factorizations that take about as long as to make one matrix at a node.
PRODUCT_COST = 4
# Nodes from which on interpolation goes axis by axis.
AXIS_BY_AXIS_NODES = 49
# Largest table of Dirichlet kernels that is kept between calls, in numbers.
TABLE_NUMBERS = 2**16
# Most bytes for matrices that are interpolated along the first axis only.
PARTIAL_BYTES = 2**28
# Numbers of such matrices that are worth a thread.
THREAD_NUMBERS = 2**14


class ScreeningPass(GramPass):
    """The matrices of `double` in single precision.

    Attributes
    ----------
    interpolation_error : float
        Bound on the error of the interpolated matrices, in norm.
    factor_error : float
        Bound on L L^H - (threshold - G) in norm, over the threshold.
    """

    def __init__(self, double: DoublePass) -> None:
        super().__init__(double.taps, double.grid_sizes, storage_of(double.side))
        groups, side, storage = self.groups, self.side, self.storage
        nodes = Nodes(self.taps.degree, real=double.symbols.is_real)
        self.interpolation = Interpolation(
            nodes, groups * storage.entries, frequencies_last=storage.axis == 1
        )
        # Near 1, so that nothing leaves the range of single precision.
        size = frobenius_norm(self.taps.weight)
        self.scale = groups * side / (size * size or 1.0)
        squares = np.zeros(len(nodes.frequencies))  # of the norms of lower triangles
        make = double.prepare(nodes.frequencies, nodes.grid_sizes)

        def set_nodes(start: int, stop: int) -> None:
            for part, re, im in make(start, stop):
                re, im = (storage.from_panels(x) * self.scale for x in (re, im))
                shape = (part.stop - part.start, -1)
                self.interpolation.set(part, re.reshape(shape), im.reshape(shape))
                sums = np.vecdot(re, re) + np.vecdot(im, im)
                squares[part] = sums.reshape(shape).max(axis=1)

        spread(set_nodes, len(squares), least=-(-self.thread_share // PRODUCT_COST))
        # The Frobenius norm counts entries off the diagonal twice.
        largest = math.sqrt(2 * squares.max())
        lebesgue = lebesgue_constant(nodes.grid_sizes)
        self.interpolation_error = largest * interpolation(nodes.terms, lebesgue)
        self.factor_error = cholesky_norm(
            storage.additions, side, storage.factor_bound, UNIT_SINGLE
        )

    def portions(self, frequencies: np.ndarray) -> list[slice]:
        """As `GramPass.portions`, and no more than `Interpolation` has memory for."""
        return [
            slice(piece.start + part.start, piece.start + part.stop)
            for piece in self.interpolation.pieces(frequencies)
            for part in super(ScreeningPass, self).portions(frequencies[piece])
        ]

    def prepare(
        self, frequencies: np.ndarray, grid_sizes: np.ndarray
    ) -> Callable[[int, int], Batches]:
        numbers = self.groups * self.storage.entries
        most = max(CACHED_NUMBERS // numbers, min(BATCH, MOST_NUMBERS // numbers), 1)
        weights = self.interpolation.nodes.weights(frequencies, grid_sizes)
        make_groups = self.interpolation.at(weights, most)
        split_groups = self.storage.split_groups

        def make(start: int, stop: int) -> Batches:
            for part, re, im in make_groups(start, stop):
                yield part, split_groups(re, self.groups), split_groups(im, self.groups)

        return make

    def certify(
        self, re: np.ndarray, im: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        # With e = interpolation_error, G may be off by e, and so may the trace of
        # threshold - G, which bounds the factor's error: (threshold + e) times
        # (1 + factor_error) must not exceed the square.
        thresholds = squares * self.scale / (1 + self.factor_error)
        thresholds = (thresholds - self.interpolation_error) * DOWN_SINGLE
        return self.storage.has_trusted_factor(re, im, thresholds) & (thresholds > 0)


class Nodes:
    """Interpolation nodes: 2 d + 1 equispaced points on an axis of degree d.

    A real kernel has conjugate values at f and -f: half of the nodes are kept.

    Attributes
    ----------
    grid_sizes : array, shape (axes,)
    frequencies : array, shape (kept, axes)
        Frequency f stands for f / grid_sizes cycles.
    """

    def __init__(self, degree: np.ndarray, *, real: bool) -> None:
        self.degree, self.grid_sizes = degree, 2 * degree + 1
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
        for f, n, d in zip(frequencies.T, map(int, grid_sizes), map(int, self.degree)):
            small = n * (2 * d + 1) <= TABLE_NUMBERS
            weights.append(_dirichlet_table(d, n)[f] if small else _dirichlet(d, f, n))
        return weights


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

    def at(self, weights: list[np.ndarray], most: int) -> Callable[[int, int], Batches]:
        """A function that interpolates to frequencies[start:stop], `most` at once.

        `weights` are those of the frequencies: see `Nodes.weights`.
        """
        if self.nodes.by_axis:
            starts, runs = runs_of(weights[0].astype(np.float32))
            values, even = self._along_first_axis(starts), _product(weights[1:])
            odd = even
        else:
            kept = self.nodes.kept
            conjugate, every = self.nodes.conjugate[kept], _product(weights)
            own, other = every[:, kept], every[:, conjugate] * (conjugate != kept)
            runs, values = [slice(0, len(own))], self.values
            even, odd = own + other, own - other  # of real and of imaginary parts
        both = even.astype(np.float32), odd.astype(np.float32)
        # One for each thread, all allocated here: what a thread frees goes back to the
        # system, and to fault in fresh memory takes longer than the sums.
        shape = (2, min(most, len(even)) * values.shape[3])
        workspaces = [np.empty(shape, np.float32) for _ in range(cores())]

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
