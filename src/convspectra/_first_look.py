"""A first look at Gram matrices, in single precision and without a product for each.

Every entry of G(f) is a trigonometric polynomial. Its values at few frequencies, where
the products are made in double precision, give it at all others; what single precision
loses on the way, and in the factorization, is bounded and taken off the level that the
matrices are held against.

By the standard analysis of Cholesky's algorithm the factor L that is found is the exact
one of a matrix that is off by no more than unit * roundings * |L| |L|^H, in absolute
values. The norm of that is at most the largest sum in a row of |L| times the largest in
a column, and at most the trace.
"""

import math
from collections.abc import Iterator

import numpy as np

from ._grams import GramSource, Maker, Some, factor_sizes
from ._interpolate import Interpolation, Nodes
from ._threads import spread

UNIT = float(np.finfo(np.float32).eps) / 2
TRUSTED = 8  # size of |L| |L|^H, over the level and the root of the side, at most
SMALL = TRUSTED**2 - 1  # the side of matrices where the trace is the better bound
CACHED, ROOM = 2**18, 2**22  # numbers that a thread had best in hand, and at most
LEAST = 32  # frequencies for which a sum over the nodes is worth a call
KNOWN = 2**28  # bytes that may be known at the nodes


class FirstLook:
    """The matrices of `source` in single precision; see `Look`."""

    def __init__(self, source: GramSource, nodes: Nodes) -> None:
        from ._lane_panels import PANEL, layout

        side = source.side
        self.numbers = source.groups * layout(side)[1]
        self.source, self.nodes = source, nodes
        self.interpolation = Interpolation(nodes, self.numbers)
        # Near 1, so that nothing leaves the range of single precision.
        size = float(np.linalg.norm(source.taps.weight))
        self.scale = source.groups * side / (size * size or 1.0)
        squares = np.zeros(len(nodes.frequencies))  # of the norms of lower triangles
        panels = source.panels(nodes.frequencies, nodes.parts)

        def some(start: int, stop: int) -> None:
            for part, re, im in panels(start, stop):
                re, im = re * self.scale, im * self.scale
                each = (part.stop - part.start, -1)
                self.interpolation.set(part, re.reshape(each), im.reshape(each))
                sums = np.vecdot(re, re) + np.vecdot(im, im)
                squares[part] = sums.reshape(each).max(axis=1)

        spread(some, len(squares), least=source.worthwhile)
        # What the matrices are off by, in norm, and a little more for the trace below.
        size = math.sqrt(2 * squares.max())
        self.off = 1.02 * UNIT * nodes.terms * nodes.lebesgue * size
        # What the factors are off by, over |L| |L|^H, and how large that may be: where
        # sides are small the trace is a better bound, of side * (level + off).
        self.lost = 1.51 * UNIT * (2 * PANEL + side // PANEL + 8)
        self.by_trace = side <= SMALL
        self.most = side if self.by_trace else TRUSTED * math.sqrt(side)

    def panels(self, frequencies: np.ndarray, parts: np.ndarray) -> Maker:
        weights = self.nodes.weights(frequencies, parts)
        most = max(CACHED // self.numbers, min(LEAST, ROOM // self.numbers), 1)
        sums = self.interpolation.at(weights, most)

        def between(start: int, stop: int) -> Iterator[Some]:
            for part, re, im in sums.between(start, stop):
                each = (self.source.groups * len(re), -1)
                yield part, re.reshape(each), im.reshape(each)

        return between

    def pieces(self, frequencies: np.ndarray) -> list[slice]:
        return self.interpolation.pieces(frequencies)

    def below(self, re: np.ndarray, im: np.ndarray, squares: np.ndarray) -> np.ndarray:
        levels = (squares * self.scale - self.off) / (1 + self.lost * self.most)
        levels = levels * (1 - 4 * UNIT)  # which is rounded to single precision
        side = self.source.side
        sizes = factor_sizes(re, im, side, levels) * (1 + 4 * side * UNIT)
        small = np.isfinite(sizes) if self.by_trace else sizes <= self.most * levels
        return small & (levels > 0)


def first_look(source: GramSource, frequencies: int) -> FirstLook | None:
    """A first look for about so many frequencies, where it is worth it.

    That is where there are more of them than G needs to be known at, and where what is
    known there does not take much more memory than the taps.
    """
    from ._lane_panels import layout

    if not source.host:
        return None
    degree, real = source.taps.degree, not source.taps.weight.imag.any()
    nodes = Nodes.count(degree, real=real)
    known = 2 * nodes * source.groups * layout(source.side)[1] * 8
    if nodes >= frequencies or known > max(KNOWN, source.taps.weight.nbytes):
        return None
    return FirstLook(source, Nodes(degree, real=real))
