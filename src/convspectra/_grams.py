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
    Pattern,
    PlanarTaps,
    Taps,
    block_size,
    chunks,
    phase_factors,
    symbol,
)
from ._threads import spread

LANES_SIDE = 192  # the largest matrices of which a vector's worth stays in the cache,
CORRELATED_SIDE = 256  # and where only their triangles are looked at
CORRELATED = 2**16  # entries of a product of taps that are worth a call
BATCH = 2**22  # entries of large matrices that a thread works on
KEPT = 2**18  # entries of small matrices that are kept for the next question
WORTHWHILE = 2**20  # steps of a factorization that are worth a thread
BLOCKS = 4  # of rows, so that little more than a triangle is multiplied
STEPS = 16  # of Lanczos that tell which matrix has the largest norm,
LARGE_STEPS = 24  # and if they are large
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
        self.shifts = taps.shifts  # whose phase factors are needed
        self.correlation: tuple[np.ndarray, np.ndarray] | None = None
        self.floor = 0.0  # tests against levels below this are not made
        correlated = distinct and self._pays(frequencies)
        largest = CORRELATED_SIDE if correlated else LANES_SIDE
        many = frequencies * groups >= LANES // 2
        self.in_lanes = self.host and many and self.side <= largest
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
        terms = self.count * self.other + 2 * len(self.shifts) + 20
        return 16 * unit * terms * self.count * self.side

    def chunks(self, count: int) -> list[slice]:
        """Slices over `count` frequencies that are not too many for one `Grams`."""
        if not self.host:
            return chunks(self.taps, count)
        size = max(1, BATCH // len(self.shifts))
        return [slice(i, min(i + size, count)) for i in range(0, count, size)]

    def at(self, frequencies: np.ndarray, parts: np.ndarray) -> "Grams":
        return Grams(self, phase_factors(self.shifts, frequencies, parts))

    def triangles(self, phases: Array) -> np.ndarray:
        """The lower triangles, planar: (2, entries, frequencies * groups).

        The last axis is filled up to whole vectors.
        """
        if self.correlation is None:
            return self._products_in_lanes(phases)
        even, odd = self.correlation
        groups = self.taps.block[0]
        whole = -(-len(phases) // LANES) * LANES
        factors = np.zeros((2, phases.shape[1], whole))
        factors[:, :, : len(phases)] = phases.real.T, phases.imag.T
        found = np.empty((2, len(even), whole))
        np.matmul(even, factors[0], out=found[0])
        np.matmul(odd, factors[1], out=found[1])
        if groups == 1:
            return found
        by_group = found.reshape(2, -1, groups, whole)[..., : len(phases)]
        count = len(phases) * groups
        full = np.zeros((2, by_group.shape[1], -(-count // LANES) * LANES))
        full[..., :count] = by_group.swapaxes(2, 3).reshape(2, -1, count)
        return full

    def _products_in_lanes(self, phases: np.ndarray) -> np.ndarray:
        from ._lane_grams import gram

        re, im = self.planar.symbol(phases, LANES)
        if self.transposed:
            re, im = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (re, im))
        found = np.empty((2, self.side * (self.side + 1) // 2, re.shape[2]))
        gram(re, im, *found)
        return found

    def matrices(self, phases: Array) -> Array:
        """The matrices as a batch: (frequencies * groups, side, side).

        Only the lower triangles are right.
        """
        if self.correlation is not None:
            even, odd = self.correlation
            found = np.empty((len(phases), even.shape[1]), np.complex128)
            found.real, found.imag = phases.real @ even, phases.imag @ odd
            return found.reshape(-1, self.side, self.side)
        h = symbol(self.taps, like(self.taps.weight, phases))
        xp = namespace(h)
        h = xp.reshape(h, (-1, *h.shape[2:]))
        h = xp.matrix_transpose(h) if self.transposed else h
        if not self.host:
            return xp.matmul(h, adjoint(h))
        found, back = np.zeros((len(h), self.side, self.side), h.dtype), adjoint(h)
        rows = -(-self.side // BLOCKS)
        for start in range(0, self.side, rows):
            stop = start + rows
            np.matmul(
                h[:, start:stop], back[..., :stop], out=found[:, start:stop, :stop]
            )
        return found

    def _pays(self, frequencies: int) -> bool:
        """Whether the correlation takes fewer steps than a product per frequency."""
        one_phase = len(self.taps.phases) == 1
        small = self.side**2 * self.other < CORRELATED
        if not self.host or small or (self.transposed and not one_phase):
            return False
        differences = math.prod(2 * int(d) + 1 for d in self.taps.degree)
        pairs = self.count * (self.count + 1)
        cost = pairs + frequencies * differences / self.other
        return cost < 4 * frequencies and not self.taps.weight.imag.any()

    def _correlate(self) -> None:
        """Set the taps of G: C(d) is the sum of V_t V_u^T over t - u = d.

        C(-d) is the transpose of C(d), so that half of them suffice: the even part
        C(d) + C(-d) goes with the cosine and the odd part C(d) - C(-d) with the sine.
        """
        groups, out, into = self.taps.block
        taps = self.taps.weight.real.reshape(-1, groups, out, into)
        if self.transposed:
            taps = taps.swapaxes(2, 3)
        self.shifts, pairs = _differences(self.taps.pattern)
        low = np.tril_indices(self.side)
        shape = (len(low[0]),) if self.in_lanes else (self.side, self.side)
        even, odd = np.empty((2, len(pairs), groups, *shape))

        def some(start: int, stop: int) -> None:
            for d in range(start, stop):
                # The taps stand side by side: one product is the sum of all.
                left, right = (
                    taps[those].transpose(1, 2, 0, 3).reshape(groups, self.side, -1)
                    for those in pairs[d]
                )
                total = left @ right.swapaxes(1, 2)
                total *= 1 if self.shifts[d].any() else 0.5
                back = total.swapaxes(1, 2)
                if self.in_lanes:
                    total, back = (x[:, low[0], low[1]] for x in (total, back))
                even[d], odd[d] = total + back, total - back

        spread(some, len(pairs))
        if self.in_lanes:  # (entries * groups, differences), else turned
            even, odd = (x.transpose(2, 1, 0).reshape(-1, len(x)) for x in (even, odd))
        else:
            even, odd = (x.reshape(len(x), -1) for x in (even, odd))
        self.correlation = even, odd


class Grams:
    """Gram matrices at some frequencies, made when asked for, a few at a time.

    Each group of each frequency is looked at for itself.
    """

    def __init__(self, source: GramSource, phases: np.ndarray) -> None:
        self.source, self.phases = source, phases
        self.count = len(phases) * source.taps.block[0]
        self.kept = {} if self.count * source.side**2 <= KEPT else None

    def below(self, which: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Whether the matrices `which` are certainly below these squares."""
        test = _lanes_below if self.source.in_lanes else _batch_below
        found = np.zeros(len(which), dtype=bool)

        def some(part: slice, matrices: Array) -> None:
            found[part] = test(matrices, squares[part])

        self._each(which, some)
        return found

    def loudest(self, which: np.ndarray) -> tuple[int, float]:
        """The one of `which` that promises most, and the norm that it has at least."""
        source = self.source
        estimate = _lanes_estimates if source.in_lanes else _batch_estimates
        found = np.zeros(len(which))

        def some(part: slice, matrices: Array) -> None:
            found[part] = estimate(matrices, source.side)[: part.stop - part.start]

        self._each(which, some)
        return int(which[np.argmax(found)]), math.sqrt(max(found.max(), 0.0))

    def _each(self, which: np.ndarray, work: Callable[[slice, Array], None]) -> None:
        """Call work(part, matrices) for parts of `which` that are not too large."""
        source, side = self.source, self.source.side
        if not source.host:
            work(slice(0, len(which)), self._made(which))
            return
        size, least = max(1, BATCH // side**2), 1
        if source.in_lanes:
            least = LANES * -(-WORTHWHILE // (LANES * side**3))
            size = block_size(side**2)

        def some(start: int, stop: int) -> None:
            for first in range(start, stop, size):
                part = slice(first, min(first + size, stop))
                work(part, self._kept_or_made(which, part))

        spread(some, len(which), least=least)

    def _kept_or_made(self, which: np.ndarray, part: slice) -> Array:
        if self.kept is None or len(which) < self.count:
            return self._made(which[part])
        if part.start not in self.kept:
            self.kept[part.start] = self._made(which[part])
        return self.kept[part.start]

    def _made(self, which: np.ndarray) -> Array:
        """The matrices `which`: triangles in lanes, or a batch."""
        source, groups = self.source, self.source.taps.block[0]
        make = source.triangles if source.in_lanes else source.matrices
        if groups == 1:
            return make(self.phases[which])
        frequencies, place = np.unique(which // groups, return_inverse=True)
        made, chosen = make(self.phases[frequencies]), place * groups + which % groups
        if not source.in_lanes:
            return namespace(made).take(made, indices_like(made, chosen), axis=0)
        columns = np.zeros(-(-len(which) // LANES) * LANES, dtype=np.intp)
        columns[: len(which)] = chosen
        return made[:, :, columns]


def _lanes_below(triangles: np.ndarray, squares: np.ndarray) -> np.ndarray:
    from ._lane_grams import definite

    entries, count = triangles.shape[1:]
    levels, found = np.ones(count), np.zeros(count, dtype=bool)
    levels[: len(squares)] = squares
    re, im = triangles
    definite(re, im, math.isqrt(2 * entries), levels, found)
    return found[: len(squares)]


def _batch_below(matrices: Array, squares: np.ndarray) -> np.ndarray:
    eye = like(matrices, np.eye(matrices.shape[-1]))
    return are_definite(like(matrices, squares)[:, None, None] * eye - matrices)


def _lanes_estimates(triangles: np.ndarray, side: int) -> np.ndarray:
    """What the top eigenvalues of matrices in lanes are at least."""
    from ._lane_grams import lanczos

    found, steps = np.zeros(triangles.shape[2]), min(STEPS, 4 + side // 4, side)
    re, im = triangles
    lanczos(re, im, side, _first_vector(side), steps, found)
    return found


def _batch_estimates(matrices: Array, side: int) -> np.ndarray:
    """What the top eigenvalues of a batch of matrices are at least, by Lanczos."""
    xp, count, steps = namespace(matrices), matrices.shape[0], min(LARGE_STEPS, side)
    matrices = xp.tril(matrices) + adjoint(xp.tril(matrices, k=-1))
    v = like(matrices, np.tile(_first_vector(side)[:, None], (count, 1, 1)))
    before, diagonal, beside = xp.zeros_like(v), [], [xp.real(v)[:, :1, :] * 0]
    for _ in range(steps):
        u = xp.matmul(matrices, v)
        diagonal.append(xp.sum(xp.real(xp.conj(v) * u), axis=1, keepdims=True))
        u = u - diagonal[-1] * v - beside[-1] * before
        size = xp.linalg.vector_norm(u, axis=1, keepdims=True)
        before, v = v, u / xp.where(size > 0, size, xp.ones_like(size))
        beside.append(size)
    alphas, betas = (
        to_numpy(xp.concat(x, axis=1))[:, :, 0] for x in (diagonal, beside)
    )
    tridiagonal, at = np.zeros((count, steps, steps)), np.arange(steps)
    tridiagonal[:, at, at] = alphas
    tridiagonal[:, at[1:], at[:-1]] = betas[:, 1:-1]  # eigvalsh reads the lower half
    return np.linalg.eigvalsh(tridiagonal)[:, -1]


@functools.lru_cache(maxsize=32)
def _differences(pattern: Pattern) -> tuple[np.ndarray, list[np.ndarray]]:
    """Half of the differences of shifts within a phase, and whose taps they are.

    Returns
    -------
    array, shape (differences, axes)
        One of d and -d each.
    list of arrays, shape (2, pairs)
        For each of them the numbers t and u of all taps with shifts that far apart.
    """
    pairs: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for part in pattern.phases:
        for t, u in itertools.product(range(part.start, part.stop), repeat=2):
            shift = tuple((pattern.shifts[t] - pattern.shifts[u]).tolist())
            if shift >= tuple(-x for x in shift):
                pairs.setdefault(shift, []).append((t, u))
    return np.array(list(pairs)), [np.array(x).T for x in pairs.values()]


@functools.cache
def _first_vector(side: int) -> np.ndarray:
    """Where Lanczos begins."""
    x = np.random.default_rng(0).standard_normal((side, 2)) @ np.array([1, 1j])
    return x / np.linalg.norm(x)
