"""A first look at Gram matrices, in single precision and without a product for each.

Every entry of G(f) is a trigonometric polynomial. Its values at few frequencies, where
the products are made in double precision, give it at all others; what single precision
loses on the way, and in the factorization, is bounded and taken off the level that the
matrices are held against.
"""

import math
from collections.abc import Iterator

import numpy as np

from .._arrays.array import frobenius_norm
from .._arrays.threads import spread
from .._compiled.packed import SIDE_BY_SIDE, Form, Panels, Triangles
from .gram_certificate import GramSource, Maker, Some
from .interpolation import Interpolation, Nodes
from .rounding import (
    DOWN_SINGLE,
    UNIT_SINGLE,
    cholesky_norm,
    interpolation,
    lebesgue_constant,
)

CACHED, ROOM = 2**18, 2**22  # numbers that a thread had best in hand, and at most
LEAST = 8  # frequencies for which a sum over the nodes is worth a call
PRODUCT = 4  # factorizations that take as long as to make a matrix, about


class FirstLook:
    """The matrices of `source` in single precision; see `Look`."""

    def __init__(self, source: GramSource) -> None:
        side, self.form = source.side, _form(source.side)
        nodes = Nodes(source.taps.degree, real=source.planes.is_real)
        self.numbers = source.groups * self.form.numbers
        self.source, self.nodes = source, nodes
        self.interpolation = Interpolation(
            nodes, self.numbers, frequencies_last=self.form.axis == 1
        )
        # Near 1, so that nothing leaves the range of single precision.
        size = frobenius_norm(source.taps.weight)
        self.scale = source.groups * side / (size * size or 1.0)
        squares = np.zeros(len(nodes.frequencies))  # of the norms of lower triangles
        maker = source.maker(nodes.frequencies, nodes.grid_sizes)

        def some(start: int, stop: int) -> None:
            for part, re, im in maker(start, stop):
                re, im = (self.form.of_panels(x) * self.scale for x in (re, im))
                each = (part.stop - part.start, -1)
                self.interpolation.set(part, re.reshape(each), im.reshape(each))
                sums = np.vecdot(re, re) + np.vecdot(im, im)
                squares[part] = sums.reshape(each).max(axis=1)

        spread(some, len(squares), least=-(-source.worthwhile // PRODUCT))
        # What the matrices are off by, in norm: diagonals are in both triangles.
        size = math.sqrt(2 * squares.max())
        self.off = size * interpolation(
            nodes.terms, lebesgue_constant(nodes.grid_sizes)
        )
        # What the factors are off by, over the level.
        form = self.form
        self.lost = cholesky_norm(form.additions, side, form.most, UNIT_SINGLE)

    def maker(self, frequencies: np.ndarray, grid_sizes: np.ndarray) -> Maker:
        weights = self.nodes.weights(frequencies, grid_sizes)
        most = max(CACHED // self.numbers, min(LEAST, ROOM // self.numbers), 1)
        sums = self.interpolation.at(weights, most)
        groups = self.source.groups

        def between(start: int, stop: int) -> Iterator[Some]:
            for part, re, im in sums.between(start, stop):
                yield part, self.form.apart(re, groups), self.form.apart(im, groups)

        return between

    def pieces(self, frequencies: np.ndarray) -> list[slice]:
        return self.interpolation.pieces(frequencies)

    def below(self, re: np.ndarray, im: np.ndarray, squares: np.ndarray) -> np.ndarray:
        # G may be off by `off`, and so may the trace of level - G, which bounds what a
        # factor is off by: (level + off) * (1 + lost) must not exceed the square.
        levels = (squares * self.scale / (1 + self.lost) - self.off) * DOWN_SINGLE
        return self.form.bounded(re, im, levels) & (levels > 0)


def _form(side: int) -> Form:
    return Triangles(side) if side <= SIDE_BY_SIDE else Panels(side)
