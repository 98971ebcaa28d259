"""The symbol on a whole grid by fast Fourier transforms: for one channel and many taps.

The kernel is wrapped around the grid first: taps that read one site are added up. (To
cut a kernel to the grid, as a padded transform does, would be another layer.) On axes
where all matrices are the same, the grid is taken to be of size 1: see `varying_sizes`.
"""

from collections.abc import Iterator

import numpy as np

from .symbol import Pattern, Taps, factors_needed, varying_sizes

# Phase factors per transform, from which on transforms take less time: measured on one
# axis and two, by a factor of 6, and of 2 where the sizes of the grid are primes.
FACTORS_PER_TRANSFORM = 16


def transform_pays(taps: Taps) -> bool:
    """Whether to transform the whole grid takes less time than to make phase factors.

    Only for matrices of one row or one column, whose singular value is their length.
    """
    return transform_count(taps.pattern, taps.channel_shape) > 0


def transform_count(pattern: Pattern, channel_shape: tuple[int, int, int]) -> int:
    """How many transforms that takes, one for each entry; 0 if it does not pay."""
    groups, out, in_channels = channel_shape
    columns = len(pattern.phases) * in_channels
    count = groups * out * columns
    pays = FACTORS_PER_TRANSFORM * count <= factors_needed(pattern)
    return count if min(out, columns) == 1 and pays else 0


def transforms(taps: Taps, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """The matrices of each group at all frequencies: (phases, out * in, *sizes)."""
    groups, out, in_channels = taps.channel_shape
    weight = taps.weight.reshape(-1, groups, out * in_channels)
    for group in range(groups):
        shape = (len(taps.phases), out * in_channels, *sizes)
        wrapped = np.zeros(shape, np.complex128)
        for part, component in zip(taps.phases, wrapped):
            where = tuple((taps.shifts[part] % sizes).T)
            for entry, own in zip(component, weight[part, group].T):
                np.add.at(entry, where, own)
        yield np.fft.fftn(wrapped, axes=range(2, wrapped.ndim))


def transformed_back(matrices: np.ndarray, taps: Taps, sizes: np.ndarray) -> np.ndarray:
    """What the matrices of a group contribute to each tap: (taps, out * in)."""
    found = np.fft.ifftn(matrices, axes=range(2, matrices.ndim))
    by_tap = [
        component[:, *(taps.shifts[part] % sizes).T].T
        for part, component in zip(taps.phases, found)
    ]
    return np.concatenate(by_tap)


def lengths(matrices: np.ndarray) -> np.ndarray:
    """The singular value of the matrix at each frequency: (*sizes,)."""
    squares = np.real(matrices) ** 2 + np.imag(matrices) ** 2
    return np.sqrt(np.sum(squares, axis=(0, 1)))


def lengths_at(
    taps: Taps, frequencies: np.ndarray, grid_sizes: np.ndarray
) -> np.ndarray:
    """The values at some frequencies, those that stand for a grid.

    Returns
    -------
    array, shape (frequencies, groups, 1)
        In the precision of `taps`.
    """
    shape = (len(frequencies), taps.channel_shape[0], 1)
    values = np.empty(shape, taps.weight.real.dtype)
    sizes = varying_sizes(taps.pattern, grid_sizes)
    for group, matrices in enumerate(transforms(taps, sizes)):
        values[:, group, 0] = lengths(matrices)[tuple(frequencies.T)]
    return values
