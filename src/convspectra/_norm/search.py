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
Cholesky factor if and only if it is. Where to set t, the largest of few small matrices
is found by their values, which are there in less time than estimates of their norms; a
factor for each of them decides.

Taps come in double precision and near 1 in size, as `normalized` makes them.
"""

import math
from dataclasses import replace

import numpy as np

from .._arrays.array import Array, adjoint, asarray_like
from .._arrays.linalg import eigh
from .._compiled.packed import Panels
from .._maps.symbol import Taps, common_steps, frequencies_of
from .._route import NormRoute
from .gram_certificate import Grams, GramSource
from .one_matrix import of_one_matrix
from .peak import NO_AGREEMENT, NO_PROGRESS, Peak, matrix_at, tight
from .rounding import UNIT_DOUBLE, of_symbol
from .screening import FirstLook
from .small_matrices import SmallMatrices

COARSE = 4  # steps per degree at most of an axis whose points are looked at one by one
FIRST_DELTA = 0.4  # of the boxes that a search begins with
TURN = 2**40  # parts of a turn on the continuous torus
CLOSE = 0.1  # the delta of boxes that are nearly points
CLEARLY = 1e-5  # by which an estimate in single precision is above
FIRST = 16  # frequencies, and more if there are many, that set a level for the others


def norm_on_torus(
    taps: Taps,
    rows: tuple[int, ...] | None,
    route: NormRoute,
    *,
    real: bool,
    rtol: float,
) -> Peak:
    """The largest norm over the frequencies of a grid with these rows.

    Without rows the supremum over all the frequencies there are.
    """
    if route.algorithm == "one matrix":
        return of_one_matrix(taps, rtol)
    slow, common = _slower(taps)
    shared = np.gcd(common, rows) if rows else np.ones_like(common)
    grid = rows // shared if rows else np.full_like(common, TURN)
    peak = _norm_on_torus(slow, grid, route, real=real, rtol=rtol)
    if (common == 1).all():
        return peak
    if rows is None:
        return replace(peak, turns=peak.turns / common)
    # Frequency f of the layer is number f * common / shared of the slower one.
    turns = [
        round(turn * (n // g)) * pow(int(c // g), -1, int(n // g)) % (n // g) / n
        for turn, n, c, g in zip(peak.turns, rows, common, shared)
    ]
    return replace(peak, turns=np.array(turns))


def _norm_on_torus(
    taps: Taps, rows: np.ndarray, route: NormRoute, *, real: bool, rtol: float
) -> Peak:
    grid_sizes = np.where(taps.degree > 0, rows, 1)
    if route.algorithm in ("search", "search by values"):
        boxes = _first_boxes(taps, grid_sizes, real=real)
        half_step = (
            np.pi / 2 * taps.degree / grid_sizes
        )  # nothing where all are searched
        half_step = float(
            np.sum(half_step, where=_fine(taps, grid_sizes) & (grid_sizes < TURN))
        )
        return _Search(taps, grid_sizes, boxes, route, rtol, half_step).run()
    points = frequencies_of(taps.pattern, tuple(map(int, grid_sizes)), real=real).points
    if route.algorithm == "values":
        return _by_values(taps, points, grid_sizes)
    boxes = np.concatenate([points, np.ones_like(points)], axis=1)
    return _Search(taps, grid_sizes, boxes, route, tight(rtol)).run()


def _slower(taps: Taps) -> tuple[Taps, np.ndarray]:
    """The same taps closer together, and by how much.

    Where all shifts are multiples of one number, a wave that much slower will do.
    """
    common = common_steps(taps.shifts)
    if (common == 1).all():
        return taps, common
    pattern = replace(taps.pattern, shifts=taps.shifts // common)
    return replace(taps, pattern=pattern), common


def _by_values(taps: Taps, points: np.ndarray, grid_sizes: np.ndarray) -> Peak:
    """The largest value there is, if a factor for each matrix says the same."""
    small = SmallMatrices(taps, points, grid_sizes)
    norms = small.norms()
    number, group = np.unravel_index(np.argmax(norms), norms.shape)
    matrix = matrix_at(taps, points[number], int(group), grid_sizes)
    left, right, norm = _top_vectors(matrix, exact=True)
    allowance = of_symbol(taps, UNIT_DOUBLE)
    level = allowance.threshold(norm, rtol=0.0)
    every = np.arange(len(points))
    if level and not small.are_below(every, np.full(len(every), level**2)).all():
        raise ArithmeticError(NO_AGREEMENT)
    return Peak(
        lower=allowance.lower(norm),
        upper=allowance.upper(level),
        turns=points[number] / grid_sizes,
        group=int(group),
        left=left,
        right=right,
    )


class _Search:
    """A branch and bound over boxes of frequencies: rows of lows, then sizes.

    Searching "by values" takes the norms at all centers from a decomposition. These set
    the level, and say what is below it; Cholesky factors decide whether that is so.
    """

    def __init__(
        self,
        taps: Taps,
        grid_sizes: np.ndarray,
        boxes: np.ndarray,
        route: NormRoute,
        rtol: float,
        half_step: float = 0.0,
    ) -> None:
        self.taps, self.grid_sizes, self.boxes = taps, grid_sizes, boxes
        self.half_step = half_step
        self.groups, out, _ = taps.channel_shape
        self.by_values = route.algorithm == "search by values"
        self.grams = GramSource(taps)
        self.first_look = FirstLook(self.grams) if route.is_screened else None
        self.rtol, self.allowance = rtol, of_symbol(taps, UNIT_DOUBLE)
        self.lower, self.level = 0.0, self.allowance.threshold(0.0, rtol)
        nothing = [
            asarray_like(self.taps.weight, np.zeros(n)) for n in (out, taps.columns)
        ]
        self.witness = (np.zeros_like(grid_sizes), 0, *nothing)

    def run(self) -> Peak:
        boxes = self.boxes
        while len(boxes) and self.level:
            grid_sizes = self.grams.chunks(len(boxes))
            rejected = np.concatenate(
                [self._reject(boxes[part]) for part in grid_sizes]
            )
            if not len(rejected):
                break
            boxes = _in_order(_split(rejected, self.taps, self.grid_sizes))
        center, group, left, right = self.witness
        return Peak(
            lower=self.allowance.lower(self.lower),
            upper=self.allowance.upper(self.level),
            turns=center / self.grid_sizes,
            group=group,
            left=left,
            right=right,
        )

    def _reject(self, boxes: np.ndarray) -> np.ndarray:
        """Raise the level to the centers; return the boxes that may be above it."""
        low, size = np.split(boxes, 2, axis=1)
        centers = (low + size // 2) % self.grid_sizes
        delta = _deltas(boxes, self.taps, self.grid_sizes)
        if self.by_values:
            below = self._below_by_values(centers, delta)
            return np.delete(boxes, below, axis=0)
        delta = np.repeat(delta, self.groups)  # each group is looked at for itself
        grams = Grams(self.grams, self.first_look, centers, self.grid_sizes)
        above = self._above(grams, centers, np.arange(len(delta)), delta)
        points, wide = above[delta[above] == 0], above[delta[above] > 0]
        while len(points):  # the level has to reach them
            self._rise(centers, _loudest(points, grams.estimates(points)))
            points = self._above(grams, centers, points, delta)
        # Where a center is above the level no box around it would ever be below.
        close = wide[delta[wide] < CLOSE]
        high = self._above(grams, centers, close, np.zeros_like(delta))
        if len(high):
            self._rise(centers, _loudest(high, grams.estimates(high, exactly=True)))
        return boxes[np.unique(wide // self.groups)]

    def _below_by_values(self, centers: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """Which boxes are below the level, after it has risen to the largest value.

        None is for what its values say: that is certified, one by one.
        """
        small = SmallMatrices(self.taps, centers, self.grid_sizes)
        norms = small.norms()
        self._rise_to(centers, int(np.argmax(norms)), exact=True)
        squares = self._squares(delta)
        claimed = np.flatnonzero((delta == 0) | ~(norms.max(axis=1) > np.sqrt(squares)))
        certain = small.are_below(claimed, squares[claimed])
        refused = claimed[~certain]
        # What is refused in spite of its values is below the level all the same, if the
        # difference between the two is a rounding error.
        level = np.full(len(refused), self.level**2)
        if len(refused) and not small.are_below(refused, level).all():
            raise ArithmeticError(NO_AGREEMENT)
        return claimed[certain]

    def _above(
        self, grams: Grams, centers: np.ndarray, which: np.ndarray, delta: np.ndarray
    ) -> np.ndarray:
        """Those of `which` that may be above the level, which rises on the way."""
        if not len(which):
            return which
        if not self.lower:
            # Most others are below the level that a few set: of n in any order, n / few
            # are above the largest of the few.
            few = which[:: -(-len(which) // (FIRST + 2 * math.isqrt(len(which))))]
            self._try_to_rise(centers, few, grams.estimates(few))
        if self.first_look is None:
            return which[~grams.below(which, self._squares(delta[which]))]
        while True:
            squares = self._squares(delta[which])
            which = which[~grams.below_at_first_look(which, squares)]
            if not len(which):
                return which
            gains = grams.estimates(which)
            if not self._try_to_rise(centers, which, gains):
                break
        squares = self._squares(delta[which])
        # Boxes that are clearly not below what is asked of them need no exact look.
        clear = (delta[which] > 0) & (gains > (1 + CLEARLY) * np.sqrt(squares))
        below = np.zeros(len(which), dtype=bool)
        below[~clear] = grams.below(which[~clear], squares[~clear])
        return which[~below]

    def _try_to_rise(
        self, centers: np.ndarray, which: np.ndarray, gains: np.ndarray
    ) -> bool:
        """Rise to the loudest of `which`, if it clearly seems to be above the level.

        That may be wrong, if frequencies that are not on the grid are much louder.
        """
        if gains.max() <= self.level * (1 + CLEARLY):
            return False
        before = self.lower
        self._rise_to(centers, _loudest(which, gains), exact=False)
        return self.lower > before

    def _rise(self, centers: np.ndarray, loudest: int) -> None:
        """Rise to one matrix, whose norm is certainly above the level."""
        before = self.lower
        self._rise_to(centers, loudest, exact=False)
        if not self.lower > before:
            self._rise_to(centers, loudest, exact=True)
        if not self.lower > before:
            raise ArithmeticError(NO_PROGRESS)

    def _rise_to(self, centers: np.ndarray, loudest: int, *, exact: bool) -> None:
        """Raise both ends to the norm of one matrix, if that is more."""
        number, group = divmod(loudest, self.groups)
        matrix = matrix_at(self.taps, centers[number], group, self.grid_sizes)
        left, right, norm = _top_vectors(matrix, exact=exact)
        if norm > self.lower:
            self.lower = norm
            self.level = max(self.level, self.allowance.threshold(norm, self.rtol))
            vectors = [asarray_like(self.taps.weight, x) for x in (left, right)]
            self.witness = (centers[number], group, *vectors)

    def _squares(self, delta: np.ndarray) -> np.ndarray:
        """How small the norm at the center must be, for all of the box to be below.

        Squared; 0 where that does not help.
        """
        angle = self.half_step + delta
        least = self.allowance.box_threshold(
            self.level, angle, self.half_step, len(self.grid_sizes)
        )
        return np.where(delta > 0, least, self.level) ** 2


def _loudest(which: np.ndarray, gains: np.ndarray) -> int:
    return int(which[np.argmax(gains)])


def _fine(taps: Taps, grid_sizes: np.ndarray) -> np.ndarray:
    """On which axes a wave has many steps of the grid; on others each is a box."""
    return COARSE * taps.degree < grid_sizes


def _first_boxes(taps: Taps, grid_sizes: np.ndarray, *, real: bool) -> np.ndarray:
    """Boxes that hold all frequencies, or half of them if the layer is real."""
    size = grid_sizes.copy()
    if real:  # the other half of one axis has the conjugate matrices
        axis = int(np.argmax(size))
        size[axis] = size[axis] // 2 + 1
    steps = np.where(_fine(taps, grid_sizes), size, 1)
    low = np.indices(tuple(size // steps)).reshape(len(size), -1).T * steps
    boxes = np.concatenate([low, np.broadcast_to(steps, low.shape)], axis=1)
    while (wide := _deltas(boxes, taps, grid_sizes) > FIRST_DELTA).any():
        boxes = np.concatenate([boxes[~wide], _split(boxes[wide], taps, grid_sizes)])
    return _in_order(boxes)


def _in_order(boxes: np.ndarray) -> np.ndarray:
    """Boxes row by row: the symbols of neighbors on the first axis share much work."""
    middle = boxes[:, 0] + boxes[:, boxes.shape[1] // 2] // 2
    return boxes[np.argsort(middle, kind="stable")]


def _deltas(boxes: np.ndarray, taps: Taps, grid_sizes: np.ndarray) -> np.ndarray:
    return np.pi * _widths(boxes, taps, grid_sizes).sum(axis=1)


def _widths(boxes: np.ndarray, taps: Taps, grid_sizes: np.ndarray) -> np.ndarray:
    """What each axis contributes to delta, over pi."""
    radius = boxes[:, len(grid_sizes) :] // 2
    return taps.degree * radius / grid_sizes


def _split(boxes: np.ndarray, taps: Taps, grid_sizes: np.ndarray) -> np.ndarray:
    """Halve each box on the axis on which it is widest."""
    row, low = (
        np.arange(len(boxes)),
        np.argmax(_widths(boxes, taps, grid_sizes), axis=1),
    )
    size = low + len(grid_sizes)
    half = boxes[row, size] // 2
    first, second = boxes.copy(), boxes.copy()
    first[row, size] = half
    second[row, low] += half
    second[row, size] -= half
    return np.concatenate([first, second])


def _top_vectors(
    matrix: np.ndarray, *, exact: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """Unit left and right top singular vectors of a matrix, and its gain on them.

    If not exact they may be those of another large value than the largest.
    """
    wide = matrix.shape[0] <= matrix.shape[1]
    short = matrix if wide else adjoint(matrix)
    vector = eigh(short @ adjoint(short))[1][:, -1] if exact else _by_lanczos(short)
    other = adjoint(short) @ vector
    size, gain = float(np.linalg.norm(vector)), float(np.linalg.norm(other))
    vector, other = vector / size, other / (gain or 1.0)
    left, right = (vector, other) if wide else (other, vector)
    return left, right, gain / size


def _by_lanczos(short: Array) -> np.ndarray:
    """The top eigenvector of short short^H."""
    side, columns = short.shape
    form = Panels(side)
    grid_sizes = np.zeros((2, 1, columns, form.column))
    grid_sizes[:, 0, :, :side] = short.real.T, short.imag.T
    gram = np.empty((2, 1, form.numbers))
    form.set_products(grid_sizes[0], grid_sizes[1], gram)
    return form.top_vector(*gram[:, 0])
