"""Which Gram matrices of a symbol are below a threshold? A Cholesky factor decides.

G(f) is H(f) H(f)^H, or the transpose of H(f)^H H(f) where that is smaller. A pass makes
these matrices at the frequencies that it is asked about, a few at a time, and answers
two questions: is |H(f)| certainly below t, and about how large is it? `DoublePass`
answers in double precision, `ScreeningPass` (see `screening`) in single precision, and
`LibraryPass` in the array's own library, on a GPU. Matrices are numbered frequency by
frequency, and group by group in each; those asked about are in this order.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from .._arrays.array import Array, adjoint, asarray_like, indices_like, namespace
from .._arrays.linalg import are_definite, eigh
from .._arrays.threads import spread
from .._compiled.packed import Panels, Storage
from .._maps.split_complex import ColumnSymbols
from .._maps.symbol import Taps, chunks, phase_like, symbol
from .interpolation import Batches
from .lanczos import norm_estimates

# Most (frequencies x numbers per frequency) held at once; matrices are not held.
NUMBERS_HELD = 2**22
# Sides cubed of factorizations that are worth a thread: about 0.3 ms.
THREAD_PRODUCTS = 2**23


def slices(count: int, *numbers: int) -> list[slice]:
    """Slices of `count` frequencies, if each has as many numbers as the most of these.

    At most `NUMBERS_HELD` together.
    """
    size = max(1, NUMBERS_HELD // max(numbers))
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]


class GramPass(ABC):
    """What the passes on the CPU have in common.

    Attributes
    ----------
    storage : Panels or Batched
    scale : float
        What the matrices are multiplied by.
    """

    scale = 1.0

    def __init__(self, taps: Taps, grid_sizes: np.ndarray, storage: Storage) -> None:
        self.taps, self.grid_sizes, self.storage = taps, grid_sizes, storage
        self.groups, self.side = taps.channel_shape[0], storage.side
        # How many frequencies are worth a thread, in whole vectors.
        share = THREAD_PRODUCTS // (self.groups * self.side**3 * storage.lanes)
        self.thread_share = max(1, share) * storage.lanes

    @abstractmethod
    def prepare(
        self, frequencies: np.ndarray, grid_sizes: np.ndarray
    ) -> Callable[[int, int], Batches]:
        """A function that makes the matrices of frequencies[start:stop]."""

    @abstractmethod
    def certify(
        self, re: np.ndarray, im: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Where G is certainly below these squares; may overwrite G."""

    def portions(self, frequencies: np.ndarray) -> list[slice]:
        """Slices of the frequencies that are few enough for one call."""
        nodes = math.prod(2 * int(d) + 1 for d in self.taps.degree)
        return slices(len(frequencies), self.groups, len(self.taps.shifts), nodes)

    def below(
        self, frequencies: np.ndarray, which: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Which of the matrices `which` are certainly below these squares."""
        below = np.zeros(len(which), dtype=bool)

        def decide(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            below[part] = self.certify(re, im, squares[part])

        self._each(frequencies, which, decide)
        return below

    def estimates(self, frequencies: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Norms |H| of the matrices `which`, about, by a few steps of Lanczos.

        They are below the norms, but for rounding errors of the pass's precision.
        """
        largest = np.zeros(len(which))

        def estimate(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            largest[part] = self.storage.largest_eigenvalues(re, im)

        self._each(frequencies, which, estimate)
        return np.sqrt(np.maximum(largest, 0.0) / self.scale)

    def _each(
        self,
        frequencies: np.ndarray,
        which: np.ndarray,
        work: Callable[[slice, np.ndarray, np.ndarray], None],
    ) -> None:
        """Call work(part of which, real parts, imaginary parts), in threads."""
        if not len(which):
            return
        groups, axis = self.groups, self.storage.axis
        if groups == 1:
            own, index, bounds = which, which, np.arange(len(which) + 1)
        else:
            own, index = np.unique(which // groups, return_inverse=True)
            bounds = np.searchsorted(index, np.arange(len(own) + 1))
        make = self.prepare(frequencies[own], self.grid_sizes)

        def portion(start: int, stop: int) -> None:
            for part, re, im in make(start, stop):
                asked = slice(bounds[part.start], bounds[part.stop])
                if asked.stop - asked.start < re.shape[axis]:  # not all groups
                    chosen = (index[asked] - part.start) * groups
                    chosen += which[asked] % groups
                    re, im = (np.take(x, chosen, axis=axis) for x in (re, im))
                work(asked, re, im)

        spread(portion, len(own), least=self.thread_share)


class DoublePass(GramPass):
    """Products and factors in double precision: for what nothing else decides."""

    storage: Panels

    def __init__(self, taps: Taps, grid_sizes: np.ndarray) -> None:
        storage = Panels(min(taps.channel_shape[1], taps.columns))
        super().__init__(taps, grid_sizes, storage)

    @functools.cached_property
    def symbols(self) -> ColumnSymbols:
        return ColumnSymbols(
            self.taps,
            transposed=_is_tall(self.taps),
            leading_dimension=self.storage.leading_dimension,
        )

    def prepare(
        self, frequencies: np.ndarray, grid_sizes: np.ndarray
    ) -> Callable[[int, int], Batches]:
        symbols = self.symbols  # made before threads ask for it

        def make(start: int, stop: int) -> Batches:
            workspace = np.empty((2, 0, self.storage.entries))
            for part, re, im in symbols.at(frequencies[start:stop], grid_sizes):
                if workspace.shape[1] < len(re):
                    workspace = np.empty((2, len(re), self.storage.entries))
                grams = workspace[:, : len(re)]
                self.storage.set_products(re, im, grams)
                yield slice(start + part.start, start + part.stop), *grams

        return make

    def certify(
        self, re: np.ndarray, im: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        return self.storage.has_factor(re, im, squares)


class LibraryPass:
    """The same questions for arrays that are not NumPy's: one batch for the library."""

    def __init__(self, taps: Taps, grid_sizes: np.ndarray) -> None:
        self.taps, self.grid_sizes = taps, grid_sizes

    def portions(self, frequencies: np.ndarray) -> list[slice]:
        return chunks(self.taps, len(frequencies))

    def below(
        self, frequencies: np.ndarray, which: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        grams = self.matrices(frequencies, which)
        eye = asarray_like(grams, np.eye(grams.shape[-1]))
        return are_definite(asarray_like(grams, squares)[:, None, None] * eye - grams)

    def estimates(self, frequencies: np.ndarray, which: np.ndarray) -> np.ndarray:
        largest = norm_estimates(self.matrices(frequencies, which))
        return np.sqrt(np.maximum(largest, 0.0))

    def matrices(self, frequencies: np.ndarray, which: np.ndarray) -> Array:
        """The Gram matrices `which`: (count, side, side)."""
        groups = self.taps.channel_shape[0]
        own, index = np.unique(which // groups, return_inverse=True)
        h = symbol(self.taps, phase_like(self.taps, frequencies[own], self.grid_sizes))
        xp = namespace(h)
        h = xp.reshape(h, (-1, *h.shape[2:]))
        if len(which) < h.shape[0]:  # not all groups
            chosen = indices_like(h, index * groups + which % groups)
            h = xp.take(h, chosen, axis=0)
        h = xp.matrix_transpose(h) if _is_tall(self.taps) else h
        return xp.matmul(h, adjoint(h))


def _is_tall(taps: Taps) -> bool:
    """Whether H has more rows than columns."""
    return taps.channel_shape[1] > taps.columns


def top_singular_vectors(
    matrix: np.ndarray, *, exact: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """Unit left and right top singular vectors of a matrix, and its gain on them.

    Unless `exact`, Lanczos finds them: they may belong to a singular value close to the
    largest.
    """
    wide = matrix.shape[0] <= matrix.shape[1]
    short = matrix if wide else adjoint(matrix)
    vector = _top_by_eigh(short) if exact else _top_by_lanczos(short)
    other = adjoint(short) @ vector
    length, image = float(np.linalg.norm(vector)), float(np.linalg.norm(other))
    vector, other = vector / length, other / (image or 1.0)
    left, right = (vector, other) if wide else (other, vector)
    return left, right, image / length


def _top_by_eigh(short: Array) -> np.ndarray:
    """The top eigenvector of short short^H."""
    return eigh(short @ adjoint(short))[1][:, -1]


def _top_by_lanczos(short: Array) -> np.ndarray:
    """The same, as well as Lanczos finds it."""
    side, columns = short.shape
    storage = Panels(side)
    h = np.zeros((2, 1, columns, storage.leading_dimension))
    h[:, 0, :, :side] = short.real.T, short.imag.T
    gram = np.empty((2, 1, storage.entries))
    storage.set_products(h[0], h[1], gram)
    return storage.top_vector(*gram[:, 0])
