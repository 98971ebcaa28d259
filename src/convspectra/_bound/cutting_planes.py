"""The nearest kernel on a torus, about, in a few rounds: for training.

    minimize |K - K0|^2 / 2   over kernels K with   |H(f)| <= c for every frequency f

If singular values of H(f) = U S V^H exceed c, let B = U max(S - c, 0) V^H, divided by
its nuclear norm. Then Re <B, X> <= c for every matrix X with |X| <= c, but Re <B, H(f)>
is larger. As H(f) is linear in K, this is a half-space of kernels that holds all within
the bound, and not K: a cut. With g = A* B the cut is <g, K> <= c.

Every round cuts at some frequencies where the norm is too large, and moves to the
nearest point K0 - sum of x_j g_j, x_j >= 0, of the intersection of all cuts so far. As
that holds every kernel within the bound, none of them is nearer; scaled down to the
bound, K is one of them. A round takes a decomposition at as many frequencies as it
cuts; `nearest` takes one for all of them, and more rounds, but comes as close as it is
asked to. A kernel that training has moved needs few cuts: as many as there are local
maxima of the norm above c, not as there are kernels' dimensions.

Nothing here is certified.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .._arrays.array import Array, is_host, to_complex
from .._layer.stencil import Stencil
from .._maps.symbol import Taps, frequencies_of
from .._norm.small_matrices import SmallMatrices
from .blocks import TorusBlocks, torus_blocks
from .clip import soft_thresholded
from .top_triplets import concatenated, top_triplets

# Relative gap of the squared distances at which to stop: the kernel is then at most 5 %
# further away than the nearest. The most rounds, and cuts in each.
GAP, ROUNDS, CUTS = 0.1, 10, 32
# The largest side at which matrices are decomposed, one per lane of a vector.
BATCHED_SIDE = 128
# Relative excess of the norm that is less than what single precision tells apart.
NEGLIGIBLE = 2e-6
# Cuts may be nearly the same: this part of the largest diagonal entry is added to the
# matrix of their products. It is more than what single precision is off by there.
RIDGE = 1e-6
# Changes of the active set at most, and how many of them may leave as many wrong signs.
PIVOTS, PATIENCE = 500, 3


def nearly_nearest(weight: np.ndarray, torus: Stencil, c: float) -> np.ndarray:
    """A kernel with norms of about c at most, nearly the nearest to a real `weight`.

    `weight` itself if no norm seems to be above c.

    Parameters
    ----------
    weight : array
        Real, in double precision and near 1, with one group of channels.
    torus : Stencil
        With a grid.
    """
    blocks = torus_blocks(weight, torus)
    start = blocks.start.real
    kernel, cuts = start, _Cuts.none(blocks)
    points = frequencies_of(blocks.taps.pattern, torus.rows, real=True)
    for _ in range(ROUNDS):
        look = _look(blocks, kernel)
        largest = float(look.norms.max())
        if largest <= c * (1 + NEGLIGIBLE):
            break
        if cuts.count:
            scaled = kernel * (c / largest) - start
            attained = float(np.vdot(scaled, scaled)) / 2
            if attained - cuts.distance <= GAP * attained:
                break
        where = _to_cut(look.norms, c, points.representative)
        parts = look.parts(c, where)
        cuts = cuts.active().with_new(blocks, kernel, c, where, parts).solved()
        kernel = start - cuts.change(blocks)
    if not cuts.count:
        return weight
    return blocks.kernel(to_complex(kernel), weight)


def can_cut(weight: np.ndarray, torus: Stencil) -> bool:
    """Whether `nearly_nearest` is for such kernels."""
    return is_host(weight) and weight.dtype.kind == "f" and torus.groups == 1


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """The norm at every frequency, about, and what soft-thresholding takes off there.

    `parts` is a function from c and some frequencies to (frequencies, out, columns).
    """

    norms: np.ndarray
    parts: Callable[[float, np.ndarray], np.ndarray]


def _look(blocks: TorusBlocks, kernel: np.ndarray) -> _Look:
    single = kernel.astype(np.complex64)
    if min(blocks.shape) <= BATCHED_SIDE:
        taps = replace(blocks.taps, weight=to_complex(kernel))
        norms = SmallMatrices(taps, blocks.phase).estimates()[:, 0]
        return _Look(norms, partial(soft_thresholded, blocks, single))
    found = concatenated(
        [top_triplets(blocks.of(single, part)[:, 0]) for part in blocks.parts()]
    )
    return _Look(found.s[:, 0], found.soft_thresholded)


def _to_cut(norms: np.ndarray, c: float, grid: np.ndarray) -> np.ndarray:
    """The frequencies of the largest local maxima, and then of the largest norms.

    `grid` has the number of the frequency that stands for each point of the torus.
    """
    around = values = norms[grid]
    for axis in range(grid.ndim):
        sides = [np.roll(around, shift, axis) for shift in (-1, 1)]
        around = np.maximum.reduce([around, *sides])
    is_top = np.zeros(len(norms), dtype=bool)
    is_top[grid[values >= around]] = True
    order = np.lexsort((-norms, ~is_top))
    return np.sort(order[norms[order] > c][:CUTS])


@dataclass(frozen=True, slots=True, eq=False)
class _Cuts:
    """Half-spaces <g_j, K> <= c, and the nearest point of their intersection.

    Attributes
    ----------
    parts : array, shape (cuts, out, columns)
        The matrices B, with nuclear norm 1.
    phase : array, shape (cuts, taps)
        Phase factors of their frequencies: g_j is the real part of phase* B.
    gram : array, shape (cuts, cuts)
        The inner products <g_j, g_k>.
    excess : array, shape (cuts,)
        <g_j, K0> - c.
    x : array, shape (cuts,)
        The nearest point is K0 - sum of x_j g_j.
    """

    parts: np.ndarray
    phase: np.ndarray
    gram: np.ndarray
    excess: np.ndarray
    x: np.ndarray

    @classmethod
    def none(cls, blocks: TorusBlocks) -> "_Cuts":
        parts = np.zeros((0, *blocks.shape), np.complex64)
        return cls(parts, blocks.phase[:0], np.zeros((0, 0)), np.zeros(0), np.zeros(0))

    @property
    def count(self) -> int:
        return len(self.x)

    @property
    def distance(self) -> float:
        """No kernel within the bound has |K - K0|^2 / 2 below this."""
        return float(self.x @ self.excess - self.x @ self.gram @ self.x / 2)

    def active(self) -> "_Cuts":
        """Those cuts on which the nearest point lies."""
        own = np.flatnonzero(self.x > 0)
        gram = self.gram[np.ix_(own, own)]
        return _Cuts(
            self.parts[own], self.phase[own], gram, self.excess[own], self.x[own]
        )

    def with_new(
        self,
        blocks: TorusBlocks,
        kernel: np.ndarray,
        c: float,
        where: np.ndarray,
        parts: np.ndarray,
    ) -> "_Cuts":
        """With the cuts of `kernel`, the nearest point so far, at frequencies `where`.

        There soft-thresholding takes off these `parts`.
        """
        phase = blocks.phase[where]
        squares = np.sum(np.abs(parts) ** 2, axis=(1, 2), dtype=np.float64)
        inner = _gains(parts, phase, kernel, blocks)
        # Re <U max(S - c, 0) V^H, U S V^H> is the square plus c times the nuclear norm.
        nuclear = (inner - squares) / c
        own = nuclear > 0
        parts, phase = parts[own] / nuclear[own, None, None], phase[own]
        parts = np.concatenate([self.parts, parts.astype(self.parts.dtype)])
        phase = np.concatenate([self.phase, phase])
        x = np.concatenate([self.x, np.zeros(np.count_nonzero(own))])
        rows = _products(parts, phase, self.count, blocks.taps)
        gram = np.block([[self.gram, rows[:, : self.count].T], [rows]])
        excess = inner[own] / nuclear[own] - c + rows @ x
        excess = np.concatenate([self.excess, excess])
        return _Cuts(parts, phase, gram, excess, x)

    def solved(self) -> "_Cuts":
        return replace(self, x=nonnegative_minimum(self.gram, self.excess, self.x))

    def change(self, blocks: TorusBlocks) -> np.ndarray:
        """The sum of x_j g_j."""
        own = np.flatnonzero(self.x > 0)
        return _folded(self.parts[own], self.phase[own] * self.x[own, None], blocks)


def _components(parts: Array, taps: Taps) -> list[Array]:
    """The columns of each polyphase component, flat: (cuts, out * in)."""
    n = taps.channel_shape[2]
    return [
        parts[:, :, n * i : n * (i + 1)].reshape(len(parts), -1)
        for i in range(len(taps.phases))
    ]


def _folded(parts: Array, phase: Array, blocks: TorusBlocks) -> np.ndarray:
    """The real part of the sum of phase* parts: (taps, out * in)."""
    by_tap = []
    for own, part in zip(blocks.taps.phases, _components(parts, blocks.taps)):
        cos, sin = phase[:, own].real.T, phase[:, own].imag.T
        by_tap.append(cos @ part.real + sin @ part.imag)
    return np.concatenate(by_tap)


def _gains(
    parts: Array, phase: Array, kernel: np.ndarray, blocks: TorusBlocks
) -> np.ndarray:
    """Re <part, H(f)> for each part."""
    found = np.zeros(len(parts))
    for own, part in zip(blocks.taps.phases, _components(parts, blocks.taps)):
        cos, sin = phase[:, own].real, phase[:, own].imag
        found += np.sum(part.real * (cos @ kernel[own]), axis=1)
        found += np.sum(part.imag * (sin @ kernel[own]), axis=1)
    return found


def _products(parts: Array, phase: Array, first: int, taps: Taps) -> np.ndarray:
    """The inner products of the kernels Re phase* parts, from the `first` on, with all.

    Those of real parts a, b of complex numbers: 2 Re a Re b = Re (a b* + a b).
    """
    found = np.zeros((len(parts) - first, len(parts)))
    for own, part in zip(taps.phases, _components(parts, taps)):
        p, new = phase[:, own], slice(first, None)
        found += np.real((part[new] @ part.conj().T) * (p[new].conj() @ p.T))
        found += np.real((part[new] @ part.T) * (p[new].conj() @ p.conj().T))
    return found / 2


def nonnegative_minimum(gram: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The least <x, gram x> / 2 - <b, x> with x >= 0, from a first guess.

    Block principal pivoting: all signs that are wrong are turned at once. If that does
    not leave fewer of them, then one by one, which comes to an end (Murty's rule).
    """
    gram = gram + RIDGE * gram.diagonal().max() * np.eye(len(b))
    active, fewest, patience = x > 0, len(b) + 1, PATIENCE
    for _ in range(PIVOTS):
        x = np.zeros(len(b))
        x[active] = np.linalg.solve(gram[np.ix_(active, active)], b[active])
        slack = gram @ x - b
        wrong = np.where(active, x < 0, slack < -RIDGE * np.abs(b).max())
        count = np.count_nonzero(wrong)
        if not count:
            break
        patience = PATIENCE if count < fewest else patience - 1
        fewest = min(fewest, count)
        active = active ^ wrong
        if patience < 0:
            active = active ^ wrong
            active[np.flatnonzero(wrong)[-1]] ^= True
    return np.maximum(x, 0.0)
