"""Norms of small matrices: Lanczos finds the largest, factors certify it."""

import functools
from collections.abc import Callable

import numpy as np

from .._arrays.array import adjoint
from .._arrays.linalg import are_definite
from .._arrays.threads import spread
from .._compiled.packed import Batched
from .._maps.split_complex import BatchedSymbols
from .._maps.symbol import Frequencies, Taps, grid_phases, phases_are_kept
from .._maps.symbol_values import set_values, spread_symbols
from .gram_certificate import top_singular_vectors
from .peak import NO_AGREEMENT, Peak
from .rounding import DOWN_SINGLE, UNIT_DOUBLE, UNIT_SINGLE, Allowance, of_symbol

# Products of decompositions (sides cubed) from which on single precision comes first:
# for fewer, the second call takes longer than double precision does.
SINGLE_PRODUCTS = 2**17
# So few matrices are factorized by NumPy in less time than it takes to arrange a batch.
FEW = 4


def norm_of_small_matrices(taps: Taps, kept: Frequencies) -> Peak:
    """The largest norm at these frequencies, certified by a factor for each matrix.

    Lanczos tells which matrix has about the largest norm. If factors say that others
    have a larger one, their singular values tell which.
    """
    small = SmallMatrices(taps, _phases(taps, kept))
    allowance = of_symbol(taps, UNIT_DOUBLE)
    which, norms = np.arange(len(kept)), small.estimates(keep=True)
    for _ in range(2):
        number, group = np.unravel_index(np.argmax(norms), norms.shape)
        place = which[number]
        matrix = small.matrices(which[number : number + 1])[0, group]
        left, right, norm = top_singular_vectors(matrix, exact=True)
        threshold = allowance.threshold(norm, rtol=0.0)
        below = small.are_below(which, np.full((len(which), 1), threshold**2))
        if threshold == 0 or below.all():  # all taps are 0, or all norms are below
            return Peak(
                lower=allowance.lower(norm),
                upper=allowance.upper(threshold),
                cycles=kept.points[place] / kept.grid_sizes,
                group=int(group),
                left=left,
                right=right,
            )
        which = which[~below]
        norms = small.norms(which)
    raise ArithmeticError(NO_AGREEMENT)


def _phases(taps: Taps, kept: Frequencies) -> np.ndarray:
    """The phase factors of these frequencies: if they are many, only those needed."""
    if phases_are_kept(taps.pattern, kept):
        return grid_phases(taps.pattern, kept)
    return BatchedSymbols(taps).phases(kept.points, kept.grid_sizes)


class SmallMatrices:
    """The matrices H of NumPy's `taps`, at frequencies with these phase factors.

    Taps are in double precision and near 1. The factors are those of all taps, or of
    those that `BatchedSymbols` needs.
    """

    def __init__(self, taps: Taps, phases: np.ndarray) -> None:
        self.taps, self.groups = taps, taps.channel_shape[0]
        self.storage = Batched(min(taps.channel_shape[1], taps.columns))
        self.double = BatchedSymbols(taps)
        self.single = self.double.in_single()
        needed = self.double.taps_needed
        is_whole = len(needed) == phases.shape[1]
        self.phases = phases if is_whole else phases[:, needed]
        self.kept: list[tuple[slice, np.ndarray, np.ndarray]] = []

    @functools.cached_property
    def allowance(self) -> Allowance:
        """What single precision may lose."""
        return of_symbol(self.taps, UNIT_SINGLE)

    def matrices(self, which: np.ndarray) -> np.ndarray:
        """Some of the matrices in double precision: (count, groups, rows, columns)."""
        workspace = self.double.workspace(len(which))
        re, im = self.double.at(self.phases[which], workspace)
        h = np.moveaxis(re + 1j * im, 2, 0)
        return h.reshape(len(which), self.groups, *h.shape[1:])

    def estimates(self, *, keep: bool = False) -> np.ndarray:
        """The norms (frequencies, groups), about, by a few steps of Lanczos.

        With `keep`, the products of all matrices stay in memory for `are_below`.
        """
        squares = np.empty(len(self.phases) * self.groups, self.single.dtype)

        def estimate(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            squares[part] = self.storage.largest_eigenvalues(re, im)
            if keep:
                self.kept.append((part, re, im))

        self._each_product(estimate, self.single, self.phases)
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

        They are (frequencies, groups), or (frequencies, 1) for all groups alike. If
        there are many matrices, in single precision with a smaller t, for what that may
        lose; then in double precision where this leaves a doubt.
        """
        if not self._are_many(len(which)):
            return self._have_factors(self.double, which, squares)
        least = np.sqrt(squares) - self.allowance.absolute
        least = least / (1 + self.allowance.certified)
        least = np.maximum(least, 0.0) * DOWN_SINGLE
        below = self._have_factors(self.single, which, least * least)
        rest = np.flatnonzero(~below)
        if len(rest) > FEW:
            below[rest] = self._have_factors(self.double, which[rest], squares[rest])
        elif len(rest):
            below[rest] = self._are_few_below(which[rest], squares[rest])
        return below

    def _are_many(self, count: int) -> bool:
        return count * self.groups * self.storage.side**3 > SINGLE_PRODUCTS

    def _norms(self, symbols: BatchedSymbols, phases: np.ndarray) -> np.ndarray:
        values = np.empty((len(phases), self.groups, self.storage.side), symbols.dtype)
        set_values(symbols, phases, values)
        return values[..., 0]

    def _are_few_below(self, which: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """As `are_below`, by NumPy."""
        h = self.matrices(which)
        h = h if h.shape[2] <= h.shape[3] else h.swapaxes(2, 3)
        rest = squares[..., None, None] * np.eye(h.shape[2]) - h @ adjoint(h)
        each = are_definite(rest.reshape(-1, *rest.shape[2:]))
        return np.asarray(each.reshape(-1, self.groups).all(axis=1))

    def _have_factors(
        self, symbols: BatchedSymbols, which: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Where square - H H^H has a factor in all groups, in this precision."""
        squares = np.broadcast_to(squares, (len(which), self.groups)).ravel()
        found = np.empty(len(squares), dtype=bool)

        def factorize(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            found[part] = self.storage.has_trusted_factor(re, im, squares[part])

        if self.kept and symbols is self.single and len(which) == len(self.phases):

            def portion(start: int, stop: int) -> None:
                for part, re, im in self.kept[start:stop]:
                    factorize(part, re, im)

            spread(portion, len(self.kept))
        else:
            self._each_product(factorize, symbols, self.phases[which])
        return np.asarray(found.reshape(-1, self.groups).all(axis=1))

    def _each_product(
        self,
        work: Callable[[slice, np.ndarray, np.ndarray], None],
        symbols: BatchedSymbols,
        phases: np.ndarray,
    ) -> None:
        """Call work(slice of the matrices, real parts, imaginary parts), in threads.

        They are the lower triangles of H H^H, or of the transpose of H^H H where that
        is smaller.
        """
        from .._compiled.cholesky_batched import gram_triangles

        def multiply(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            if re.shape[0] > re.shape[1]:
                re, im = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (re, im))
            grams = np.empty((2, self.storage.entries, re.shape[2]), re.dtype)
            gram_triangles(re, im, *grams)
            work(slice(part.start * self.groups, part.stop * self.groups), *grams)

        spread_symbols(multiply, symbols, phases)
