"""Norms of small matrices: singular values find the largest, factors certify it."""

from dataclasses import replace

import numpy as np

from .._maps.symbol import PlanarTaps, Taps
from .._maps.symbol_values import set_values, spread_symbols
from .rounding import DOWN_SINGLE, UNIT_SINGLE, of_symbol

SCREENED = 2**17  # steps of a decomposition that are worth a call in single precision


class SmallMatrices:
    """The matrices H of NumPy's `taps`, at these frequencies.

    Taps are in double precision and near 1.
    """

    def __init__(
        self, taps: Taps, frequencies: np.ndarray, grid_sizes: np.ndarray
    ) -> None:
        self.double = PlanarTaps(taps)
        self.phases = self.double.phases(frequencies, grid_sizes)
        self.groups, out, _ = taps.channel_shape
        self.side = min(out, taps.columns)
        single = replace(taps, weight=taps.weight.astype(np.complex64))
        self.single = PlanarTaps(single)
        self.allowance = of_symbol(taps, UNIT_SINGLE)

    def norms(self) -> np.ndarray:
        """The largest singular values (frequencies, groups), as our routines find them.

        In single precision if there are many; then in double where more than one may be
        the largest of all.
        """
        if not self._are_many(len(self.phases)):
            return self._norms(self.double, self.phases)
        norms = self._norms(self.single, self.phases).astype(np.float64)
        # Values certify nothing: this only says which ones are not worth another look.
        absolute, relative = self.allowance.absolute, self.allowance.certified
        least = (float(norms.max()) - absolute) / (1 + relative)
        below = (norms + absolute) * (1 + relative) < least
        if np.count_nonzero(~below) > 1:  # what is NaN may be the largest
            which = ~below.all(axis=1)
            norms[which] = self._norms(self.double, self.phases[which])
        return norms

    def are_below(self, which: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Where t^2 - H H^H has a Cholesky factor in all groups, for these t^2.

        If there are many, in single precision with a smaller t, for what that may lose;
        then in double where this leaves a doubt.
        """
        phases = self.phases[which]
        if not self._are_many(len(phases)):
            return self._have_factors(self.double, phases, squares)
        least = np.sqrt(squares) - self.allowance.absolute
        least = least / (1 + self.allowance.certified)
        least = np.maximum(least, 0.0) * DOWN_SINGLE
        found = self._have_factors(self.single, phases, least * least)
        rest = ~found
        found[rest] = self._have_factors(self.double, phases[rest], squares[rest])
        return found

    def _are_many(self, count: int) -> bool:
        return count * self.groups * self.side**3 > SCREENED

    def _norms(self, planar: PlanarTaps, phases: np.ndarray) -> np.ndarray:
        found = np.empty((len(phases), self.groups, self.side), planar.dtype)
        set_values(planar, phases, found)
        return found[..., 0]

    def _have_factors(
        self, planar: PlanarTaps, phases: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Where square - H H^H has a factor in all groups, in this precision."""
        from .._compiled.cholesky_batched import definite_products

        groups, squares = self.groups, np.repeat(squares, self.groups)
        squares = squares.astype(planar.dtype)
        found = np.empty_like(squares)

        def some(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            if re.shape[0] > re.shape[1]:
                re, im = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (re, im))
            own = slice(part.start * groups, part.stop * groups)
            definite_products(re, im, squares[own], found[own])

        spread_symbols(some, planar, phases)
        return np.asarray((found > 0).reshape(-1, groups).all(axis=1))
