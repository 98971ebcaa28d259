"""The Gram matrices of a symbol at many frequencies, and which are below a level.

G(f) is H(f) H(f)^H, or the transpose of H(f)^H H(f) where that is smaller. On the CPU
there are two looks at them, an exact one, and before it a first look wherever that is
cheaper: see `screening`. On a GPU all are one batch for the library.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from .._arrays.array import (
    Array,
    adjoint,
    asarray_like,
    indices_like,
    is_host,
    namespace,
    to_numpy,
)
from .._arrays.linalg import are_definite
from .._arrays.threads import spread
from .._compiled.packed import Form, Panels, first_vector, steps, tops_of_tridiagonal
from .._maps.split_complex import Planes
from .._maps.symbol import Taps, chunks, phase_factors, symbol

AT_ONCE = 2**22  # numbers for each of which all frequencies in hand may have one
WORTHWHILE = 2**25  # steps of a factorization that are worth a thread

# Some of the frequencies, and their matrices in some form, one group after the other
# for each frequency: real parts and imaginary parts.
Some = tuple[slice, np.ndarray, np.ndarray]
Maker = Callable[[int, int], Iterator[Some]]


class Look(Protocol):
    """A way to make matrices and to tell what is below a level.

    Attributes
    ----------
    form : Form
    scale : float
        What the matrices that it makes are multiplied by.
    """

    scale: float

    @property
    def form(self) -> Form: ...

    def maker(self, frequencies: np.ndarray, grid_sizes: np.ndarray) -> Maker:
        """What makes the matrices from `start` to `stop`, a few at a time."""
        ...

    def pieces(self, frequencies: np.ndarray) -> list[slice]:
        """Slices of the frequencies that are not too many for one maker."""
        ...

    def below(self, re: np.ndarray, im: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Which matrices are certainly below these squares; may overwrite them."""
        ...


