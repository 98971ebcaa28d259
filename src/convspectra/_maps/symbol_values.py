"""The singular values of the matrices of many frequencies, by our own kernels."""

from collections.abc import Callable

import numpy as np

from .._arrays.array import Array
from .._arrays.threads import cores, spread
from .symbol import (
    PlanarTaps,
    Taps,
    block_size,
    chunks,
    phase_like,
    symbol,
)

LANES_SIDE = 128  # the largest matrices of which a vector's worth stays in the cache
LEAST = 4  # matrices that are worth a vector
WORTHWHILE = 2**18  # steps of decompositions that are worth a thread,
WORTHWHILE_IN_LANES = 2**20  # and of those in lanes


def values_at(
    taps: Taps, frequencies: np.ndarray, grid_sizes: np.ndarray
) -> np.ndarray:
    """The values of NumPy's `taps`, in their precision: (frequencies, groups, side)."""
    groups, out, _ = taps.channel_shape
    shape = (len(frequencies), groups, min(out, taps.columns))
    values = np.empty(shape, taps.weight.real.dtype)
    if len(frequencies) * groups >= LEAST and shape[-1] <= LANES_SIDE:
        planar = PlanarTaps(taps)
        set_values(planar, planar.phases(frequencies, grid_sizes), values)
    else:
        for part in chunks(taps, len(frequencies)):
            phase = phase_like(taps, frequencies[part], grid_sizes)
            values[part] = _one_by_one(symbol(taps, phase))
    return values


def set_values(planar: PlanarTaps, phases: Array, found: np.ndarray) -> None:
    """Set `found` to the values of small matrices, in the lanes of vectors."""
    from .._compiled.svdvals import values_of_many

    _, groups, side = found.shape

    def some(part: slice, re: np.ndarray, im: np.ndarray) -> None:
        if re.shape[0] < re.shape[1]:
            re, im = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (re, im))
        values = np.empty((side, re.shape[2]), re.dtype)
        values_of_many(re, im, values, 0, re.shape[2])
        found[part] = values.T.reshape(-1, groups, side)

    spread_symbols(some, planar, phases)


def spread_symbols(
    work: Callable[[slice, np.ndarray, np.ndarray], None],
    planar: PlanarTaps,
    phases: Array,
) -> None:
    """Call work(part of the frequencies, real parts, imaginary parts), in threads.

    The matrices are (out, columns, frequencies * groups), as `PlanarTaps` has them.
    """
    groups, out, _ = planar.taps.channel_shape
    columns = planar.taps.columns
    size, side = block_size(out * columns * groups), min(out, columns)
    share = max(len(phases) // cores(), WORTHWHILE_IN_LANES // (groups * side**3))
    size = min(size, 16 * (share // 16 + 1))  # for no thread to be left without work

    def some(start: int, stop: int) -> None:
        for first in range(start, stop, size):
            part = slice(first, min(first + size, stop))
            work(part, *planar.symbol(phases[part], 1))

    spread(some, len(phases), least=size)


def _one_by_one(matrices: Array) -> np.ndarray:
    """The values of large matrices, (frequencies, groups, rows, columns)."""
    from .._compiled.svdvals import values_of_large

    flat = matrices.reshape(-1, *matrices.shape[-2:])
    if flat.shape[1] < flat.shape[2]:
        flat = flat.swapaxes(1, 2)
    re, im = np.ascontiguousarray(flat.real), np.ascontiguousarray(flat.imag)
    found = np.empty((len(flat), flat.shape[2]), re.dtype)
    least = 1 + WORTHWHILE // found.shape[1] ** 3
    spread(
        lambda start, stop: values_of_large(re, im, found, start, stop),
        len(flat),
        least=least,
    )
    return found.reshape(*matrices.shape[:2], -1)
