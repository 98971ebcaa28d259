"""A layer on a torus as one small matrix per frequency, and back to the kernel.

On the torus the convolution is block diagonal in the Fourier basis. With stride s the
columns fall into s classes on each axis, the polyphase components, and each class is
read by a convolution without stride: with tap t at dilation * t = s * shift + phase,
the matrix of frequency f has for each phase the columns

    sum over the taps t of that phase of weight[:, :, t] * exp(-2 pi i <f, shift / m>)

where m = grid / s. This is unitarily equivalent to the matrices of the s frequencies
that alias into f, side by side, but smaller: phases without a tap are left out.
"""

import math
from collections.abc import Sequence
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

# Largest grid size for which the roots of unity are tabulated.
ROOTS = 4096
# Fewest taps for which transforming axis by axis takes less time.
SEPARABLE = 25
# Entries of matrices, batch last, that stay in the cache together.
CACHED_ENTRIES = 2**18
# Bytes that the matrices of the frequencies in hand may take.
WORKING_SET = 2**28
# Points of a grid and bytes of phase factors up to which these are kept between calls:
# for larger ones, which are few, to compute them again takes a small part of a job.
KEPT_POINTS, KEPT_BYTES = 2**18, 2**24


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """Positions of the taps of a kernel, in polyphase order."""

    shifts: np.ndarray  # (taps, axes), the tap's position in whole strides
    phases: tuple[slice, ...]  # the taps of each polyphase component
    residues: np.ndarray  # (phases, axes), positions modulo the stride
    order: np.ndarray  # (taps,) index of each tap in the kernel


def pattern_of(stencil: Stencil) -> Pattern:
    """The pattern of a stencil.

    Cached: equal arguments give the identical object, on whose identity other caches
    are keyed.
    """
    return _pattern(stencil.kernel, stencil.dilation, stencil.stride)


