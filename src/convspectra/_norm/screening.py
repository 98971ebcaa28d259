"""A first look at Gram matrices, in single precision and without a product for each.

Every entry of G(f) is a trigonometric polynomial. Its values at few frequencies, where
the products are made in double precision, give it at all others; what single precision
loses on the way, and in the factorization, is bounded and taken off the level that the
matrices are held against.

By the standard analysis of Cholesky's algorithm the factor L that is found is the exact
one of a matrix that is off by no more than unit * roundings * |L| |L|^H, in absolute
values; how large that can be the form of the matrices knows.
"""

import math
from collections.abc import Iterator

import numpy as np

from .._arrays.array import length
from .._arrays.threads import spread
from .._compiled.packed import SIDE_BY_SIDE, Form, Panels, Triangles
from .gram_certificate import GramSource, Maker, Some
from .interpolation import Interpolation, Nodes

UNIT = float(np.finfo(np.float32).eps) / 2
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
        size = length(source.taps.weight)
        self.scale = source.groups * side / (size * size or 1.0)
        squares = np.zeros(len(nodes.frequencies))  # of the norms of lower triangles
        maker = source.maker(nodes.frequencies, nodes.parts)

        def some(start: int, stop: int) -> None:
            for part, re, im in maker(start, stop):
                re, im = (self.form.of_panels(x) * self.scale for x in (re, im))
                each = (part.stop - part.start, -1)
                self.interpolation.set(part, re.reshape(each), im.reshape(each))
                sums = np.vecdot(re, re) + np.vecdot(im, im)
                squares[part] = sums.reshape(each).max(axis=1)

        spread(some, len(squares), least=-(-source.worthwhile // PRODUCT))
        # What the matrices are off by, in norm. Two percent more pay for the trace of
        # level - G, which may be as much as side * (level + off).
        size = math.sqrt(2 * squares.max())
        self.off = 1.02 * UNIT * nodes.terms * nodes.lebesgue * size
        # What the factors are off by, over |L| |L|^H.
        self.lost = 1.51 * UNIT * self.form.roundings

    def maker(self, frequencies: np.ndarray, parts: np.ndarray) -> Maker:
        weights = self.nodes.weights(frequencies, parts)
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
        levels = squares * self.scale - self.off
        levels = levels / (1 + self.lost * self.form.most)
        levels = levels * (1 - 4 * UNIT)  # which is rounded to single precision
        return self.form.bounded(re, im, levels) & (levels > 0)


def _form(side: int) -> Form:
    return Triangles(side) if side <= SIDE_BY_SIDE else Panels(side)
