"""Schur complements of t - D(f) on some directions of the channels, by frequency.

D(f) = [[0, H], [H^H, 0]] with the symbol H. Let h be H, or its adjoint if that has
fewer rows, y a vector of its rows and x one of its columns, q the directions of x that
are kept, and a the part of x along them. What of x is orthogonal to q has nothing but t
on the diagonal of t - D, and is eliminated at once. With z = h q, the complement on y
and a is

    [t - (h h^H - z z^H) / t,  -z]
    [          -z^H         ,   t].

Of y, all that is orthogonal to its own directions is eliminated by a Cholesky factor.
"""

from dataclasses import dataclass, replace

import numpy as np

from .._arrays.threads import spread
from .block import Block
from .block_rounding import SymbolRounding, off_orthonormal
from .schur import Basis, SchurComplement, eliminate

# What is added to the diagonal for an elimination, over t: see `eliminate`.
ADDED = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What does not depend on the threshold at a frequency."""

    gram: np.ndarray  # h h^H - z z^H
    z: np.ndarray
    size: float  # |h|_F


class KeptChannels:
    """Schur complements (frequencies, n, n): directions of outputs first.

    Attributes
    ----------
    distortion : float
        A factor of the bound, for a basis that is not quite orthonormal.
    """

    def __init__(self, block: Block, left: Basis, right: Basis) -> None:
        self.is_adjoint = len(left.vectors) > len(right.vectors)
        self.basis, other = (right, left) if self.is_adjoint else (left, right)
        self.block = block if self.is_adjoint else _in_basis(block, left.vectors)
        self.q, self.count = other.kept, left.count + right.count
        self.rounding = SymbolRounding.of(block.taps, self.basis.vectors, self.q)
        self.distortion = 1 + 2 * off_orthonormal(self.basis.vectors)
        self._known: list[_Known | None] = [None] * len(block.frequencies)

    def at(self, t: float) -> SchurComplement | None:
        """For this threshold; None if it is too low to hold beside the directions."""
        count, n = len(self._known), self.count
        matrices, lost = np.empty((count, n, n), complex), np.zeros(count)
        back = self.q.shape[1] if self.is_adjoint else 0

        def some(start: int, stop: int) -> None:
            for number in range(start, stop):
                if np.isinf(lost).any():
                    return
                known = self._known[number] or self._make(number)
                self._known[number] = known
                complement = eliminate(_on_rows(known, t), n, ADDED * t)
                if complement is None:
                    lost[number] = np.inf
                    return
                lost[number] = complement.lost + self.rounding.formed(known.size, t)
                matrices[number] = np.roll(complement.matrix, back, axis=(0, 1))

        spread(some, count)
        if np.isinf(lost).any():
            return None
        return SchurComplement(matrices, float(lost.max()) + self.rounding.symbol)

    def _make(self, number: int) -> _Known:
        h = self.block.matrix(number)
        if self.is_adjoint:
            h = self.basis.vectors.T @ h.conj().T
        re, im = np.real(h), np.imag(h)
        parts, mixed = np.concatenate([re, im], axis=1), im @ re.T
        z = re @ self.q + 1j * (im @ self.q)
        gram = parts @ parts.T + 1j * (mixed - mixed.T) - z @ z.conj().T
        return _Known(gram, z, float(np.linalg.norm(parts)))


def _in_basis(block: Block, vectors: np.ndarray) -> Block:
    """The same layer with its output in this basis."""
    taps = block.taps
    weight = np.real(taps.weight).reshape(-1, *taps.channel_shape[1:])
    weight = (vectors.T @ weight).reshape(len(weight), -1).astype(complex)
    return replace(block, taps=replace(taps, weight=weight))


def _on_rows(known: _Known, t: float) -> np.ndarray:
    """The matrix on y and a."""
    rows, side = len(known.gram), len(known.gram) + known.z.shape[1]
    found = np.empty((side, side), complex)
    found[:rows, :rows] = known.gram / -t
    found[:rows, rows:] = -known.z
    found[rows:, :rows] = -known.z.conj().T
    found[rows:, rows:] = 0.0
    found[np.diag_indices(side)] += t
    return found
