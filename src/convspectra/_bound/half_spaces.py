"""Half-spaces <g, K> <= c of kernels K: with g the real part of phase* B.

B is a matrix for one frequency, with nuclear norm 1, in polyphase components: columns
that belong to the same taps. Small matrices are kept whole. Large ones of low rank are
sums of l r^H; those of a frequency are added up before they go to the taps.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from .._arrays.array import Array
from .._maps.symbol import Taps


class HalfSpaces(Protocol):
    """Some of them, in order."""

    def products(self, other: Self, taps: Taps) -> np.ndarray:
        """The inner products of the kernels g with those of others."""
        ...

    def change(self, x: np.ndarray, taps: Taps) -> np.ndarray:
        """The sum of x_j g_j: (taps, out * in)."""
        ...

    def only(self, own: np.ndarray) -> Self:
        """Those of a mask."""
        ...

    def joined(self, other: Self) -> Self:
        """These, and then the others."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Matrices:
    """Real and imaginary parts of B, (count, out * in) for each polyphase component."""

    re: list[np.ndarray]
    im: list[np.ndarray]
    phase: Array


@dataclass(frozen=True, slots=True, eq=False)
class DenseHalfSpaces:
    """Of whole matrices. They stay where they are when others join them."""

    pieces: tuple[_Matrices, ...]

    @classmethod
    def of(cls, parts: Array, phase: np.ndarray, taps: Taps) -> Self:
        """Those of matrices (count, out, columns)."""
        columns = taps.channel_shape[2]
        flat = [
            parts[:, :, columns * i : columns * (i + 1)].reshape(len(parts), -1)
            for i in range(len(taps.phases))
        ]
        re = [np.ascontiguousarray(x.real, np.float32) for x in flat]
        im = [np.ascontiguousarray(x.imag, np.float32) for x in flat]
        return cls((_Matrices(re, im, phase),))

    def gains(self, kernel: np.ndarray, taps: Taps) -> np.ndarray:
        """<g, K> for a kernel (taps, out * in)."""
        single, found = kernel.astype(np.float32), []
        for piece in self.pieces:
            total = np.zeros(len(piece.phase))
            for own, re, im in zip(taps.phases, piece.re, piece.im):
                phase: Array = piece.phase[:, own].astype(np.complex64)
                total += np.vecdot(re, phase.real @ single[own])
                total += np.vecdot(im, phase.imag @ single[own])
            found.append(total)
        return np.concatenate(found)

    def divided(self, by: np.ndarray) -> Self:
        """With g_j over by_j."""
        pieces = [
            _Matrices(
                [x / own[:, None].astype(np.float32) for x in piece.re],
                [x / own[:, None].astype(np.float32) for x in piece.im],
                piece.phase,
            )
            for piece, own in zip(self.pieces, self._split(by))
        ]
        return type(self)(tuple(pieces))

    def products(self, other: Self, taps: Taps) -> np.ndarray:
        return np.block(
            [[_dense_products(a, b, taps) for b in other.pieces] for a in self.pieces]
        )

    def change(self, x: np.ndarray, taps: Taps) -> np.ndarray:
        found = np.zeros(taps.weight.shape)
        for piece, own in zip(self.pieces, self._split(x)):
            found += _to_taps(piece.re, piece.im, piece.phase * own[:, None], taps)
        return found

    def only(self, own: np.ndarray) -> Self:
        pieces = [
            piece
            if mask.all()
            else _Matrices(
                [x[mask] for x in piece.re],
                [x[mask] for x in piece.im],
                piece.phase[mask],
            )
            for piece, mask in zip(self.pieces, self._split(own))
        ]
        return type(self)(tuple(pieces))

    def joined(self, other: Self) -> Self:
        return type(self)((*self.pieces, *other.pieces))

    def _split(self, values: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([len(piece.phase) for piece in self.pieces])
        return np.split(values, ends[:-1])


def _dense_products(a: _Matrices, b: _Matrices, taps: Taps) -> np.ndarray:
    found = np.zeros((len(a.phase), len(b.phase)))
    for own, ar, ai, br, bi in zip(taps.phases, a.re, a.im, b.re, b.im):
        rr, ii, ri, ir = ar @ br.T, ai @ bi.T, ar @ bi.T, ai @ br.T
        found += _of_real_parts(
            rr + ii + 1j * (ir - ri),
            rr - ii + 1j * (ir + ri),
            a.phase[:, own],
            b.phase[:, own],
        )
    return found


def _of_real_parts(
    conjugated: np.ndarray, plain: np.ndarray, p: np.ndarray, q: np.ndarray
) -> np.ndarray:
    """Inner products of Re p* A and Re q* B, from the sums of A B* and of A B.

    Of complex numbers, Re x Re y = Re (x y* + x y) / 2.
    """
    p = p.conj()
    return np.real(conjugated * (p @ q.T) + plain * (p @ q.conj().T)) / 2


def _to_taps(
    re: list[np.ndarray], im: list[np.ndarray], phase: Array, taps: Taps
) -> np.ndarray:
    """The real part of the sum of phase* B: (taps, out * in)."""
    cos, sin = phase.real.astype(np.float32), phase.imag.astype(np.float32)
    return np.concatenate(
        [
            cos[:, own].T @ a + sin[:, own].T @ b
            for own, a, b in zip(taps.phases, re, im)
        ]
    )


@dataclass(frozen=True, slots=True, eq=False)
class LowRankHalfSpaces:
    """Of sums of l r^H.

    Attributes
    ----------
    left, right : array, shape (terms, out or columns)
    owner : array, shape (terms,)
        The half-space that a term belongs to, ascending; each has one.
    phase : array, shape (half-spaces, taps)
    frequency : array, shape (half-spaces,)
        Numbers of the frequencies.
    """

    left: np.ndarray
    right: np.ndarray
    owner: np.ndarray
    phase: np.ndarray
    frequency: np.ndarray

    def products(self, other: Self, taps: Taps) -> np.ndarray:
        conj = other.left.conj()
        l_conjugated, l_plain = self.left @ conj.T, self.left @ other.left.T
        found = np.zeros((len(self.phase), len(other.phase)))
        for own, a, b in zip(
            taps.phases, _components(self.right, taps), _components(other.right, taps)
        ):
            a = a.conj()
            conjugated = self._sums(l_conjugated * (a @ b.T), other)
            plain = self._sums(l_plain * (a @ b.conj().T), other)
            found += _of_real_parts(
                conjugated, plain, self.phase[:, own], other.phase[:, own]
            )
        return found

    def change(self, x: np.ndarray, taps: Taps) -> np.ndarray:
        left = self.left * x[self.owner, None].astype(np.float32)
        by_frequency = self.frequency[self.owner]
        kept, first = np.unique(self.frequency, return_index=True)
        sums = np.empty((len(kept), left.shape[1], self.right.shape[1]), left.dtype)
        for number, one in zip(kept, sums):
            terms = by_frequency == number
            np.matmul(left[terms].T, self.right[terms].conj(), out=one)
        whole = DenseHalfSpaces.of(sums, self.phase[first], taps)
        return whole.change(np.ones(len(kept)), taps)

    def only(self, own: np.ndarray) -> Self:
        if own.all():
            return self
        terms, number = own[self.owner], np.cumsum(own) - 1
        return type(self)(
            self.left[terms],
            self.right[terms],
            number[self.owner[terms]],
            self.phase[own],
            self.frequency[own],
        )

    def joined(self, other: Self) -> Self:
        return type(self)(
            np.concatenate([self.left, other.left]),
            np.concatenate([self.right, other.right]),
            np.concatenate([self.owner, other.owner + len(self.phase)]),
            np.concatenate([self.phase, other.phase]),
            np.concatenate([self.frequency, other.frequency]),
        )

    def _sums(self, terms: np.ndarray, other: Self) -> np.ndarray:
        """Over the terms of each half-space, here and there."""
        if not terms.size:
            return np.zeros((len(self.phase), len(other.phase)))
        rows = np.add.reduceat(terms, self._first(), axis=0)
        return np.add.reduceat(rows, other._first(), axis=1)

    def _first(self) -> np.ndarray:
        return np.searchsorted(self.owner, np.arange(len(self.phase)))


def _components(right: np.ndarray, taps: Taps) -> list[np.ndarray]:
    n = taps.channel_shape[2]
    return [right[:, n * i : n * (i + 1)] for i in range(len(taps.phases))]
