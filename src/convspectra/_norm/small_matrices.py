"""Norms of small matrices: Lanczos finds the largest, factors certify it."""

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .._compiled.packed import lanczos_steps, start_vector
from .._maps.split_complex import BatchedSymbols
from .._maps.symbol import Frequencies, Taps, grid_phases, matrix_at
from .._maps.symbol_values import set_values, spread_symbols
from .gram_certificate import top_singular_vectors
from .peak import NO_AGREEMENT, Peak
from .rounding import DOWN_SINGLE, UNIT_DOUBLE, UNIT_SINGLE, Allowance, of_symbol

# Products of decompositions (sides cubed) from which on single precision comes first:
# for fewer, the second call takes longer than double precision does.
SINGLE_PRODUCTS = 2**17


def norm_of_small_matrices(taps: Taps, kept: Frequencies) -> Peak:
    """The largest norm at these frequencies, certified by a factor for each matrix.

    Lanczos tells which matrix has about the largest norm. If factors say that others
    have a larger one, their singular values tell which.
    """
    small = SmallMatrices(taps, grid_phases(taps.pattern, kept))
    allowance = of_symbol(taps, UNIT_DOUBLE)
    which, norms = np.arange(len(kept)), small.estimates()
    for _ in range(2):
        number, group = np.unravel_index(np.argmax(norms), norms.shape)
        point = kept.points[which[number]]
        matrix = matrix_at(taps, point, int(group), kept.grid_sizes)
        left, right, norm = top_singular_vectors(matrix, exact=True)
        threshold = allowance.threshold(norm, rtol=0.0)
        below = small.are_below(which, np.full(len(which), threshold**2))
        if threshold == 0 or below.all():  # all taps are 0, or all norms are below
            return Peak(
                lower=allowance.lower(norm),
                upper=allowance.upper(threshold),
                cycles=point / kept.grid_sizes,
                group=int(group),
                left=left,
                right=right,
            )
        which = which[~below]
        norms = small.norms(which)
    raise ArithmeticError(NO_AGREEMENT)


class SmallMatrices:
    """The matrices H of NumPy's `taps`, at frequencies with these phase factors.

    Taps are in double precision and near 1. The factors are those of all taps, or of
    those that `BatchedSymbols` needs.
    """

    def __init__(self, taps: Taps, phases: np.ndarray) -> None:
        self.taps, self.groups = taps, taps.channel_shape[0]
        self.side = min(taps.channel_shape[1], taps.columns)
        weight = taps.weight.astype(np.complex64)
        self.single = BatchedSymbols(replace(taps, weight=weight))
        is_whole = len(self.single.taps_needed) == phases.shape[1]
        self.phases = phases if is_whole else phases[:, self.single.taps_needed]

    @functools.cached_property
    def double(self) -> BatchedSymbols:
        return BatchedSymbols(self.taps)

    @functools.cached_property
    def allowance(self) -> Allowance:
        """What single precision may lose."""
        return of_symbol(self.taps, UNIT_SINGLE)

    def estimates(self) -> np.ndarray:
        """The norms (frequencies, groups), about, by a few steps of Lanczos."""
        from .._compiled.lanczos_batched import top_products

        x, steps = start_vector(self.side), lanczos_steps(self.side)
        start = np.array([x.real, x.imag], self.single.dtype)
        squares = np.empty(len(self.phases) * self.groups, self.single.dtype)

        def estimate(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            top_products(re, im, start, steps, squares[part])

        self._each(estimate, self.single, self.phases)
        return np.sqrt(squares).reshape(-1, self.groups)

    def norms(self, which: np.ndarray | None = None) -> np.ndarray:
        """The largest singular values (frequencies, groups), as our routines find them.

        In single precision if there are many; then in double precision where several
        may be the largest of all.
        """
        phases = self.phases if which is None else self.phases[which]
        if not self._are_many(len(phases)):
            return self._norms(self.double, phases)
        norms = self._norms(self.single, phases).astype(np.float64)
        # This certifies nothing: it only says which values need not be computed again.
        absolute, relative = self.allowance.absolute, self.allowance.certified
        least = (float(norms.max()) - absolute) / (1 + relative)
        below = (norms + absolute) * (1 + relative) < least
        if np.count_nonzero(~below) > 1:  # a NaN may be the largest
            rest = ~below.all(axis=1)
            norms[rest] = self._norms(self.double, phases[rest])
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

        squares = np.repeat(squares, self.groups).astype(symbols.dtype)
        ones = np.empty_like(squares)  # 1 where there is a factor, else 0

        def factorize(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            definite_products(re, im, squares[part], ones[part])

        self._each(factorize, symbols, phases)
        return np.asarray((ones > 0).reshape(-1, self.groups).all(axis=1))

    def _each(
        self,
        work: Callable[[slice, np.ndarray, np.ndarray], None],
        symbols: BatchedSymbols,
        phases: np.ndarray,
    ) -> None:
        """Call work(slice of the matrices, real parts, imaginary parts), in threads.

        They are (side, columns, count), with at least as many columns as rows.
        """

        def wide(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            if re.shape[0] > re.shape[1]:
                re, im = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (re, im))
            work(slice(part.start * self.groups, part.stop * self.groups), re, im)

        spread_symbols(wide, symbols, phases)
