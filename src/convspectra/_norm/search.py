"""The largest norm over the frequencies of a torus, by branch and bound.

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
points are not searched: for each of their points the same holds for the others.) Where
|H(f) x|^2 is never below m, the same holds for the squares less m: see `flat_spectrum`.
If the norm is nearly attained almost everywhere all the same, a search would hardly
end: then the threshold rises until it does, and the bounds are further apart.

Whether |H(c)| is below t is decided by one factorization: t^2 - H(c) H(c)^H has a
Cholesky factor if and only if it is. The threshold t is a little above the largest norm
found so far. It comes from Lanczos, or from singular values where matrices are so small
that these take less time.

Taps come in double precision and near 1 in size, as `normalized` makes them.
"""

import math
from dataclasses import dataclass

import numpy as np

from .._arrays.array import Array, asarray_like, is_host
from .._maps.split_complex import BatchedSymbols
from .._maps.symbol import Taps, matrix_at
from .._route.records import NormRoute
from .boxes import Boxes
from .flat_spectrum import flat_groups, smallest_squares
from .gram_certificate import DoublePass, LibraryPass, slices, top_singular_vectors
from .peak import NO_AGREEMENT, NO_PROGRESS, Peak
from .rounding import UNIT_DOUBLE, of_symbol
from .screening import ScreeningPass
from .small_matrices import SmallMatrices

