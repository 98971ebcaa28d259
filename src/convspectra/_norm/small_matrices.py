"""Norms of small matrices: singular values find the largest, factors certify it."""

from dataclasses import replace

import numpy as np

from .._maps.split_complex import BatchedSymbols
from .._maps.symbol import Taps, matrix_at
from .._maps.symbol_values import set_values, spread_symbols
from .gram_certificate import top_singular_vectors
from .peak import NO_AGREEMENT, Peak
from .rounding import DOWN_SINGLE, UNIT_DOUBLE, UNIT_SINGLE, of_symbol

# Products of decompositions (sides cubed) from which on single precision comes first:
# for fewer, the second call takes longer than double precision does.
SINGLE_PRODUCTS = 2**17


def norm_by_values(taps: Taps, points: np.ndarray, grid_sizes: np.ndarray) -> Peak:
    """The largest singular value, if a Cholesky factor for each matrix agrees."""
    small = SmallMatrices(taps, points, grid_sizes)
    norms = small.norms()
    number, group = np.unravel_index(np.argmax(norms), norms.shape)
    matrix = matrix_at(taps, points[number], int(group), grid_sizes)
    left, right, norm = top_singular_vectors(matrix, exact=True)
    allowance = of_symbol(taps, UNIT_DOUBLE)
    threshold = allowance.threshold(norm, rtol=0.0)
    every = np.arange(len(points))
    if (
        threshold
        and not small.are_below(every, np.full(len(every), threshold**2)).all()
    ):
        raise ArithmeticError(NO_AGREEMENT)
    return Peak(
        lower=allowance.lower(norm),
        upper=allowance.upper(threshold),
        cycles=points[number] / grid_sizes,
        group=int(group),
        left=left,
        right=right,
    )


class SmallMatrices:
    """The matrices H of NumPy's `taps`, at these frequencies.

    Taps are in double precision and near 1.
    """

    def __init__(
        self, taps: Taps, frequencies: np.ndarray, grid_sizes: np.ndarray
    ) -> None:
        self.double = BatchedSymbols(taps)
        self.phases = self.double.phases(frequencies, grid_sizes)
        self.groups, out, _ = taps.channel_shape
        self.side = min(out, taps.columns)
        single = replace(taps, weight=taps.weight.astype(np.complex64))
        self.single = BatchedSymbols(single)
        self.allowance = of_symbol(taps, UNIT_SINGLE)

    def norms(self) -> np.ndarray:
        """The largest singular values (frequencies, groups), as our routines find them.

        In single precision if there are many; then in double precision where several
        may be the largest of all.
        """
        if not self._are_many(len(self.phases)):
            return self._norms(self.double, self.phases)
        norms = self._norms(self.single, self.phases).astype(np.float64)
        # This certifies nothing: it only says which values need not be computed again.
        absolute, relative = self.allowance.absolute, self.allowance.certified
        least = (float(norms.max()) - absolute) / (1 + relative)
        below = (norms + absolute) * (1 + relative) < least
        if np.count_nonzero(~below) > 1:  # a NaN may be the largest
            which = ~below.all(axis=1)
            norms[which] = self._norms(self.double, self.phases[which])
        return norms

    def are_below(self, which: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Where t^2 - H H^H has a Cholesky factor in all groups, for these t^2.

        If there are many, in single precision with a smaller t, for what that may lose;
        then in double precision where this leaves a doubt.
        """
        phases = self.phases[which]
        if not self._are_many(len(phases)):
            return self._have_factors(self.double, phases, squares)
        least = np.sqrt(squares) - self.allowance.absolute
        least = least / (1 + self.allowance.certified)
        least = np.maximum(least, 0.0) * DOWN_SINGLE
        below = self._have_factors(self.single, phases, least * least)
        rest = ~below
        below[rest] = self._have_factors(self.double, phases[rest], squares[rest])
        return below

    def _are_many(self, count: int) -> bool:
        return count * self.groups * self.side**3 > SINGLE_PRODUCTS

    def _norms(self, symbols: BatchedSymbols, phases: np.ndarray) -> np.ndarray:
        values = np.empty((len(phases), self.groups, self.side), symbols.dtype)
        set_values(symbols, phases, values)
        return values[..., 0]

    def _have_factors(
        self, symbols: BatchedSymbols, phases: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Where square - H H^H has a factor in all groups, in this precision."""
        from .._compiled.cholesky_batched import definite_products

        groups, squares = self.groups, np.repeat(squares, self.groups)
        squares = squares.astype(symbols.dtype)
        ones = np.empty_like(squares)  # 1 where there is a factor, else 0

        def factorize(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            if re.shape[0] > re.shape[1]:
                re, im = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (re, im))
            own = slice(part.start * groups, part.stop * groups)
            definite_products(re, im, squares[own], ones[own])

        spread_symbols(factorize, symbols, phases)
        return np.asarray((ones > 0).reshape(-1, groups).all(axis=1))
