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
from functools import partial

import numpy as np

from ._array import Array, adjoint, eigh, like, namespace
from ._grams import Grams, GramSource, LaneGrams
from ._iterate import top_pair
from ._symbol import Taps, chunks, frequencies_of, phase_like, symbol

TIGHT = 1e-9  # as close as ends are brought where that costs nothing
FEW = 4096  # frequencies that are simply all looked at
BOXES = 4  # that a search begins with, about, per axis, degree and number of axes
LOOSE = 0.05  # how well the supremum must be known before boxes of a grid are searched
FIRST_DELTA = 0.4  # of the boxes that a search begins with
TURN = 2**40  # parts of a turn on the continuous torus
SMALL = 64  # the side of matrices that are decomposed in next to no time
LARGE = 256  # the side from which on vectors come by Lanczos
NEAR, INVERSE_STEPS = 1e-3, 6
FIRST = 16  # frequencies that set a level for the others,
FIRST_STEPS = 2**19  # and more if they are small
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
        points = frequencies_of(taps.pattern, tuple(map(int, parts)), real=real).points
        boxes = np.concatenate([points, np.ones_like(points)], axis=1)
        if min(taps.block[1], taps.columns) <= SMALL:
            rtol = min(rtol, TIGHT)  # which costs nothing
        return _Search(taps, parts, boxes, rtol).run()
    ceiling = norm_on_any_torus(taps, real=real, rtol=max(LOOSE, rtol)).upper
    boxes = _first_boxes(taps, parts, real=real)
    return _Search(taps, parts, boxes, rtol, ceiling).run()