# Delta below which a box is nearly its center: if that is above the threshold, so would
# be all smaller boxes around it, and the threshold has to rise.
NARROW_DELTA = 0.1
# Relative error of an estimate in single precision, with some to spare: only an
# estimate above a threshold by more is acted upon.
ESTIMATE_MARGIN = 1e-5
# At least so many frequencies set a first threshold for all others: all of them if
# matrices have no more entries together than SAMPLED_ENTRIES.
SAMPLE, SAMPLED_ENTRIES = 16, 2**18
# The largest side at which a decomposition takes less time than Lanczos.
EXACT_VECTORS_SIDE = 32
# A search splits at most so many boxes at once, by the products of their Gram matrices
# and what each box costs besides: some four million of small matrices, in about half a
# minute. Searches that end by themselves in a few minutes have fewer.
MOST_PRODUCTS, FIXED_PRODUCTS = 2**38, 2**16


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Where the largest norm found is, and its singular vectors."""

    center: np.ndarray
    group: int
    left: Array
    right: Array


class Search:
    """A branch and bound over boxes of frequencies.

    Searching "by values" takes the norms at all centers from a decomposition. These set
    the threshold, and say what is below it; Cholesky factors decide whether that is so.
    """

    def __init__(
        self,
        taps: Taps,
        boxes: Boxes,
        route: NormRoute,
        rtol: float,
        half_step: float = 0.0,
    ) -> None:
        self.taps, self.boxes, self.half_step = taps, boxes, half_step
        self.groups, out, _ = taps.channel_shape
        self.grid_sizes = grid_sizes = boxes.grid_sizes
        self.small = None
        if route.algorithm == "search by values":
            self.small = BatchedSymbols(taps)
        self.grams = (
            DoublePass(taps, grid_sizes)
            if is_host(taps.weight)
            else LibraryPass(taps, grid_sizes)
        )
        self.screening = None
        if route.is_screened and isinstance(self.grams, DoublePass):
            self.screening = ScreeningPass(self.grams)
        self.first_pass = self.screening or self.grams
        self.side, longer_side = sorted((out, taps.columns))
        products = self.groups * (FIXED_PRODUCTS + self.side**2 * longer_side)
        self.most_boxes = max(4 * len(boxes), MOST_PRODUCTS // products)
        self.rtol, self.allowance = rtol, of_symbol(taps, UNIT_DOUBLE)
        self.lower, self.threshold = 0.0, self.allowance.threshold(0.0, rtol)
        left, right = (
            asarray_like(taps.weight, np.zeros(n)) for n in (out, taps.columns)
        )
        self.found = _Found(np.zeros_like(grid_sizes), 0, left, right)
        # For each group, a bound of all |H(f) x|^2 from below.
        self.smallest_squares = np.zeros(self.groups)

    def run(self) -> Peak:
        boxes = self._boxes_left(self.boxes)
        if len(boxes) and len(flat := flat_groups(self.taps, self.threshold)):
            self.smallest_squares[flat] = smallest_squares(
                self.taps, flat, self.boxes, self.half_step, self.allowance
            )
            boxes = self._boxes_left(self.boxes)
        while len(boxes):
            widest = self.half_step + float(boxes.deltas.max())
            if len(boxes) <= self.most_boxes or widest >= np.pi / 2:
                boxes = boxes.split()
            else:
                self._settle_for_less(widest)
            boxes = self._boxes_left(boxes)
        return Peak(
            lower=self.allowance.lower(self.lower),
            upper=self.allowance.upper(self.threshold),
            cycles=self.found.center / self.grid_sizes,
            group=self.found.group,
            left=self.found.left,
            right=self.found.right,
        )

    def _settle_for_less(self, widest: float) -> None:
        """Raise the threshold so that all boxes are settled, or double what it allows.

        A center with the largest norm found settles its box if the threshold is larger
        by the cosines. Half more pays for what the threshold does not use of `rtol`,
        and for rounding.
        """
        cosine = math.cos(widest) / math.cos(self.half_step)
        self.rtol = max(2 * self.rtol, 1.5 * (1 / cosine - 1))
        self.threshold = self.allowance.threshold(self.lower, self.rtol)

    def _boxes_left(self, boxes: Boxes) -> Boxes:
        """The boxes that may hold more than the threshold, which this may raise."""
        if not (self.threshold and len(boxes)):  # all taps are 0, or all is settled
            return boxes[:0]
        if self.small is None:
            portions = self.first_pass.portions(boxes.centers)
        else:
            portions = slices(len(boxes), self.groups, len(self.small.taps_needed))
        return boxes[np.concatenate([self._is_left(boxes[part]) for part in portions])]

    def _is_left(self, boxes: Boxes) -> np.ndarray:
        """Which boxes may hold more than the threshold, which this may raise."""
        centers, delta = boxes.centers, boxes.deltas
        is_left = np.zeros(len(boxes), dtype=bool)
        if self.small is not None:
            phases = self.small.phases(centers, self.grid_sizes)
            return self._is_left_by_values(centers, delta, phases)
        # One for each matrix: number i is group i % groups at frequency i // groups.
        delta = np.repeat(delta, self.groups)
        above = self._not_certified(centers, np.arange(len(delta)), delta)
        points, wide = above[delta[above] == 0], above[delta[above] > 0]
        while len(points):  # single frequencies: the threshold has to reach them
            self._raise_threshold_or_fail(
                centers, points, self.first_pass.estimates(centers, points)
            )
            points = self._not_certified(centers, points, delta)
        narrow = wide[delta[wide] < NARROW_DELTA]
        high = self._not_certified(centers, narrow, np.zeros_like(delta))
        if len(high):
            self._raise_threshold_or_fail(
                centers, high, self.grams.estimates(centers, high)
            )
        is_left[wide // self.groups] = True
        return is_left

    def _is_left_by_values(
        self, centers: np.ndarray, delta: np.ndarray, phases: np.ndarray
    ) -> np.ndarray:
        """As `_is_left`, with the threshold raised to the largest value.

        Values only claim what is below it; a factor certifies that for each box.
        """
        small = SmallMatrices(self.taps, phases)
        norms = small.norms()
        self._raise_threshold(centers, int(np.argmax(norms)), exact=True)
        squares = self._squares(delta[:, None], np.arange(self.groups))
        above = (norms > np.sqrt(squares)).any(axis=1)
        claimed = np.flatnonzero((delta == 0) | ~above)
        certain = small.are_below(claimed, squares[claimed])
        refused = claimed[~certain]
        # A rounding error may refuse what its values claim to be below, but not when it
        # is held against the threshold itself.
        square = np.full((len(refused), 1), self.threshold**2)
        if len(refused) and not small.are_below(refused, square).all():
            raise ArithmeticError(NO_AGREEMENT)
        is_left = np.ones(len(centers), dtype=bool)
        is_left[claimed[certain]] = False
        return is_left

    def _not_certified(
        self, centers: np.ndarray, which: np.ndarray, delta: np.ndarray
    ) -> np.ndarray:
        """The matrices of `which` that may be above the threshold, which may rise.

        Matrix i is that of group i % groups, at the frequency centers[i // groups].
        """
        if not len(which):
            return which
        if not self.lower:
            # Most others are below the threshold that a sample sets: of n matrices in
            # any order, about n / k are above the largest of k.
            size = SAMPLE + 2 * math.isqrt(len(which))
            size = max(size, SAMPLED_ENTRIES // self.side**2)
            sample = which[:: -(-len(which) // size)]
            estimates = self.first_pass.estimates(centers, sample)
            self._raise_if_estimate_is_above(centers, sample, estimates)
        if self.screening is None:
            squares = self._squares(delta[which], which % self.groups)
            return which[~self.grams.below(centers, which, squares)]
        while True:
            squares = self._squares(delta[which], which % self.groups)
            which = which[~self.screening.below(centers, which, squares)]
            if not len(which):
                return which
            estimates = np.array([self.lower])
            if not self._is_found(centers, which):
                estimates = self.screening.estimates(centers, which)
            if not self._raise_if_estimate_is_above(centers, which, estimates):
                break
        squares = self._squares(delta[which], which % self.groups)
        # A box whose center is clearly above what is asked of it has to be split:
        # there is nothing to certify.
        clear = estimates > (1 + ESTIMATE_MARGIN) * np.sqrt(squares)
        clear &= delta[which] > 0
        below = np.zeros(len(which), dtype=bool)
        below[~clear] = self.grams.below(centers, which[~clear], squares[~clear])
        return which[~below]

    def _is_found(self, centers: np.ndarray, which: np.ndarray) -> bool:
        """Whether `which` is only the matrix of the largest norm found."""
        number, group = divmod(int(which[0]), self.groups)
        same = group == self.found.group
        same = same and (centers[number] == self.found.center).all()
        return len(which) == 1 and bool(same)

    def _raise_if_estimate_is_above(
        self, centers: np.ndarray, which: np.ndarray, estimates: np.ndarray
    ) -> bool:
        """Raise the threshold to the largest of `which`, if clearly above; did it rise?

        An estimate in single precision may be wrong if norms between grid points are
        much larger: then the matrix itself says no.
        """
        if estimates.max() <= self.threshold * (1 + ESTIMATE_MARGIN):
            return False
        before = self.lower
        self._raise_threshold(centers, int(which[np.argmax(estimates)]), exact=False)
        return self.lower > before

    def _raise_threshold_or_fail(
        self, centers: np.ndarray, which: np.ndarray, estimates: np.ndarray
    ) -> None:
        """Raise the threshold to the largest of `which`, which all are above it."""
        before, largest = self.lower, int(which[np.argmax(estimates)])
        self._raise_threshold(centers, largest, exact=False)
        if not self.lower > before:
            self._raise_threshold(centers, largest, exact=True)
        if not self.lower > before:
            raise ArithmeticError(NO_PROGRESS)

    def _raise_threshold(
        self, centers: np.ndarray, matrix: int, *, exact: bool
    ) -> None:
        """Raise lower bound and threshold to the norm of a matrix, if it is larger."""
        number, group = divmod(matrix, self.groups)
        h = matrix_at(self.taps, centers[number], group, self.grid_sizes)
        exact = exact or self.side <= EXACT_VECTORS_SIDE
        left, right, norm = top_singular_vectors(h, exact=exact)
        if norm > self.lower:
            self.lower, threshold = norm, self.allowance.threshold(norm, self.rtol)
            self.threshold = max(self.threshold, threshold)
            vectors = [asarray_like(self.taps.weight, x) for x in (left, right)]
            self.found = _Found(centers[number], group, *vectors)

    def _squares(self, delta: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Squares that |H|^2 at the centers must be below, for all of each box to be.

        In the group of each. 0 for a box that is too wide to be settled at once.
        """
        at_center = self.allowance.box_threshold(
            self.threshold,
            self.half_step + delta,
            self.half_step,
            len(self.grid_sizes),
            self.smallest_squares[group],
        )
        return np.where(delta > 0, at_center, self.threshold) ** 2
