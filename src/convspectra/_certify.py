"""The norm of a layer on a torus, certified at both ends without a full SVD.

The largest norm of the matrices H(f) of all frequencies is searched over boxes of
frequencies. What settles a whole box at once: for a fixed unit vector x, |H(f) x|^2 is
a trigonometric polynomial, non-negative and at most U^2, so by the inequality of
Bernstein and Szego arccos(|H(f) x| / U) changes by at most

    delta = sum over the axes of degree * distance / 2        (angles in radians)

on the way from the center c of a box to any point of it. Hence |H| stays below a level
in the whole box if |H(c)| is below U cos(arccos(level / U) + delta). For the supremum
over all frequencies U may be the level itself. And whether |H(c)| is below t is decided
by one factorization: t^2 - H(c) H(c)^H has a Cholesky factor if and only if it is.

Taps come in double precision and near 1 in size, as `normalized` makes them.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from ._array import (
    Array,
    adjoint,
    are_definite,
    indices_like,
    like,
    namespace,
    to_numpy,
)
from ._symbol import Taps, chunks, phase_like, symbol

TIGHT = 1e-9  # as close as ends are brought where that costs nothing
FEW = 2048  # frequencies that are simply all looked at
BOXES = 4  # that a search begins with, about, per axis, degree and number of axes
LOOSE = 0.05  # how well the supremum must be known before boxes of a grid are searched
FIRST_DELTA = 0.4  # of the boxes that a search begins with
TURN = 2**40  # parts of a turn on the continuous torus
POWER_STEPS = 6
NO_PROGRESS = (
    "The eigenvalue and the Cholesky factor of a matrix must agree, and do not: LAPACK "
    "has failed. Please report the kernel that does this."
)
UNIT = float(np.finfo(np.float64).eps) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Peak:
    """Where a symbol is largest, and between which ends its norm there lies."""

    lower: float
    upper: float
    turns: np.ndarray  # (axes,) the frequency, in turns per row
    group: int
    left: Array  # (out,), a unit vector: H right = norm * left
    right: Array  # (columns,), a unit vector


def norm_on_torus(
    taps: Taps, rows: tuple[int, ...], *, real: bool, rtol: float
) -> Peak:
    """The largest norm over the frequencies of a grid with these rows."""
    parts = np.where(taps.degree > 0, rows, 1)
    boxes = math.prod(max(1, BOXES * len(parts) * int(d)) for d in taps.degree)
    if math.prod(map(int, parts)) <= max(FEW, boxes):
        # A factorization costs the same at any level: take the tightest.
        return _Search(taps, parts, min(rtol, TIGHT)).run(real=real, delta=0.0)
    ceiling = norm_on_any_torus(taps, real=real, rtol=max(LOOSE, rtol)).upper
    return _Search(taps, parts, rtol, ceiling).run(real=real, delta=FIRST_DELTA)


def norm_on_any_torus(taps: Taps, *, real: bool, rtol: float) -> Peak:
    """The supremum of the norm over all the frequencies there are."""
    # Where all shifts are multiples of one number, a wave that much slower will do.
    common = np.maximum(np.gcd.reduce(taps.shifts, axis=0), 1)
    near = replace(taps, shifts=taps.shifts // common)
    parts = np.where(near.degree > 0, TURN, 1)
    peak = _Search(near, parts, rtol).run(real=real, delta=FIRST_DELTA)
    return replace(peak, turns=peak.turns / common)


class _Search:
    """A branch and bound over boxes of frequencies: rows of lows, then sizes."""

    def __init__(
        self, taps: Taps, parts: np.ndarray, rtol: float, ceiling: float = math.nan
    ) -> None:
        xp = namespace(taps.weight)
        self.taps, self.parts, self.ceiling = taps, parts, ceiling
        _, out, _ = taps.block
        self.side, other = sorted((out, taps.columns))
        # What phases, sums over taps and columns and the factorization may lose by
        # rounding, relative to the norm and to the sum of the sizes of the taps.
        terms = self.side + other + len(taps.shifts) + 20
        self.relative = 8 * UNIT * terms * self.side
        sums = xp.sum(xp.abs(taps.weight), axis=0)
        self.absolute = 8 * UNIT * terms * math.sqrt(float(xp.sum(sums * sums)))
        self.slack = max(0.75 * rtol, 4 * self.relative)
        self.lower, self.level = 0.0, self.absolute
        nothing = [like(self.taps.weight, np.zeros(n)) for n in (out, taps.columns)]
        self.witness = (np.zeros_like(parts), 0, *nothing)

    def run(self, *, real: bool, delta: float) -> Peak:
        boxes = self._first_boxes(real, delta)
        while len(boxes) and self.level:
            parts = chunks(self.taps, len(boxes))
            rejected = np.concatenate([self._reject(boxes[part]) for part in parts])
            boxes = self._split(rejected)
        upper = self.level * (1 + self.relative) + 2 * self.absolute
        lower = max(self.lower * (1 - self.relative) - self.absolute, 0.0)
        center, group, left, right = self.witness
        return Peak(
            lower=lower,
            upper=upper,
            turns=center / self.parts,
            group=group,
            left=left,
            right=right,
        )

    def _first_boxes(self, real: bool, delta: float) -> np.ndarray:
        size = self.parts.copy()
        if real:  # the other half of one axis has the conjugate matrices
            axis = int(np.argmax(size))
            size[axis] = size[axis] // 2 + 1
        boxes = np.concatenate([np.zeros_like(size), size])[None]
        while (wide := self._deltas(boxes) > delta).any():
            boxes = np.concatenate([boxes[~wide], self._split(boxes[wide])])
        return boxes

    def _deltas(self, boxes: np.ndarray) -> np.ndarray:
        return np.pi * self._widths(boxes).sum(axis=1)

    def _widths(self, boxes: np.ndarray) -> np.ndarray:
        """What each axis contributes to delta, over pi."""
        radius = boxes[:, len(self.parts) :] // 2
        return self.taps.degree * radius / self.parts

    def _split(self, boxes: np.ndarray) -> np.ndarray:
        """Halve each box on the axis on which it is widest."""
        row, low = np.arange(len(boxes)), np.argmax(self._widths(boxes), axis=1)
        size = low + len(self.parts)
        half = boxes[row, size] // 2
        first, second = boxes.copy(), boxes.copy()
        first[row, size] = half
        second[row, low] += half
        second[row, size] -= half
        return np.concatenate([first, second])

    def _reject(self, boxes: np.ndarray) -> np.ndarray:
        """Raise the level to the centers; return the boxes that may be above it."""
        low, size = np.split(boxes, 2, axis=1)
        centers = (low + size // 2) % self.parts
        matrices = symbol(self.taps, phase_like(self.taps, centers, self.parts))
        groups = matrices.shape[1]  # each group of each box is looked at for itself
        matrices = namespace(matrices).reshape(matrices, (-1, *matrices.shape[2:]))
        gram = self._gram(matrices)
        delta = np.repeat(self._deltas(boxes), groups)
        pending = np.arange(len(delta))
        while True:
            below = self._below(gram, pending, self._thresholds(delta[pending]))
            pending = pending[~below]
            wide = pending[delta[pending] > 0]
            quiet = wide[self._below(gram, wide, np.full(len(wide), self.level))]
            loud = np.setdiff1d(pending, quiet)
            if not len(loud):
                return boxes[np.unique(pending // groups)]
            which, left, right, norm = self._loudest(matrices, gram, loud)
            if norm <= self.lower:
                raise ArithmeticError(NO_PROGRESS)
            self.lower = norm
            self.level = max(self.level, self.lower * (1 + self.slack))
            self.witness = (centers[which // groups], which % groups, left, right)

    def _gram(self, matrices: Array) -> Array:
        xp = namespace(matrices)
        if matrices.shape[-2] <= matrices.shape[-1]:
            return xp.matmul(matrices, adjoint(matrices))
        return xp.matmul(adjoint(matrices), matrices)

    def _thresholds(self, delta: np.ndarray) -> np.ndarray:
        """How small the norm at the center must be, for all of the box to be below."""
        if math.isnan(self.ceiling):
            return self.level * np.cos(delta)
        if self.level >= self.ceiling:
            return np.full_like(delta, np.inf)
        angle = np.arccos(self.level / self.ceiling) + delta
        near = self.ceiling * np.cos(np.minimum(angle, np.pi / 2))
        return np.where(delta > 0, near, self.level)

    def _below(self, gram: Array, which: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Whether the norms of the matrices `which` are certainly below `limit`."""
        if not len(which) or np.isinf(limit).all():
            return np.ones(len(which), dtype=bool)
        xp = namespace(gram)
        squares = like(gram, limit**2)[:, None, None] * like(gram, np.eye(self.side))
        return are_definite(squares - xp.take(gram, indices_like(gram, which), axis=0))

    def _loudest(
        self, matrices: Array, gram: Array, loud: np.ndarray
    ) -> tuple[int, Array, Array, float]:
        """The matrix of `loud` that promises most, its top vectors and its norm."""
        xp = namespace(gram)
        gram = xp.take(gram, indices_like(gram, loud), axis=0)
        start = np.random.default_rng(0).standard_normal((len(loud), self.side, 1))
        v = like(gram, start)
        for _ in range(POWER_STEPS):
            v = xp.matmul(gram, v)
            v = v / xp.max(xp.abs(v), axis=(-2, -1), keepdims=True)
        gain = xp.matmul(adjoint(v), xp.matmul(gram, v)) / xp.matmul(adjoint(v), v)
        best = int(np.argmax(np.nan_to_num(to_numpy(xp.real(gain)))))
        _, vectors = xp.linalg.eigh(gram[best, ...])
        matrix = matrices[int(loud[best]), ...]
        return int(loud[best]), *_stretched(matrix, vectors[:, -1:])


def _stretched(matrix: Array, vector: Array) -> tuple[Array, Array, float]:
    """Unit left and right vectors and their gain, from a top one of the short side."""
    xp = namespace(matrix)
    wide = matrix.shape[0] <= matrix.shape[1]
    other = xp.matmul(adjoint(matrix) if wide else matrix, vector)
    norm = float(xp.linalg.vector_norm(other) / xp.linalg.vector_norm(vector))
    vector = vector / xp.linalg.vector_norm(vector)
    other = other / xp.linalg.vector_norm(other)
    left, right = (vector, other) if wide else (other, vector)
    return left[:, 0], right[:, 0], norm
