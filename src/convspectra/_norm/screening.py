"""Gram matrices in single precision, interpolated: what settles most frequencies.

Every entry of G(f) is a trigonometric polynomial. `ScreeningPass` makes the products at
few frequencies, the nodes, in double precision, and interpolates them elsewhere in
single precision. What that may lose, there and in the factorization, is bounded (see
`rounding`) and taken off the threshold. So what it finds to be below certainly is. Of
the rest nothing is known.
"""

import math
from collections.abc import Callable

import numpy as np

from .._arrays.array import frobenius_norm
from .._arrays.threads import spread
from .._compiled.packed import storage_of
from .gram_certificate import DoublePass, GramPass
from .interpolation import Batches, Interpolation, nodes_of
from .rounding import (
    DOWN_SINGLE,
    UNIT_SINGLE,
    cholesky_norm,
    interpolation_error,
    lebesgue_constant,
)

# Numbers interpolated at once in a thread: a cache's worth, but BATCH frequencies if
# these have no more than MOST_NUMBERS, since a sum for fewer wastes its call.
CACHED_NUMBERS, BATCH, MOST_NUMBERS = 2**18, 8, 2**22
# Factorizations that take about as long as to make one matrix at a node.
PRODUCT_COST = 4


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
        degree = tuple(map(int, self.taps.degree))
        nodes = nodes_of(degree, real=double.symbols.is_real)
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
        self.interpolation_error = largest * interpolation_error(nodes.terms, lebesgue)
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
        make_groups = self.interpolation.at(frequencies, grid_sizes, most)
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