class GramSource:
    """Gram matrices of the symbol of `taps`, at any frequencies: the exact look."""

    scale = 1.0

    def __init__(self, taps: Taps) -> None:
        self.taps, (self.groups, out, _) = taps, taps.channel_shape
        self.transposed = out > taps.columns
        self.side = min(out, taps.columns)
        self.host, self.form = is_host(taps.weight), Panels(self.side)

    @functools.cached_property
    def planes(self) -> Planes:
        """What makes the symbol, for NumPy's taps."""
        return Planes(self.taps, transposed=self.transposed, apart=self.form.column)

    def chunks(self, count: int) -> list[slice]:
        """Slices over `count` frequencies that are not too many for one `Grams`."""
        if not self.host:
            return chunks(self.taps, count)
        nodes = math.prod(2 * int(d) + 1 for d in self.taps.degree)
        size = max(1, AT_ONCE // max(self.groups, len(self.taps.shifts), nodes))
        return [slice(i, min(i + size, count)) for i in range(0, count, size)]

    def matrices(self, frequencies: np.ndarray, grid_sizes: np.ndarray) -> Array:
        """The matrices as a batch: (frequencies * groups, side, side)."""
        phases = phase_factors(self.taps.shifts, frequencies, grid_sizes)
        h = symbol(self.taps, asarray_like(self.taps.weight, phases))
        xp = namespace(h)
        h = xp.reshape(h, (-1, *h.shape[2:]))
        h = xp.matrix_transpose(h) if self.transposed else h
        return xp.matmul(h, adjoint(h))

    def maker(self, frequencies: np.ndarray, grid_sizes: np.ndarray) -> Maker:
        planes = self.planes  # not one for each thread

        def between(start: int, stop: int) -> Iterator[Some]:
            room = np.empty((2, 0, self.form.numbers))
            for part, re, im in planes.at(frequencies[start:stop], grid_sizes):
                if room.shape[1] < len(re):  # else it is used again
                    room = np.empty((2, len(re), self.form.numbers))
                found = room[:, : len(re)]
                self.form.set_products(re, im, found)
                yield slice(start + part.start, start + part.stop), *found

        return between

    def below(self, re: np.ndarray, im: np.ndarray, squares: np.ndarray) -> np.ndarray:
        return self.form.definite(re, im, squares)

    @property
    def worthwhile(self) -> int:
        """How many frequencies are worth a thread."""
        return 1 + WORTHWHILE // (self.groups * self.side**3)

    def pieces(self, frequencies: np.ndarray) -> list[slice]:
        return [slice(0, len(frequencies))]


class Grams:
    """Gram matrices at some frequencies, made when asked for, a few at a time.

    Each group of each frequency is looked at for itself. Those asked for are in order.
    """

    def __init__(
        self,
        source: GramSource,
        first_look: Look | None,
        frequencies: np.ndarray,
        grid_sizes: np.ndarray,
    ) -> None:
        self.source, self.first_look = source, first_look
        self.frequencies, self.grid_sizes = frequencies, grid_sizes

    def below_at_first_look(self, which: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Which of the matrices `which` the first look finds to be below these squares.

        That is certain; of the others nothing is known.
        """
        assert self.first_look is not None
        return self._below(self.first_look, which, squares)

    def below(self, which: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Whether the matrices `which` are certainly below these squares."""
        if self.source.host:
            return self._below(self.source, which, squares)
        return _batch_below(self._batch(which), squares)

    def _below(self, look: Look, which: np.ndarray, squares: np.ndarray) -> np.ndarray:
        found = np.zeros(len(which), dtype=bool)

        def some(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            found[part] = look.below(re, im, squares[part])

        self._each(look, which, some)
        return found

    def estimates(self, which: np.ndarray, *, exactly: bool = False) -> np.ndarray:
        """What the norms of the matrices `which` are about, by a few steps of Lanczos.

        From below, but for what single precision loses if not `exactly`.
        """
        if not self.source.host:
            squares = _batch_estimates(self._batch(which), self.source.side)
            return np.sqrt(np.maximum(squares, 0.0))
        look = self.source if exactly else self.first_look or self.source
        found = np.zeros(len(which))

        def some(part: slice, re: np.ndarray, im: np.ndarray) -> None:
            found[part] = look.form.tops(re, im)

        self._each(look, which, some)
        return np.sqrt(np.maximum(found, 0.0) / look.scale)

    def _batch(self, which: np.ndarray) -> Array:
        groups = self.source.groups
        frequencies, place = np.unique(which // groups, return_inverse=True)
        made = self.source.matrices(self.frequencies[frequencies], self.grid_sizes)
        if len(which) == made.shape[0]:
            return made
        chosen = indices_like(made, place * groups + which % groups)
        return namespace(made).take(made, chosen, axis=0)

    def _each(
        self,
        look: Look,
        which: np.ndarray,
        work: Callable[[slice, np.ndarray, np.ndarray], None],
    ) -> None:
        """Call work(part of which, real parts, imaginary parts), in threads."""
        groups = self.source.groups
        if not len(which):
            return
        if groups == 1:
            numbers, ends = which, np.arange(len(which) + 1)
            place = ends[:-1]
        else:
            numbers, place = np.unique(which // groups, return_inverse=True)
            ends = np.searchsorted(place, np.arange(len(numbers) + 1))
        every = self.frequencies[numbers]

        def piece(begin: int, maker: Maker) -> Callable[[int, int], None]:
            def some(start: int, stop: int) -> None:
                for part, re, im in maker(start, stop):
                    first = begin + part.start
                    mine = slice(ends[first], ends[begin + part.stop])
                    if mine.stop - mine.start < re.shape[look.form.axis]:
                        rows = (place[mine] - first) * groups + which[mine] % groups
                        re, im = (
                            np.take(x, rows, axis=look.form.axis) for x in (re, im)
                        )
                    work(mine, re, im)

            return some

        for those in look.pieces(every):
            some = piece(those.start, look.maker(every[those], self.grid_sizes))
            count = those.stop - those.start
            spread(some, count, least=self.source.worthwhile)


def _batch_below(matrices: Array, squares: np.ndarray) -> np.ndarray:
    eye = asarray_like(matrices, np.eye(matrices.shape[-1]))
    return are_definite(asarray_like(matrices, squares)[:, None, None] * eye - matrices)


def _batch_estimates(matrices: Array, side: int) -> np.ndarray:
    """What the top eigenvalues of a batch of matrices are about, from below."""
    xp, count = namespace(matrices), matrices.shape[0]
    v = asarray_like(matrices, np.tile(first_vector(side)[:, None], (count, 1, 1)))
    before, size = xp.zeros_like(v), xp.real(v)[:, :1, :] * 0
    diagonal, beside = [], []
    for _ in range(steps(side)):
        u = xp.matmul(matrices, v)
        diagonal.append(xp.sum(xp.real(xp.conj(v) * u), axis=1, keepdims=True))
        u = u - diagonal[-1] * v - size * before
        size = xp.linalg.vector_norm(u, axis=1, keepdims=True)
        beside.append(size)
        before, v = v, u / xp.where(size > 0, size, xp.ones_like(size))
    found = (to_numpy(xp.concat(x, axis=1))[:, :, 0] for x in (diagonal, beside))
    return tops_of_tridiagonal(*found)