def norm_on_any_torus(taps: Taps, *, real: bool, rtol: float) -> Peak:
    """The supremum of the norm over all the frequencies there are."""
    # Where all shifts are multiples of one number, a wave that much slower will do.
    common = np.maximum(np.gcd.reduce(taps.shifts, axis=0), 1)
    slow = replace(taps.pattern, shifts=taps.shifts // common)
    near = replace(taps, pattern=slow)
    parts = np.where(near.degree > 0, TURN, 1)
    boxes = _first_boxes(near, parts, real=real)
    peak = _Search(near, parts, boxes, rtol).run()
    return replace(peak, turns=peak.turns / common)


class _Search:
    """A branch and bound over boxes of frequencies: rows of lows, then sizes."""

    def __init__(
        self,
        taps: Taps,
        parts: np.ndarray,
        boxes: np.ndarray,
        rtol: float,
        ceiling: float = math.nan,
    ) -> None:
        xp = namespace(taps.weight)
        self.taps, self.parts, self.boxes, self.ceiling = taps, parts, boxes, ceiling
        self.groups, out, _ = taps.block
        self.grams = GramSource(
            taps,
            frequencies=len(boxes),
            distinct=bool(np.all(taps.degree < parts)),
        )
        side, other = self.grams.side, self.grams.other
        # What phases, sums over taps and columns and the factorization may lose by
        # rounding, relative to the norm and to the sum of the sizes of the taps.
        terms = side + other + len(taps.shifts) + 20
        self.relative = 8 * UNIT * terms * side + self.grams.lost(UNIT)
        sums = xp.sum(xp.abs(taps.weight), axis=0)
        self.absolute = 8 * UNIT * terms * math.sqrt(float(xp.sum(sums * sums)))
        self.slack = max(0.75 * rtol, 4 * self.relative)
        self.lower, self.level = 0.0, max(self.absolute, self.grams.floor)
        nothing = [like(self.taps.weight, np.zeros(n)) for n in (out, taps.columns)]
        self.witness = (np.zeros_like(parts), 0, *nothing)

    def run(self) -> Peak:
        boxes = self.boxes
        while len(boxes) and self.level:
            parts = self._growing(chunks(self.taps, len(boxes)))
            rejected = np.concatenate([self._reject(boxes[part]) for part in parts])
            if not len(rejected):
                break
            boxes = _split(rejected, self.taps, self.parts)
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

    def _growing(self, parts: list[slice]) -> list[slice]:
        """Begin with a few: against the level that they set, most others are below."""
        first, few = parts[0].stop, FIRST + FIRST_STEPS // self.grams.side**3
        if first <= few:
            return parts
        return [slice(0, few), slice(few, first), *parts[1:]]

    def _reject(self, boxes: np.ndarray) -> np.ndarray:
        """Raise the level to the centers; return the boxes that may be above it."""
        low, size = np.split(boxes, 2, axis=1)
        centers = (low + size // 2) % self.parts
        grams = self.grams.at(centers, self.parts)
        # Each group of each box is looked at for itself.
        delta = np.repeat(_deltas(boxes, self.taps, self.parts), self.groups)
        pending = np.arange(len(delta))
        if not self.lower:
            loudest, gain = grams.loudest(pending)
            if gain > 2 * self.level:  # then there is no need to ask
                self._rise(centers, loudest, gain)
        while True:
            limits = self._thresholds(delta[pending])
            pending = pending[~self._below(grams, pending, limits)]
            wide = pending[delta[pending] > 0]
            quiet = wide[self._below(grams, wide, np.full(len(wide), self.level))]
            loud = np.setdiff1d(pending, quiet) if len(quiet) else pending
            if not len(loud):
                return boxes[np.unique(pending // self.groups)]
            self._rise(centers, *grams.loudest(loud))

    def _rise(self, centers: np.ndarray, loudest: int, gain: float) -> None:
        """Raise both ends to the norm of one matrix, which is about `gain`."""
        number, group = divmod(loudest, self.groups)
        center = centers[number : number + 1]
        matrix = symbol(self.taps, phase_like(self.taps, center, self.parts))
        matrix = matrix[0, group, ...]
        gain = max(gain, self.level)  # which it was not certified to be below
        left, right, norm = _top_vectors(matrix, gain, rtol=self.slack / 8)
        if norm <= self.lower:
            left, right, norm = _top_vectors(matrix, gain, rtol=0.0)
        if norm <= self.lower:
            raise ArithmeticError(NO_PROGRESS)
        self.lower = norm
        self.level = max(self.level, self.lower * (1 + self.slack))
        self.witness = (center[0], group, left, right)

    def _thresholds(self, delta: np.ndarray) -> np.ndarray:
        """How small the norm at the center must be, for all of the box to be below."""
        if math.isnan(self.ceiling):
            return self.level * np.cos(delta)
        if self.level >= self.ceiling:
            return np.full_like(delta, np.inf)
        angle = np.arccos(self.level / self.ceiling) + delta
        near = self.ceiling * np.cos(np.minimum(angle, np.pi / 2))
        return np.where(delta > 0, near, self.level)

    def _below(
        self, grams: LaneGrams | Grams, which: np.ndarray, limit: np.ndarray
    ) -> np.ndarray:
        """Whether the norms of the matrices `which` are certainly below `limit`."""
        found = np.isinf(limit)
        finite = np.flatnonzero(~found & (limit >= self.grams.floor))
        if len(finite):
            found[finite] = grams.below(which[finite], limit[finite] ** 2)
        return found


def _first_boxes(taps: Taps, parts: np.ndarray, *, real: bool) -> np.ndarray:
    """Boxes that hold all frequencies, or half of them if the layer is real."""
    size = parts.copy()
    if real:  # the other half of one axis has the conjugate matrices
        axis = int(np.argmax(size))
        size[axis] = size[axis] // 2 + 1
    boxes = np.concatenate([np.zeros_like(size), size])[None]
    while (wide := _deltas(boxes, taps, parts) > FIRST_DELTA).any():
        boxes = np.concatenate([boxes[~wide], _split(boxes[wide], taps, parts)])
    return boxes


def _deltas(boxes: np.ndarray, taps: Taps, parts: np.ndarray) -> np.ndarray:
    return np.pi * _widths(boxes, taps, parts).sum(axis=1)


def _widths(boxes: np.ndarray, taps: Taps, parts: np.ndarray) -> np.ndarray:
    """What each axis contributes to delta, over pi."""
    radius = boxes[:, len(parts) :] // 2
    return taps.degree * radius / parts


def _split(boxes: np.ndarray, taps: Taps, parts: np.ndarray) -> np.ndarray:
    """Halve each box on the axis on which it is widest."""
    row, low = np.arange(len(boxes)), np.argmax(_widths(boxes, taps, parts), axis=1)
    size = low + len(parts)
    half = boxes[row, size] // 2
    first, second = boxes.copy(), boxes.copy()
    first[row, size] = half
    second[row, low] += half
    second[row, size] -= half
    return np.concatenate([first, second])


def _top_vectors(
    matrix: Array, gain: float, *, rtol: float
) -> tuple[Array, Array, float]:
    """Unit left and right top singular vectors of a matrix, and its gain on them.

    To `rtol` for large ones, with `gain` an estimate from below that helps; exactly if
    `rtol` is 0.
    """
    xp = namespace(matrix)
    wide = matrix.shape[0] <= matrix.shape[1]
    tall = adjoint(matrix) if wide else matrix
    gram, side = xp.matmul(adjoint(tall), tall), tall.shape[1]
    start = like(tall, np.random.default_rng(0).standard_normal((side, 1)))
    if not rtol or side <= SMALL:
        vector = eigh(gram)[1][:, -1:]
    elif side <= LARGE:
        # By inverse iteration, from a little above where the estimate is.
        shifted = gram - like(gram, np.eye(side)) * (gain * gain * (1 + NEAR))
        inverse, vector = xp.linalg.inv(shifted), start
        for _ in range(INVERSE_STEPS):
            vector = xp.matmul(inverse, vector)
            vector = vector / xp.linalg.vector_norm(vector)
    else:
        apply, back = partial(xp.matmul, tall), partial(xp.matmul, adjoint(tall))
        vector = top_pair(apply, back, start, rtol=rtol).x
    other = xp.matmul(tall, vector)
    size, gain = (float(xp.linalg.vector_norm(x)) for x in (vector, other))
    vector, other = vector / size, other / (gain or 1.0)
    left, right = (vector, other) if wide else (other, vector)
    return left[:, 0], right[:, 0], gain / size
