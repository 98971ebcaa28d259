"""The norm of a layer that pads with zeros, bounded by its symbol's norms and its grid.

The layer is a block of a convolution on a torus, and sigma(f), the norm of the symbol
there, is all that is kept of it. With x an input and y an output, both zero outside of
their extent of sites, and with any a(f) b(f) >= sigma(f)^2 on the torus,

    |<y, layer x>| <= sum over f of sigma |y^(f)| |x^(f)|
                   <= root of (sum of a |x^|^2) * (sum of b |y^|^2)

by Cauchy and Schwarz, and the sum of a |x^|^2 is at most |x|^2 times the largest
eigenvalue of "multiply by a in frequency, cut to the box" (`cut.py`), in which there
are no channels. Anything larger may stand for sigma, so that it has to be close only
where the top eigenvector lies. The proof stands in docs/mathematics.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from .._arrays.array import Array, asarray_like
from .._layer.stencil import Stencil, rows_and_columns
from .._maps.symbol import (
    Frequencies,
    Taps,
    common_steps,
    frequencies_of,
    matrix_at,
)
from .cut import Cut, cut_to_box, heaviest
from .cut_at_once import MOST_SITES, cut_at_once
from .gram_certificate import top_singular_vectors
from .peak import Peak
from .rounding import UP
from .symbol_norms import SymbolNorms
from .top_vectors import peak_derivative

# What the bounds of norms may add to the result, over the tolerance.
SPARE = 0.05
# Weight of the frequencies that a derivative leaves out.
NEGLIGIBLE = 1e-5


@dataclass(frozen=True, slots=True)
class Extent:
    """The sites that a layer really reads and writes, on a torus that holds them.

    Sites are cells of `stride` columns. If all taps are multiples of a step apart, only
    every so many of them count: the others are layers of their own, and no larger.

    Attributes
    ----------
    inputs, outputs : tuple of int
        Per axis, the cells with columns that are read, and the rows that read some.
    points : tuple of int
        Of a torus on which no row reads a cell twice.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    points: tuple[int, ...]


