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

from .._arrays.array import (
    Array,
    asarray_like,
    is_complex,
    is_host,
    namespace,
    to_complex,
    to_numpy,
)
from .._base import cached
from .._layer.stencil import Stencil

ROOTS = 4096  # of unity that are looked up
SEPARABLE = 25  # taps from which on a transform goes axis by axis
CACHED = 2**18  # numbers
WORKING_SET = 2**28  # bytes that the matrices of the frequencies in hand may take


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """Where the taps of a kernel stand, in polyphase order."""

    shifts: np.ndarray  # (taps, axes), the whole strides that a tap is away
    phases: tuple[slice, ...]  # the taps that belong to each polyphase component
    residues: np.ndarray  # (phases, axes), the sites that are left over
    order: np.ndarray  # (taps,) where each of them stands in the kernel


def pattern_of(stencil: Stencil) -> Pattern:
    """Where the taps of a stencil stand; the same object for the same question."""
    return _pattern(stencil.kernel, stencil.dilation, stencil.stride)


@cached(maxsize=256)
def _pattern(
    kernel: tuple[int, ...], dilation: tuple[int, ...], stride: tuple[int, ...]
) -> Pattern:
    taps = np.indices(kernel).reshape(len(kernel), -1).T
    shifts, phase = np.divmod(taps * dilation, stride)
    residues, label = np.unique(phase, axis=0, return_inverse=True)
    order = np.argsort(label.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(label.reshape(-1)))
    return Pattern(
        shifts=shifts[order],
        phases=tuple(slice(int(a), int(b)) for a, b in zip([0, *ends], ends)),
        residues=residues,
        order=order,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """The taps of a kernel in polyphase order, ready to be transformed."""

    weight: Array  # (taps, groups * out * into), complex
    pattern: Pattern
    channel_shape: tuple[int, int, int]  # (groups, out, in), channels per group

    @property
    def shifts(self) -> np.ndarray:
        return self.pattern.shifts

    @property
    def phases(self) -> tuple[slice, ...]:
        return self.pattern.phases

    @property
    def columns(self) -> int:
        """Columns of a symbol: the columns of phases that no tap meets are left out."""
        return len(self.phases) * self.channel_shape[2]

    @property
    def degree(self) -> np.ndarray:
        """The degree of the symbol as a trigonometric polynomial, per axis."""
        return self.shifts.max(axis=0)  # the first tap has shift 0


def taps_of(weight: Array, stencil: Stencil) -> Taps:
    """Sort the taps of `weight` into polyphase components."""
    xp = namespace(weight)
    pattern = pattern_of(stencil)
    flat = xp.reshape(weight, (-1, stencil.taps))
    sorted_taps = xp.stack([flat[:, int(t)] for t in pattern.order], axis=0)
    return Taps(
        weight=to_complex(sorted_taps),
        pattern=pattern,
        channel_shape=(stencil.groups, stencil.out_channels, stencil.in_channels),
    )


def common_steps(shifts: np.ndarray) -> np.ndarray:
    """What all shifts are multiples of, on each axis."""
    return np.maximum(np.gcd.reduce(shifts, axis=0), 1)


def phase_factors(
    shifts: np.ndarray, frequencies: np.ndarray, grid_sizes: np.ndarray
) -> np.ndarray:
    """exp(-2 pi i <f / grid_sizes, shift>): (frequencies, taps).

    The angle is reduced in whole numbers, so that it is exact for any dilation.
    """
    if frequencies.dtype.kind == "i" and max(grid_sizes) <= ROOTS:
        factors = np.ones(1)
        for f, shift, n in zip(frequencies.T, shifts.T, grid_sizes):
            if len(shift) < SEPARABLE:
                turned = _powers(f, shift, int(n))
            else:  # many taps share a shift on one axis
                distinct, place = np.unique(shift, return_inverse=True)
                turned = _powers(f, distinct, int(n))[:, place]
            factors = factors * turned
        return factors
    turns = 0.0
    for f, shift, n in zip(frequencies.T, shifts.T, grid_sizes):
        turns = turns + np.multiply.outer(f, shift) % n / n
    return np.exp(-2j * np.pi * turns)


def _powers(frequencies: np.ndarray, shifts: np.ndarray, n: int) -> np.ndarray:
    """The roots of unity that belong to frequencies and shifts on one axis."""
    if len(frequencies) <= n:
        return _roots(n)[np.multiply.outer(frequencies, shifts) % n]
    every = _roots(n)[np.multiply.outer(np.arange(n), shifts) % n]
    return every[frequencies % n]


@cached(maxsize=64)
def _roots(n: int) -> np.ndarray:
    """The roots of unity, clockwise from 1."""
    found = np.exp(-2j * np.pi * np.arange(n) / n)
    if n % 2 == 0:
        found[n // 2] = -1  # exactly, so that matrices are real that ought to be
    return found


def symbol(taps: Taps, phase: Array) -> Array:
    """The matrices of the frequencies with these phase factors.

    Returns
    -------
    array, shape (frequencies, groups, out, columns)
    """
    if is_host(phase) and len(taps.phases) == 1 and len(taps.shifts) >= SEPARABLE:
        return _axis_by_axis(taps, phase)
    xp = namespace(phase)
    parts = [
        xp.reshape(
            xp.matmul(phase[:, part], taps.weight[part, :]), (-1, *taps.channel_shape)
        )
        for part in taps.phases
    ]
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)


def _axis_by_axis(taps: Taps, phase: np.ndarray) -> np.ndarray:
    """The symbol along the first axis, then for each frequency there along the rest.

    For large kernels that takes a fraction of the steps.
    """
    first = len(np.unique(taps.shifts[:, 0]))
    rest = len(taps.shifts) // first
    entries = taps.weight.shape[1]
    starts, runs = runs_of(phase[:, ::rest])
    half_way = starts @ taps.weight.reshape(first, -1)
    half_way = half_way.reshape(len(starts), rest, entries)
    found = np.empty((len(phase), entries), half_way.dtype)
    for half, run in zip(half_way, runs):
        np.matmul(phase[run, :rest], half, out=found[run])
    return found.reshape(-1, *taps.channel_shape)


def runs_of(rows: Array) -> tuple[Array, list[slice]]:
    """The rows that differ from the one before, and how far each of them goes."""
    new = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1
    starts = [0, *new] if len(rows) else []
    return rows[starts], [slice(*x) for x in zip(starts, [*new, len(rows)])]


def fold_back(matrices: Array, taps: Taps, phase: Array) -> Array:
    """The adjoint of `symbol`: what these matrices contribute to each tap.

    Returns
    -------
    array, shape (taps, groups * out * into)
        In the order of `taps`.
    """
    xp = namespace(matrices)
    in_channels = taps.channel_shape[2]
    found = []
    for number, part in enumerate(taps.phases):
        columns = matrices[..., number * in_channels : (number + 1) * in_channels]
        flat = xp.reshape(columns, (matrices.shape[0], -1))
        back = xp.conj(xp.matrix_transpose(phase[:, part]))
        found.append(xp.matmul(back, flat))
    return found[0] if len(found) == 1 else xp.concat(found, axis=0)


def to_kernel(flat: Array, taps: Taps, weight: Array) -> Array:
    """Flat taps, (taps, -1), as a kernel shaped and typed like `weight`."""
    xp = namespace(weight)
    place = np.argsort(taps.pattern.order)
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
    grid_sizes: (
        np.ndarray
    )  # (axes,) frequencies per axis: f stands for f / grid_sizes cycles
    stands_for: np.ndarray  # (frequencies,) how many frequencies of the grid
    representative: np.ndarray  # (*grid,) which of them stands for each

    def __len__(self) -> int:
        return len(self.points)


@cached(maxsize=32)
def frequencies_of(
    pattern: Pattern, rows: tuple[int, ...], *, real: bool
) -> Frequencies:
    """The frequencies whose matrices have every singular value of the layer."""
    grid_sizes = np.array(rows)
    differs = np.any((pattern.shifts - pattern.shifts[0]) % grid_sizes, axis=0)
    index = np.indices(rows).reshape(len(rows), -1).T * differs
    number = np.ravel_multi_index(tuple(index.T), rows)
    if real:
        mirrored = np.ravel_multi_index(tuple((-index % grid_sizes).T), rows)
        number = np.minimum(number, mirrored)
    points, place, counts = np.unique(number, return_inverse=True, return_counts=True)
    return Frequencies(
        points=np.stack(np.unravel_index(points, rows), axis=-1),
        grid_sizes=grid_sizes,
        stands_for=counts,
        representative=place.reshape(rows),
    )


def block_size(entries: int) -> int:
    """Matrices of so many entries that stay in the cache together.

    An odd number of whole vectors: entries of a matrix that are a power of two apart
    would push each other out.
    """
    return 16 * (CACHED // (16 * entries) | 1)


def chunks(taps: Taps, count: int, *, copies: int = 4) -> list[slice]:
    """Slices over `count` frequencies, so that `copies` of their matrices fit."""
    groups, out, _ = taps.channel_shape
    bytes_each = 16 * copies * groups * max(out, taps.columns) * min(out, taps.columns)
    size = max(1, WORKING_SET // bytes_each)
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]


@cached(maxsize=4)
def grid_phases(pattern: Pattern, kept: Frequencies) -> np.ndarray:
    """The phase factors of all frequencies that are kept."""
    return phase_factors(pattern.shifts, kept.points, kept.grid_sizes)


def phase_like(taps: Taps, frequencies: np.ndarray, grid_sizes: np.ndarray) -> Array:
    """The phase factors in the library and precision of `taps`."""
    return asarray_like(
        taps.weight, phase_factors(taps.shifts, frequencies, grid_sizes)
    )


def matrix_at(
    taps: Taps, frequency: np.ndarray, group: int, grid_sizes: np.ndarray
) -> np.ndarray:
    """The matrix of one group at one frequency, as NumPy's."""
    matrices = symbol(taps, phase_like(taps, frequency[None], grid_sizes))
    return to_numpy(matrices[0, group, ...])
