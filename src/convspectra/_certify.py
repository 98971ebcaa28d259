"""The norm of a layer on a torus, certified at both ends without a full SVD.

The largest norm of the matrices H(f) of all frequencies is searched over boxes of
frequencies. What settles a whole box at once: for a fixed unit vector x, |H(f) x|^2 is
a trigonometric polynomial, non-negative and at most U^2, so by the inequality of
Bernstein and Szego arccos(|H(f) x| / U) changes by at most

    delta = sum over the axes of degree * distance / 2        (angles in radians)

on the way from the center c of a box to any point of it. With U the supremum over all
frequencies, |H| cannot attain it in a box where |H(c)| is below U cos(delta). On a grid
the largest norm M is less than the supremum, but some point of the grid is only half a
step away from where that is attained: U cos(e) <= M, with e the delta of half a step.
So M is not in a box where |H(c)| is below M cos(e + delta) / cos(e). (Axes with few
points are not searched: for each of their points the same holds for the others.)

Whether |H(c)| is below t is decided by one factorization: t^2 - H(c) H(c)^H has a
Cholesky factor if and only if it is. Small matrices are not asked: their values are
there in less time, in single precision first, and in double where that leaves a doubt.

Taps come in double precision and near 1 in size, as `normalized` makes them.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from ._array import Array, adjoint, eigh, is_host, like, namespace, to_numpy
from ._first_look import first_look
from ._grams import Grams, GramSource
from ._symbol import Taps, frequencies_of, phase_like, symbol
from ._values import values_at

TIGHT = 1e-9  # as close as ends are brought where that costs nothing
ROUGH = 1e-3  # what is asked for no closer than this is not brought closer
FEW = 4096  # frequencies that are simply all looked at
BOXES = 10  # that a search begins with, about, per axis, degree and number of axes
COARSE = 4  # steps per degree at most of an axis whose points are looked at one by one
FIRST_DELTA = 0.4  # of the boxes that a search begins with
TURN = 2**40  # parts of a turn on the continuous torus
DECOMPOSED = 64  # the side of matrices whose values take less than their certificates
SMALL = 40  # the side of matrices that are decomposed in next to no time
NEAR = 1e-2  # how far from an eigenvalue a matrix is inverted
POWERS = 24  # of the inverse
CLEARLY = 1e-5  # by which an estimate in single precision is above
FIRST = 16  # frequencies, and more if there are many, that set a level for the others
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
        if is_host(taps.weight) and min(taps.block[1], taps.columns) <= DECOMPOSED:
            return _by_values(taps, points, parts)
        boxes = np.concatenate([points, np.ones_like(points)], axis=1)
        return _Search(taps, parts, boxes, rtol if rtol >= ROUGH else TIGHT).run()
    half_step = np.pi / 2 * float(np.sum(taps.degree / parts, where=_fine(taps, parts)))
    boxes = _first_boxes(taps, parts, real=real)
    return _Search(taps, parts, boxes, rtol, half_step).run()


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


def _by_values(taps: Taps, points: np.ndarray, parts: np.ndarray) -> Peak:
    """The largest value there is: by single precision, then of what may be largest."""
    for dtype in (np.complex64, np.complex128):
        relative, absolute = _rounding(taps, float(np.finfo(dtype).eps) / 2)
        rounded = replace(taps, weight=taps.weight.astype(dtype))
        tops = values_at(rounded, points, parts)[..., 0].astype(np.float64)
        top = float(tops.max())
        least = (top - absolute) * (1 - relative)
        loud = np.any((tops + absolute) * (1 + relative) >= least, axis=1)
        points, tops = points[loud], tops[loud]
    number, group = np.unravel_index(np.argmax(tops), tops.shape)
    matrix = _matrix(taps, points[number], int(group), parts)
    left, right, norm = _top_vectors(matrix, top, exact=True)
    return Peak(
        lower=max(norm * (1 - relative) - absolute, 0.0),
        upper=top * (1 + relative) + absolute,
        turns=points[number] / parts,
        group=int(group),
        left=left,
        right=right,
    )


class _Search:
    """A branch and bound over boxes of frequencies: rows of lows, then sizes."""

    def __init__(
        self,
        taps: Taps,
        parts: np.ndarray,
        boxes: np.ndarray,
        rtol: float,
        half_step: float = 0.0,
    ) -> None:
        self.taps, self.parts, self.boxes = taps, parts, boxes
        self.half_step = half_step
        self.groups, out, _ = taps.block
        self.grams = GramSource(taps)
        self.first_look = first_look(self.grams, taps, len(boxes))
        self.relative, self.absolute = _rounding(taps, UNIT)
        self.slack = max(0.75 * rtol, 4 * self.relative)
        self.lower, self.level = 0.0, self.absolute
        nothing = [like(self.taps.weight, np.zeros(n)) for n in (out, taps.columns)]
        self.witness = (np.zeros_like(parts), 0, *nothing)

    def run(self) -> Peak:
        boxes = self.boxes
        while len(boxes) and self.level:
            parts = self.grams.chunks(len(boxes))
            rejected = np.concatenate([self._reject(boxes[part]) for part in parts])
            if not len(rejected):
                break
            boxes = _in_order(_split(rejected, self.taps, self.parts))
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

    def _reject(self, boxes: np.ndarray) -> np.ndarray:
        """Raise the level to the centers; return the boxes that may be above it."""
        low, size = np.split(boxes, 2, axis=1)
        centers = (low + size // 2) % self.parts
        grams = Grams(self.grams, self.first_look, centers, self.parts)
        # Each group of each box is looked at for itself.
        delta = np.repeat(_deltas(boxes, self.taps, self.parts), self.groups)
        above = self._above(grams, centers, np.arange(len(delta)), delta)
        points, wide = above[delta[above] == 0], above[delta[above] > 0]
        while len(points):  # the level has to reach them
            self._rise(centers, *grams.loudest(points))
            points = self._above(grams, centers, points, delta)
        if len(wide):
            loudest, gain = grams.loudest(wide, exactly=True)
            if gain > self.level:
                self._rise(centers, loudest, gain)
        return boxes[np.unique(wide // self.groups)]

    def _above(
        self, grams: Grams, centers: np.ndarray, which: np.ndarray, delta: np.ndarray
    ) -> np.ndarray:
        """Those of `which` that may be above the level, which rises on the way."""
        if not self.lower:
            # Against the level that a few set most others are below: of n in any order,
            # n / few are above the largest of the few.
            self._rise_above(
                grams, centers, which[: FIRST + 2 * math.isqrt(len(which))]
            )
        which = which[~grams.seem_below(which, self._squares(delta[which]))]
        while len(which) and self._rise_above(grams, centers, which):
            which = which[~grams.seem_below(which, self._squares(delta[which]))]
        return which[~grams.are_below(which, self._squares(delta[which]))]

    def _rise_above(self, grams: Grams, centers: np.ndarray, which: np.ndarray) -> bool:
        """Rise to the loudest of `which` if it is clearly above the level."""
        loudest, gain = grams.loudest(which)
        above = gain > self.level * (1 + CLEARLY)
        if above:
            self._rise(centers, loudest, gain)
        return above

    def _rise(self, centers: np.ndarray, loudest: int, gain: float) -> None:
        """Raise both ends to the norm of one matrix, which is about `gain`."""
        number, group = divmod(loudest, self.groups)
        matrix = _matrix(self.taps, centers[number], group, self.parts)
        gain = max(gain, self.level)  # which it was not certified to be below
        left, right, norm = _top_vectors(matrix, gain, exact=False)
        if norm <= self.lower:
            left, right, norm = _top_vectors(matrix, gain, exact=True)
        if norm <= self.lower:
            raise ArithmeticError(NO_PROGRESS)
        self.lower = norm
        self.level = max(self.level, self.lower * (1 + self.slack))
        vectors = [like(self.taps.weight, x) for x in (left, right)]
        self.witness = (centers[number], group, *vectors)

    def _squares(self, delta: np.ndarray) -> np.ndarray:
        """How small the norm at the center must be, for all of the box to be below.

        Squared; 0 where that does not help.
        """
        angle = self.half_step + delta
        least = np.where(angle < np.pi / 2, np.cos(angle), 0) / math.cos(self.half_step)
        return (self.level * np.where(delta > 0, least, 1.0)) ** 2


def _rounding(taps: Taps, unit: float) -> tuple[float, float]:
    """What phases, sums and decompositions may lose when numbers are rounded to `unit`.

    The first is relative to the norm; the second comes from the sizes of the taps.
    """
    xp = namespace(taps.weight)
    side, other = sorted((taps.block[1], taps.columns))
    terms = side + other + len(taps.shifts) + 20
    sums = xp.sum(xp.abs(taps.weight), axis=0)
    size = math.sqrt(float(xp.sum(sums * sums)))
    return 8 * unit * terms * side, 8 * unit * terms * size


def _matrix(
    taps: Taps, frequency: np.ndarray, group: int, parts: np.ndarray
) -> np.ndarray:
    """The matrix of one group at one frequency."""
    found = symbol(taps, phase_like(taps, frequency[None], parts))
    return to_numpy(found[0, group, ...])


def _fine(taps: Taps, parts: np.ndarray) -> np.ndarray:
    """On which axes a wave has many steps of the grid; on others each is a box."""
    return COARSE * taps.degree < parts


def _first_boxes(taps: Taps, parts: np.ndarray, *, real: bool) -> np.ndarray:
    """Boxes that hold all frequencies, or half of them if the layer is real."""
    size = parts.copy()
    if real:  # the other half of one axis has the conjugate matrices
        axis = int(np.argmax(size))
        size[axis] = size[axis] // 2 + 1
    steps = np.where(_fine(taps, parts), size, 1)
    low = np.indices(tuple(size // steps)).reshape(len(size), -1).T * steps
    boxes = np.concatenate([low, np.broadcast_to(steps, low.shape)], axis=1)
    while (wide := _deltas(boxes, taps, parts) > FIRST_DELTA).any():
        boxes = np.concatenate([boxes[~wide], _split(boxes[wide], taps, parts)])
    return _in_order(boxes)


def _in_order(boxes: np.ndarray) -> np.ndarray:
    """Boxes row by row: the symbols of neighbors on the first axis share much work."""
    middle = boxes[:, 0] + boxes[:, boxes.shape[1] // 2] // 2
    return boxes[np.argsort(middle, kind="stable")]


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
    matrix: np.ndarray, gain: float, *, exact: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """Unit left and right top singular vectors of a matrix, and its gain on them.

    If not exact they may be those of another large value than the largest; `gain` says
    from below what that is about.
    """
    wide = matrix.shape[0] <= matrix.shape[1]
    tall = adjoint(matrix) if wide else matrix
    if exact or tall.shape[1] <= SMALL:
        vector = eigh(adjoint(tall) @ tall)[1][:, -1]
    else:
        vector = _eigenvector_near(tall, gain * gain * (1 + NEAR))
    other = tall @ vector
    size, gain = float(np.linalg.norm(vector)), float(np.linalg.norm(other))
    vector, other = vector / size, other / (gain or 1.0)
    left, right = (vector, other) if wide else (other, vector)
    return left, right, gain / size


def _eigenvector_near(tall: np.ndarray, shift: float) -> np.ndarray:
    """The eigenvector of tall^H tall whose eigenvalue is next to `shift`.

    By powers of an inverse. Single precision will do: the square of what is wrong with
    a vector is wrong with its eigenvalue.
    """
    rough = tall.astype(np.complex64)
    gram = adjoint(rough) @ rough
    side = len(gram)
    inverse = np.linalg.inv(np.float32(shift) * np.eye(side, dtype="f") - gram)
    vector = np.random.default_rng(0).standard_normal(side).astype(np.complex64)
    for _ in range(POWERS):
        vector = inverse @ vector
        vector /= np.linalg.norm(vector)
    return vector.astype(tall.dtype)