def extent_of(stencil: Stencil, taps: Taps) -> Extent | None:
    """Of a layer that reads zeros outside of its input; None if no row reads a column.

    Row r reads the columns from stride * r - before on, `reach` of them. If it reads
    one that counts, all of them are less than `reach` columns away from that: with
    reach - 1 columns more than count, no row reads one the wrong way round.
    """
    steps = common_steps(taps.shifts)
    inputs, outputs, points = [], [], []
    for axis, (s, reach, step) in enumerate(zip(stencil.stride, stencil.reach, steps)):
        reading, read = rows_and_columns(stencil, axis)
        if not read:
            return None
        cell = s * int(step)
        inputs.append(-(-len(read) // cell))
        outputs.append(-(-len(reading) // int(step)))
        points.append(-(-(len(read) + reach - 1) // cell))
    same = taps.degree == 0  # all frequencies have the same matrix, and sites do too
    return Extent(
        inputs=tuple(np.where(same, 1, inputs).tolist()),
        outputs=tuple(np.where(same, 1, outputs).tolist()),
        points=tuple(np.where(same, 1, points).tolist()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Compression:
    """A certified bound of a layer's norm, and how the symbol contributes to it.

    Attributes
    ----------
    upper : float
    group : int
    frequencies : Frequencies
    weights : array, shape (frequencies,)
        The derivative of `upper` by the norm of this group's matrix at each of them.
    """

    upper: float
    group: int
    frequencies: Frequencies
    weights: np.ndarray

    def peak(self, taps: Taps) -> Peak:
        """The symbol where it contributes most."""
        return self._at(taps, int(np.argmax(self.weights)))

    def derivative(self, taps: Taps, weight: Array) -> Array:
        """The derivative of the bound: those of the norms, times their weights."""
        found: Array = 0 * weight
        for number in heaviest(self.weights, NEGLIGIBLE).tolist():
            change = peak_derivative(taps, self._at(taps, number), weight)
            found = found + float(self.weights[number]) * change
        return found

    def _at(self, taps: Taps, number: int) -> Peak:
        place, sizes = self.frequencies.points[number], self.frequencies.grid_sizes
        matrix = matrix_at(taps, place, self.group, sizes)
        left, right, _ = top_singular_vectors(matrix, exact=False)
        return Peak(
            lower=0.0,
            upper=self.upper,
            cycles=place / sizes,
            group=self.group,
            left=asarray_like(taps.weight, left),
            right=asarray_like(taps.weight, right),
        )


def norms_for(
    taps: Taps, extent: Extent, *, real: bool, is_screened: bool
) -> SymbolNorms:
    """The norms of the symbol, from which `compression` bounds the layer's norm.

    The shifts of the taps must have no common step.
    """
    kept = frequencies_of(taps.pattern, extent.points, real=real)
    return SymbolNorms(taps, kept, is_screened=is_screened)


def compression(
    norms: SymbolNorms,
    extent: Extent,
    *,
    real: bool,
    rtol: float,
    at_once: bool = False,
) -> Compression:
    """Bound the norm of a layer with this extent.

    Parameters
    ----------
    norms : SymbolNorms
        As `norms_for` gives them. Those that count are tightened in place.
    rtol : float
        No more norms are tightened when that could lower the bound by a small part of
        this, relatively.
    at_once : bool
        Cut on all axes at once. See `can_cut_at_once`.
    """
    kept, cut = norms.frequencies, cut_at_once if at_once else cut_to_box
    cut = partial(_cut, partial(cut, even=real), extent)
    found = Compression(0.0, 0, kept, np.zeros(len(kept)))
    for group in np.argsort(-norms.estimates.max(axis=0), kind="stable").tolist():
        if norms.uppers[:, group].max() > found.upper:
            bound = _bound_group(norms, group, cut, rtol)
            found = max(found, bound, key=lambda bound: bound.upper)
    return found


def can_cut_at_once(extent: Extent) -> bool:
    """Whether a cut on all axes at once is small, and closer than axis by axis."""
    sites = max(math.prod(extent.inputs), math.prod(extent.outputs))
    axes = sum(n > 1 for n in extent.points)
    return sites <= MOST_SITES and axes > 1


def _bound_group(
    norms: SymbolNorms, group: int, cut: Callable[[np.ndarray], Cut], rtol: float
) -> Compression:
    """Cut the norms of one group, and bring those close that count."""
    kept, uppers = norms.frequencies, norms.uppers[:, group]
    where, is_close = kept.representative, np.zeros(len(kept), dtype=bool)
    while True:
        found = cut(uppers[where])
        weights = np.bincount(where.ravel(), found.weights.ravel(), len(kept))
        excess = weights * (uppers - norms.estimates[:, group]) * ~is_close
        heavy = heaviest(excess, SPARE * rtol * found.upper)
        if not len(heavy):
            return Compression(found.upper, group, kept, weights)
        is_close[heavy] = True
        norms.sharpen(heavy, group)


def _cut(cut: Callable[..., Cut], extent: Extent, sigma: np.ndarray) -> Cut:
    """The least bound of those that a and b with a b = sigma^2 give.

    Its weights are derivatives by sigma.
    """
    if extent.inputs == extent.outputs:
        return cut(sigma, extent.inputs)
    x, y = (cut(sigma, box) for box in (extent.inputs, extent.outputs))
    ratio = math.sqrt(y.upper / (x.upper or 1.0))
    both = math.sqrt(x.upper * y.upper) * UP
    found = [Cut(both, (ratio * x.weights + y.weights / (ratio or 1.0)) / 2)]
    for box in (extent.inputs, extent.outputs):  # the other one has the number 1
        squared = cut(sigma**2 * UP, box)
        upper = math.sqrt(squared.upper) * UP
        found.append(Cut(upper, squared.weights * sigma / (upper or 1.0)))
    return min(found, key=lambda cut: cut.upper)
