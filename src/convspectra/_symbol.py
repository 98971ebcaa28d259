"""A layer on a torus as one small matrix per frequency, and back to the kernel.

On the torus the convolution is block diagonal in the Fourier basis. With stride s the
columns fall into s classes on each axis (the polyphase components), and what a class
contributes is again a convolution without stride: with tap t at dilation * t =
s * shift + phase, the matrix of frequency f has for each phase the columns

    sum over the taps t of that phase of weight[:, :, t] * exp(-2 pi i <f, shift / m>)

where m = grid / s. This is unitarily equivalent to the s frequencies that alias into f
standing side by side, but smaller: phases that no tap meets are left out.
"""

from dataclasses import dataclass

import numpy as np

from ._array import Array, is_complex, like, namespace, to_complex
from ._stencil import Stencil

WORKING_SET = 2**28  # bytes that the matrices of the frequencies in hand may take


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """The taps of a kernel in polyphase order, ready to be transformed."""

    weight: Array  # (taps, groups * out * into), complex
    shifts: np.ndarray  # (taps, axes), the whole strides that a tap is away
    phases: tuple[slice, ...]  # the taps that belong to each polyphase component
    residues: np.ndarray  # (phases, axes), the sites that are left over
    order: np.ndarray  # (taps,) where each of them stands in the kernel
    block: tuple[int, int, int]  # (groups, out, into)

    @property
    def columns(self) -> int:
        """Columns of a symbol: the columns of phases that no tap meets are left out."""
        return len(self.phases) * self.block[2]

    @property
    def degree(self) -> np.ndarray:
        """The degree of the symbol as a trigonometric polynomial, per axis."""
        return self.shifts.max(axis=0)  # the first tap has shift 0


def taps_of(weight: Array, stencil: Stencil) -> Taps:
    """Sort the taps of `weight` into polyphase components."""
    xp = namespace(weight)
    taps = np.indices(stencil.kernel).reshape(len(stencil.kernel), -1).T
    shifts, phase = np.divmod(taps * stencil.dilation, stencil.stride)
    residues, label = np.unique(phase, axis=0, return_inverse=True)
    order = np.argsort(label.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(label.reshape(-1)))
    flat = xp.reshape(to_complex(weight), (-1, stencil.taps))
    moved = xp.stack([flat[:, int(t)] for t in order], axis=0)
    return Taps(
        weight=moved,
        shifts=shifts[order],
        phases=tuple(slice(int(a), int(b)) for a, b in zip([0, *ends], ends)),
        residues=residues,
        order=order,
        block=(stencil.groups, stencil.out, stencil.into),
    )


def phase_factors(
    shifts: np.ndarray, frequencies: np.ndarray, parts: np.ndarray
) -> np.ndarray:
    """exp(-2 pi i <f / parts, shift>) for each frequency and tap: (frequencies, taps).

    The angle is reduced in whole numbers, so that it is exact for any dilation.
    """
    turns = 0.0
    for f, shift, n in zip(frequencies.T, shifts.T, parts):
        turns = turns + np.multiply.outer(f, shift) % n / n
    return np.exp(-2j * np.pi * turns)


def symbol(taps: Taps, phase: Array) -> Array:
    """The matrices of the frequencies with these phase factors.

    Returns
    -------
    array, shape (frequencies, groups, out, columns)
    """
    xp = namespace(phase)
    parts = [
        xp.reshape(xp.matmul(phase[:, part], taps.weight[part, :]), (-1, *taps.block))
        for part in taps.phases
    ]
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)


def fold_back(matrices: Array, taps: Taps, phase: Array) -> Array:
    """The adjoint of `symbol`: what these matrices contribute to each tap.

    Returns
    -------
    array, shape (taps, groups * out * into)
        In the order of `taps`.
    """
    xp = namespace(matrices)
    into = taps.block[2]
    found = []
    for number, part in enumerate(taps.phases):
        columns = matrices[..., number * into : (number + 1) * into]
        flat = xp.reshape(columns, (matrices.shape[0], -1))
        back = xp.conj(xp.matrix_transpose(phase[:, part]))
        found.append(xp.matmul(back, flat))
    return found[0] if len(found) == 1 else xp.concat(found, axis=0)


def to_kernel(flat: Array, taps: Taps, weight: Array) -> Array:
    """Flat taps, (taps, -1), as a kernel shaped and typed like `weight`."""
    xp = namespace(weight)
    place = np.argsort(taps.order)
    moved = xp.stack([flat[int(t), :] for t in place], axis=-1)
    moved = moved if is_complex(weight) else xp.real(moved)
    return xp.astype(xp.reshape(moved, weight.shape), weight.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    """A set of frequencies that stands for the whole grid of them.

    Real kernels have conjugate matrices at f and -f, and an axis on which all taps
    share one shift has the same values everywhere: one of each suffices.
    """

    points: np.ndarray  # (frequencies, axes)
    parts: np.ndarray  # (axes,) frequencies per axis: f stands for f / parts turns
    stands_for: np.ndarray  # (frequencies,) how many frequencies of the grid
    place: np.ndarray  # (*grid,) which of them stands for each

    def __len__(self) -> int:
        return len(self.points)


def frequencies_of(taps: Taps, rows: tuple[int, ...], *, real: bool) -> Frequencies:
    """The frequencies whose matrices have every singular value of the layer."""
    parts = np.array(rows)
    differs = np.any((taps.shifts - taps.shifts[0]) % parts, axis=0)
    index = np.indices(rows).reshape(len(rows), -1).T * differs
    number = np.ravel_multi_index(tuple(index.T), rows)
    if real:
        mirrored = np.ravel_multi_index(tuple((-index % parts).T), rows)
        number = np.minimum(number, mirrored)
    points, place, counts = np.unique(number, return_inverse=True, return_counts=True)
    return Frequencies(
        points=np.stack(np.unravel_index(points, rows), axis=-1),
        parts=parts,
        stands_for=counts,
        place=place.reshape(rows),
    )


def chunks(taps: Taps, count: int, *, copies: int = 4) -> list[slice]:
    """Slices over `count` frequencies, so that `copies` of their matrices fit."""
    groups, out, _ = taps.block
    bytes_each = 16 * copies * groups * max(out, taps.columns) * min(out, taps.columns)
    size = max(1, WORKING_SET // bytes_each)
    return [slice(start, start + size) for start in range(0, count, size)]


def phase_like(taps: Taps, frequencies: np.ndarray, parts: np.ndarray) -> Array:
    """The phase factors in the library and precision of `taps`."""
    return like(taps.weight, phase_factors(taps.shifts, frequencies, parts))
