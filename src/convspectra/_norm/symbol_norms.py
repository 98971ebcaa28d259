"""Bounds of the norm at every frequency, close where that is asked for.

Lanczos estimates each norm from below. A Cholesky factor a little above the estimate
certifies it: in single precision for all of them, in double precision for some.
"""

import numpy as np

from .._arrays.array import is_host
from .._maps.symbol import Frequencies, Taps, matrix_at
from .gram_certificate import (
    DoublePass,
    GramPass,
    LibraryPass,
    top_singular_vectors,
)
from .rounding import UNIT_DOUBLE, of_symbol, size_bound
from .screening import ScreeningPass

# Where to ask for a factor: above the estimate by these parts of the largest norm, the
# first that has one. In single precision beginning with what that may lose.
SCREENING_STEPS, STEPS = (1e-3, 5e-3, 2e-2, 1e-1, 1.0), (1e-5, 1e-4, 1e-3, 1e-2, 1.0)

# A bound this much above its estimate, as a part of the largest norm, is not from one
# of the first two steps.
MISSED = 2e-4


class SymbolNorms:
    """Upper bounds of the norms of all matrices of a torus.

    Attributes
    ----------
    estimates, uppers : array, shape (frequencies, groups)
        The norms are about as large as the former, and certainly not above the latter.
    """

    def __init__(self, taps: Taps, kept: Frequencies, *, is_screened: bool) -> None:
        self.taps, self.frequencies, sizes = taps, kept, kept.grid_sizes
        self.points, self.grid_sizes = kept.points, sizes
        self.double: DoublePass | LibraryPass = LibraryPass(taps, sizes)
        first = self.double
        if is_host(taps.weight):
            self.double = first = DoublePass(taps, sizes)
            first = ScreeningPass(first) if is_screened else first
        self.allowance, self.groups = (
            of_symbol(taps, UNIT_DOUBLE),
            taps.channel_shape[0],
        )
        shape, every = (len(kept), self.groups), np.arange(len(kept) * self.groups)
        self.uppers = np.full(shape, size_bound(taps))
        self.estimates = np.concatenate(
            [
                first.estimates(self.points[part], every[: self._matrices(part)])
                for part in first.portions(self.points)
            ]
        ).reshape(shape)
        self.largest, steps = float(self.estimates.max()), STEPS
        if isinstance(first, ScreeningPass):
            error = first.interpolation_error / (first.scale * self.largest**2 or 1.0)
            steps = (first.factor_error / 2 + error, *SCREENING_STEPS)
        self._tighten(first, every, steps)

    def groups_above(self, norm: float) -> list[int]:
        """Groups whose matrices may have a larger norm, the most likely ones first."""
        likely = np.argsort(-self.estimates.max(axis=0), kind="stable")
        return likely[self.uppers.max(axis=0)[likely] > norm].tolist()

    def sharpen(self, which: np.ndarray, group: int) -> None:
        """Bring the bounds of a group at some frequencies close to the norms there.

        Where no factor is close above an estimate, Lanczos has missed the largest
        value: an eigendecomposition gives it.
        """
        self._tighten(self.double, np.sort(which) * self.groups + group, STEPS)
        uppers, estimates = self.uppers[:, group], self.estimates[:, group]
        missed = which[uppers[which] > estimates[which] + MISSED * self.largest]
        for number in missed.tolist():
            matrix = matrix_at(self.taps, self.points[number], group, self.grid_sizes)
            estimates[number] = top_singular_vectors(matrix, exact=True)[2]
        self._tighten(self.double, np.sort(missed) * self.groups + group, STEPS)

    def _tighten(
        self,
        grams: GramPass | LibraryPass,
        which: np.ndarray,
        steps: tuple[float, ...],
    ) -> None:
        """Lower bounds to the first of these steps above the estimate that holds."""
        uppers, estimates = self.uppers.reshape(-1), self.estimates.reshape(-1)
        for step in steps:
            thresholds = estimates[which] + step * self.largest
            new = self.allowance.upper(thresholds)
            is_lower = new < uppers[which]
            which, new = which[is_lower], new[is_lower]
            below = self._are_below(grams, which, thresholds[is_lower] ** 2)
            uppers[which[below]] = new[below]
            which = which[~below]

    def _are_below(
        self, grams: GramPass | LibraryPass, which: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        found = [np.zeros(0, dtype=bool)]
        for part in grams.portions(self.points):
            start = part.start * self.groups
            ends = np.searchsorted(which, [start, start + self._matrices(part)])
            those = slice(*ends)
            own = which[those] - start
            found.append(grams.below(self.points[part], own, squares[those]))
        return np.concatenate(found)

    def _matrices(self, part: slice) -> int:
        return (part.stop - part.start) * self.groups