@cached(maxsize=256)
def _pattern(
    kernel: tuple[int, ...], dilation: tuple[int, ...], stride: tuple[int, ...]
) -> Pattern:
    taps = np.indices(kernel).reshape(len(kernel), -1).T
    shifts, phase = np.divmod(taps * dilation, stride)
    residues, label = np.unique(phase, axis=0, return_inverse=True)
    order = np.argsort(label.reshape(-1), kind="stable")
    stops = np.cumsum(np.bincount(label.reshape(-1)))
    return Pattern(
        shifts=shifts[order],
        phases=tuple(slice(int(a), int(b)) for a, b in zip([0, *stops], stops)),
        residues=residues,
        order=order,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """The taps of a kernel in polyphase order, ready to be transformed."""

    weight: Array  # (taps, groups * out * in), complex
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
        """Columns of a symbol, those of phases without a tap left out."""
        return len(self.phases) * self.channel_shape[2]

    @property
    def degree(self) -> np.ndarray:
        """The degree of the symbol as a trigonometric polynomial, per axis."""
        return self.shifts.max(axis=0)  # the first tap has shift 0


def taps_of(weight: Array, stencil: Stencil) -> Taps:
    """Sort the taps of `weight` into polyphase components."""
    xp, pattern = namespace(weight), pattern_of(stencil)
    flat = xp.reshape(weight, (-1, stencil.taps))
    sorted_taps = xp.stack([flat[:, int(t)] for t in pattern.order], axis=0)
    return Taps(
        weight=to_complex(sorted_taps),
        pattern=pattern,
        channel_shape=(stencil.groups, stencil.out_channels, stencil.in_channels),
    )


def first_axis_taps(pattern: Pattern) -> int:
    """Taps along the first axis, if transforming it first takes less time; else 1."""
    if len(pattern.phases) > 1 or len(pattern.shifts) < SEPARABLE:
        return 1
    first = len(np.unique(pattern.shifts[:, 0]))
    return first if first < len(pattern.shifts) else 1


def factors_needed(pattern: Pattern) -> int:
    """Phase factors that a frequency of a real kernel needs."""
    first = first_axis_taps(pattern)
    taps = len(pattern.shifts)
    return first + taps // first if first > 1 else taps


def common_steps(shifts: np.ndarray) -> np.ndarray:
    """The largest step that all shifts are multiples of, on each axis."""
    return np.maximum(np.gcd.reduce(shifts, axis=0), 1)


def phase_factors(
    shifts: np.ndarray, frequencies: np.ndarray, grid_sizes: np.ndarray
) -> np.ndarray:
    """exp(-2 pi i <f / grid_sizes, shift>): (frequencies, taps).

    Angles are reduced in whole numbers, so that they are exact for any dilation.
    """
    if frequencies.dtype.kind == "i" and max(grid_sizes) <= ROOTS:
        factors = np.ones(1)
        for f, shift, n in zip(frequencies.T, shifts.T, grid_sizes):
            if len(shift) < SEPARABLE:
                powers = _powers(f, shift, int(n))
            else:  # many taps share a shift on one axis
                distinct, index = np.unique(shift, return_inverse=True)
                powers = _powers(f, distinct, int(n))[:, index]
            factors = factors * powers
        return factors
    cycles = 0.0
    for f, shift, n in zip(frequencies.T, shifts.T, grid_sizes):
        cycles = cycles + np.multiply.outer(f, shift) % n / n
    return np.exp(-2j * np.pi * cycles)


def _powers(frequencies: np.ndarray, shifts: np.ndarray, n: int) -> np.ndarray:
    """exp(-2 pi i f shift / n) for all frequencies and shifts of one axis."""
    if len(frequencies) <= n:
        return _roots(n)[np.multiply.outer(frequencies, shifts) % n]
    every = _roots(n)[np.multiply.outer(np.arange(n), shifts) % n]
    return every[frequencies % n]


@cached(maxsize=64)
def _roots(n: int) -> np.ndarray:
    """The roots of unity, clockwise from 1."""
    roots = np.exp(-2j * np.pi * np.arange(n) / n)
    if n % 2 == 0:
        roots[n // 2] = -1  # exactly, so that real matrices come out real
    return roots


def symbol(taps: Taps, phase: Array) -> Array:
    """The matrices of the frequencies with these phase factors.

    Returns
    -------
    array, shape (frequencies, groups, out, columns)
    """
    if is_host(phase) and (first := first_axis_taps(taps.pattern)) > 1:
        return _axis_by_axis(taps, phase, first)
    xp = namespace(phase)
    parts = [
        xp.reshape(
            xp.matmul(phase[:, part], taps.weight[part, :]), (-1, *taps.channel_shape)
        )
        for part in taps.phases
    ]
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)


def _axis_by_axis(taps: Taps, phase: np.ndarray, first: int) -> np.ndarray:
    """The symbol along the first axis, then for each frequency there along the rest.

    For large kernels that takes a fraction of the multiplications.
    """
    rest = len(taps.shifts) // first
    entries = taps.weight.shape[1]
    starts, runs = runs_of(phase[:, ::rest])
    partial = starts @ taps.weight.reshape(first, -1)
    partial = partial.reshape(len(starts), rest, entries)
    matrices = np.empty((len(phase), entries), partial.dtype)
    for taps_of_run, run in zip(partial, runs):
        np.matmul(phase[run, :rest], taps_of_run, out=matrices[run])
    return matrices.reshape(-1, *taps.channel_shape)


def runs_of(rows: Array) -> tuple[Array, list[slice]]:
    """The rows that differ from the one before, and the run of equal rows of each."""
    new = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1
    starts = [0, *new] if len(rows) else []
    return rows[starts], [slice(*x) for x in zip(starts, [*new, len(rows)])]


def fold_back(matrices: Array, taps: Taps, phase: Array) -> Array:
    """The adjoint of `symbol`: what these matrices contribute to each tap.

    Returns
    -------
    array, shape (taps, groups * out * in)
        In the order of `taps`.
    """
    xp = namespace(matrices)
    in_channels = taps.channel_shape[2]
    by_tap = []
    for number, part in enumerate(taps.phases):
        columns = matrices[..., number * in_channels : (number + 1) * in_channels]
        flat = xp.reshape(columns, (matrices.shape[0], -1))
        back = xp.conj(xp.matrix_transpose(phase[:, part]))
        by_tap.append(xp.matmul(back, flat))
    return by_tap[0] if len(by_tap) == 1 else xp.concat(by_tap, axis=0)


def to_kernel(flat: Array, taps: Taps, weight: Array) -> Array:
    """Flat taps, (taps, -1), as a kernel shaped and typed like `weight`."""
    xp = namespace(weight)
    in_kernel = np.argsort(taps.pattern.order)
    kernel = xp.stack([flat[int(t), :] for t in in_kernel], axis=-1)
    kernel = kernel if is_complex(weight) else xp.real(kernel)
    return xp.astype(xp.reshape(kernel, weight.shape), weight.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    """Frequencies whose matrices have all the singular values of the whole grid.

    Real kernels have conjugate matrices at f and -f, and on an axis where all taps have
    the same shift, values do not depend on the frequency: one of each suffices.
    """

    points: np.ndarray  # (frequencies, axes)
    grid_sizes: np.ndarray  # (axes,): f stands for f / grid_sizes cycles
    stands_for: np.ndarray  # (frequencies,) how many of the grid each stands for
    representative: np.ndarray  # (*grid,) which of them stands for a frequency

    def __len__(self) -> int:
        return len(self.points)


def frequencies_of(
    pattern: Pattern, rows: tuple[int, ...], *, real: bool
) -> Frequencies:
    """The frequencies whose matrices have every singular value of the layer."""
    find = _kept_frequencies if math.prod(rows) <= KEPT_POINTS else _frequencies
    return find(pattern, rows, real)


def _frequencies(pattern: Pattern, rows: tuple[int, ...], real: bool) -> Frequencies:
    axes = [np.arange(n) % m for n, m in zip(rows, varying_sizes(pattern, rows))]
    # Of all frequencies with the same values, the one with the smallest number.
    first = np.ravel_multi_index(np.ix_(*axes), rows)
    if real:
        opposite = np.ix_(*(-f % n for f, n in zip(axes, rows)))
        first = np.minimum(first, np.ravel_multi_index(opposite, rows))
    counts = np.bincount(first.reshape(-1))
    points = np.flatnonzero(counts)
    index = np.empty_like(counts)
    index[points] = np.arange(len(points))
    return Frequencies(
        points=np.stack(np.unravel_index(points, rows), axis=-1),
        grid_sizes=np.array(rows),
        stands_for=counts[points],
        representative=index[first],
    )


@cached(maxsize=32)
def _kept_frequencies(
    pattern: Pattern, rows: tuple[int, ...], real: bool
) -> Frequencies:
    return _frequencies(pattern, rows, real)


def count_frequencies(pattern: Pattern, rows: tuple[int, ...], *, real: bool) -> int:
    """How many `frequencies_of` would return, without listing them."""
    points = varying_sizes(pattern, rows).tolist()
    return count_up_to_conjugates(points) if real else math.prod(points)


def count_up_to_conjugates(points: Sequence[int]) -> int:
    """The frequencies of a grid, where f and -f count as one."""
    self_conjugate = math.prod(2 - n % 2 for n in points)
    return (math.prod(points) + self_conjugate) // 2


def varying_sizes(pattern: Pattern, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """The sizes of a grid, but 1 for axes on which matrices are all the same.

    But for a factor of size 1: there all taps have the same shift.
    """
    shifts = pattern.shifts - pattern.shifts[0]
    return np.where(np.any(shifts % np.array(rows), axis=0), rows, 1)


def block_size(entries: int) -> int:
    """How many matrices of so many entries, batch last, stay in the cache together.

    An odd number of vectors of 16: entries of a matrix would evict each other from the
    cache if they were a power of two apart.
    """
    return 16 * (CACHED_ENTRIES // (16 * entries) | 1)


def chunks(taps: Taps, count: int, *, copies: int = 4) -> list[slice]:
    """Slices over `count` frequencies: `copies` of their matrices and phases fit."""
    groups, out, _ = taps.channel_shape
    numbers_each = groups * out * taps.columns + len(taps.shifts)
    return slices(count, WORKING_SET // (16 * copies * numbers_each))


def slices(count: int, most: int) -> list[slice]:
    """Slices over `count` frequencies, of at most so many, but at least one each."""
    size = max(1, most)
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]


def grid_phases(pattern: Pattern, frequencies: Frequencies) -> np.ndarray:
    """The phase factors of the frequencies that stand for a grid."""
    are_kept = phases_are_kept(pattern, frequencies)
    return (_kept_phases if are_kept else _phases)(pattern, frequencies)


def phases_are_kept(pattern: Pattern, frequencies: Frequencies) -> bool:
    """Whether the phase factors of a grid are so few that they are kept."""
    size = 16 * len(frequencies) * len(pattern.shifts)
    return size <= KEPT_BYTES and frequencies.representative.size <= KEPT_POINTS


def _phases(pattern: Pattern, frequencies: Frequencies) -> np.ndarray:
    return phase_factors(pattern.shifts, frequencies.points, frequencies.grid_sizes)


@cached(maxsize=4)
def _kept_phases(pattern: Pattern, frequencies: Frequencies) -> np.ndarray:
    return _phases(pattern, frequencies)


def phase_like(taps: Taps, frequencies: np.ndarray, grid_sizes: np.ndarray) -> Array:
    """The phase factors in the library and precision of `taps`."""
    phases = phase_factors(taps.shifts, frequencies, grid_sizes)
    return asarray_like(taps.weight, phases)


def matrix_at(
    taps: Taps, frequency: np.ndarray, group: int, grid_sizes: np.ndarray
) -> np.ndarray:
    """The matrix of one group at one frequency, as NumPy's."""
    matrices = symbol(taps, phase_like(taps, frequency[None], grid_sizes))
    return to_numpy(matrices[0, group, ...])
