"""The Gram matrices of a symbol at many frequencies, and which are below a level.

G(f) is H(f) H(f)^H, or the transpose of H(f)^H H(f) where that is smaller. For a small
kernel it is cheaper as the symbol of an autocorrelation: products of the taps, once,
instead of a product at each frequency. Small matrices on the CPU stand in the lanes of
vectors, see `_lane_grams`; others, and all on a GPU, are batches for the library.
"""

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np

from ._array import (
    Array,
    adjoint,
    are_definite,
    indices_like,
    is_host,
    like,
    namespace,
    to_numpy,
)
from ._symbol import (
    PlanarTaps,
    Taps,
    block_size,
    phase_factors,
    phase_like,
    symbol,
)
from ._threads import spread

LANES_SIDE = 192  # the largest matrices of which a vector's worth stays in the cache,
CORRELATED_SIDE = 256  # and where only their triangles are looked at
CORRELATED = 2**17  # entries of a product of taps that are worth a call
STEPS = 16  # of Lanczos that tell which matrix has the largest norm
POWER_STEPS = 8
LANES = 8  # numbers of double precision in a vector


class GramSource:
    """Gram matrices of the symbol of `taps`, at any frequencies."""

    def __init__(self, taps: Taps, *, frequencies: int, distinct: bool) -> None:
        """Get ready for about so many frequencies.

        `distinct` says that no two taps meet on one site of the torus.
        """
        groups, out, _ = taps.block
        self.taps, self.count = taps, len(taps.shifts)
        self.transposed = out > taps.columns
        self.side, self.other = sorted((out, taps.columns))
        self.host = is_host(taps.weight)
        self.correlation = None
        self.floor = 0.0  # tests against levels below this are not made
        correlated = distinct and self._pays(frequencies)
        largest = CORRELATED_SIDE if correlated else LANES_SIDE
        self.in_lanes = self.host and self.side <= largest
        if self.in_lanes and not correlated:
            self.planar = PlanarTaps(taps)
            self.shifts = taps.shifts[self.planar.columns]
        if correlated:
            self._correlate()
            weights = np.abs(taps.weight.reshape(self.count, groups, -1)) ** 2
            self.floor = math.sqrt(weights.sum(axis=(0, 2)).max() / self.side) / 4

    def lost(self, unit: float) -> float:
        """What rounding may add to the norm by the correlation, relative to it.

        The errors of G are below unit * terms * (sum of the sizes of the taps)^2; the
        sum is at most count * side times the squared norm, and no level is below a
        quarter of what that shows.
        """
        if self.correlation is None:
            return 0.0
        terms = self.count * self.other + len(self.shifts) + 20
        return 16 * unit * terms * self.count * self.side

    def at(self, frequencies: np.ndarray, parts: np.ndarray) -> "LaneGrams | Grams":
        if self.in_lanes:
            return LaneGrams(self, phase_factors(self.shifts, frequencies, parts))
        if self.correlation is not None:
            phases = phase_factors(self.shifts, frequencies, parts)
            return Grams((phases @ self.correlation).reshape(-1, self.side, self.side))
        matrices = symbol(self.taps, phase_like(self.taps, frequencies, parts))
        xp = namespace(matrices)
        matrices = xp.reshape(matrices, (-1, *matrices.shape[2:]))
        if self.transposed:
            matrices = xp.matrix_transpose(matrices)
        return Grams(_products(matrices, adjoint(matrices)))

    def triangles(self, phases: Array) -> np.ndarray:
        """The lower triangles, planar: (2, entries, frequencies * groups).

        The last axis is filled up to whole vectors.
        """
        if self.correlation is None:
            return self._products_of_symbols(phases)
        groups = self.taps.block[0]
        whole = -(-len(phases) // LANES) * LANES
        factors = np.zeros((2, phases.shape[1], whole))
        factors[:, :, : len(phases)] = phases.real.T, phases.imag.T
        found = self.correlation @ factors
        if groups == 1:
            return found
        by_group = found.reshape(2, -1, groups, whole)[..., : len(phases)]
        count = len(phases) * groups
        full = np.zeros((2, by_group.shape[1], -(-count // LANES) * LANES))
        full[..., :count] = by_group.swapaxes(2, 3).reshape(2, -1, count)
        return full

    def _products_of_symbols(self, phases: np.ndarray) -> np.ndarray:
        from ._lane_grams import gram

        re, im = self.planar.symbol(phases, LANES)
        if self.transposed:
            re, im = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (re, im))
        found = np.empty((2, self.side * (self.side + 1) // 2, re.shape[2]))
        gram(re, im, *found)
        return found

    def _pays(self, frequencies: int) -> bool:
        """Whether the correlation takes fewer steps than a product per frequency."""
        one_phase = len(self.taps.phases) == 1
        small = self.side**2 * self.other < CORRELATED
        if not self.host or small or (self.transposed and not one_phase):
            return False
        differences = math.prod(2 * int(d) + 1 for d in self.taps.degree)
        pairs = self.count * (self.count + 1)
        cost = pairs + 2 * frequencies * differences / self.other
        return cost < 4 * frequencies and not self.taps.weight.imag.any()

    def _correlate(self) -> None:
        """Set the taps of G and their shifts: sums of V_t V_u^T over t - u."""
        groups, out, into = self.taps.block
        taps = self.taps.weight.real.reshape(-1, groups, out, into)
        if self.transposed:
            taps = taps.swapaxes(2, 3)
        pairs: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for part in self.taps.phases:
            for t, u in itertools.product(range(part.start, part.stop), repeat=2):
                shift = tuple((self.taps.shifts[t] - self.taps.shifts[u]).tolist())
                pairs.setdefault(shift, []).append((t, u))
        self.shifts = np.array(list(pairs))
        place = {shift: number for number, shift in enumerate(pairs)}
        half = [shift for shift in pairs if shift >= tuple(-x for x in shift)]
        stacked = np.empty((len(pairs), groups, self.side, self.side))

        def some(start: int, stop: int) -> None:
            for shift in half[start:stop]:
                products = [taps[t] @ taps[u].swapaxes(1, 2) for t, u in pairs[shift]]
                total = functools.reduce(np.add, products)
                stacked[place[shift]] = total
                stacked[place[tuple(-x for x in shift)]] = total.swapaxes(1, 2)

        spread(some, len(half))
        if self.in_lanes:
            low = np.tril_indices(self.side)
            lower = stacked[:, :, low[0], low[1]]  # (differences, groups, entries)
            self.correlation = lower.transpose(2, 1, 0).reshape(-1, len(lower))
        else:
            self.correlation = stacked.reshape(len(stacked), -1).astype(np.complex128)


class Grams:
    """Gram matrices as a batch, (matrices, side, side)."""

    def __init__(self, matrices: Array) -> None:
        self.matrices = matrices

    def below(self, which: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Whether the matrices `which` are certainly below these squares."""
        g, side = self.matrices, self.matrices.shape[-1]
        xp = namespace(g)
        found = np.zeros(len(which), dtype=bool)

        def some(start: int, stop: int) -> None:
            part = xp.take(g, indices_like(g, which[start:stop]), axis=0)
            level = like(g, squares[start:stop])[:, None, None]
            found[start:stop] = are_definite(level * like(g, np.eye(side)) - part)

        if is_host(g):
            spread(some, len(which))
        else:
            some(0, len(which))
        return found

    def loudest(self, which: np.ndarray) -> tuple[int, float]:
        """The one of `which` that promises most, and the norm that it has at least."""
        xp = namespace(self.matrices)
        gram = xp.take(self.matrices, indices_like(self.matrices, which), axis=0)
        start = np.random.default_rng(0).standard_normal(
            (len(which), gram.shape[-1], 1)
        )
        v = like(gram, start)
        for _ in range(POWER_STEPS):
            v = xp.matmul(gram, v)
            v = v / xp.max(xp.abs(v), axis=(-2, -1), keepdims=True)
        gain = xp.matmul(adjoint(v), xp.matmul(gram, v)) / xp.matmul(adjoint(v), v)
        gain = np.nan_to_num(to_numpy(xp.real(gain))).reshape(-1)
        return int(which[np.argmax(gain)]), math.sqrt(max(gain.max(), 0.0))


class LaneGrams:
    """Gram matrices that are made when they are asked for, a few at a time."""

    def __init__(self, source: GramSource, phases: np.ndarray) -> None:
        self.source, self.phases = source, phases
        self.groups = source.taps.block[0]
        self.size = block_size(source.side**2)
        self.whole = None  # all triangles, if they are few

    def below(self, which: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Whether the matrices `which` are certainly below these squares."""
        from ._lane_grams import definite

        found = np.zeros(len(which), dtype=bool)

        def some(part: slice, triangles: np.ndarray) -> None:
            count = triangles.shape[2]
            levels, answers = np.ones(count), np.zeros(count, dtype=bool)
            levels[: part.stop - part.start] = squares[part]
            re, im = triangles
            definite(re, im, self.source.side, levels, answers)
            found[part] = answers[: part.stop - part.start]

        self._each(which, some)
        return found

    def loudest(self, which: np.ndarray) -> tuple[int, float]:
        """The one of `which` that promises most, and the norm that it has at least."""
        from ._lane_grams import lanczos

        side = self.source.side
        found, steps = np.zeros(len(which)), min(STEPS, 4 + side // 4, side)

        def some(part: slice, triangles: np.ndarray) -> None:
            answers = np.zeros(triangles.shape[2])
            re, im = triangles
            lanczos(re, im, side, _first_vector(side), steps, answers)
            found[part] = answers[: part.stop - part.start]

        self._each(which, some)
        return int(which[np.argmax(found)]), math.sqrt(max(found.max(), 0.0))

    def _each(
        self, which: np.ndarray, work: Callable[[slice, np.ndarray], None]
    ) -> None:
        """Call work(part, triangles) for parts of `which` that fit the cache."""

        def some(start: int, stop: int) -> None:
            for first in range(start, stop, self.size):
                part = slice(first, min(first + self.size, stop))
                work(part, self._triangles(which[part]))

        spread(some, len(which), least=self.size)

    def _triangles(self, which: np.ndarray) -> np.ndarray:
        if len(which) == len(self.phases) * self.groups <= self.size:
            if self.whole is None:
                self.whole = self.source.triangles(self.phases)
            return self.whole
        if self.groups == 1:
            return self.source.triangles(self.phases[which])
        frequencies, place = np.unique(which // self.groups, return_inverse=True)
        made = self.source.triangles(self.phases[frequencies])
        columns = np.zeros(-(-len(which) // LANES) * LANES, dtype=np.intp)
        columns[: len(which)] = place * self.groups + which % self.groups
        return made[:, :, columns]


@functools.cache
def _first_vector(side: int) -> np.ndarray:
    """Where Lanczos begins."""
    x = np.random.default_rng(0).standard_normal((side, 2)) @ np.array([1, 1j])
    return x / np.linalg.norm(x)


def _products(a: Array, b: Array) -> Array:
    """The products of two batches of matrices."""
    if not is_host(a):
        return namespace(a).matmul(a, b)
    found = np.empty((*a.shape[:-1], b.shape[-1]), a.dtype)

    def some(start: int, stop: int) -> None:
        np.matmul(a[start:stop], b[start:stop], out=found[start:stop])

    spread(some, len(a))
    return found
