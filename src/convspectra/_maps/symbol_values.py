"""Singular values of the symbol's matrices at many frequencies, by our own routines."""

from collections.abc import Callable

import numpy as np

from .._arrays.array import Array
from .._arrays.threads import cores, spread
from .split_complex import BatchedSymbols
from .symbol import Taps, block_size, chunks, phase_like, slices, symbol

# The largest side of which a vector's worth of matrices stays in the cache, and the
# fewest matrices that are worth a vector.
BATCHED_VALUES_SIDE, BATCHED_COUNT = 128, 4
# Phase factors that are made together: 4 MB, which the cache mostly holds.
PHASE_FACTORS = 2**18
# Products that are worth a thread: sides cubed, of matrices one by one and in batches.
THREAD_PRODUCTS, BATCHED_THREAD_PRODUCTS = 2**18, 2**20


def values_at(
    taps: Taps, frequencies: np.ndarray, grid_sizes: np.ndarray
) -> np.ndarray:
    """The values of NumPy's `taps`, in their precision: (frequencies, groups, side)."""
    groups, out, _ = taps.channel_shape
    shape = (len(frequencies), groups, min(out, taps.columns))
    values = np.empty(shape, taps.weight.real.dtype)
    if len(frequencies) * groups >= BATCHED_COUNT and shape[-1] <= BATCHED_VALUES_SIDE:
        symbols = BatchedSymbols(taps)
        most = PHASE_FACTORS // len(symbols.taps_needed)
        for part in slices(len(frequencies), most):
            phases = symbols.phases(frequencies[part], grid_sizes)
            set_values(symbols, phases, values[part])
    else:
        for part in chunks(taps, len(frequencies)):
            phase = phase_like(taps, frequencies[part], grid_sizes)
            values[part] = _values_one_by_one(symbol(taps, phase))
    return values


def set_values(symbols: BatchedSymbols, phases: Array, values: np.ndarray) -> None:
    """Set `values`, (frequencies, groups, side), to those of small matrices."""
    from .._compiled.svdvals import values_of_many

    _, groups, side = values.shape

    def decompose(part: slice, re: np.ndarray, im: np.ndarray) -> None:
        if re.shape[0] < re.shape[1]:
            re, im = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (re, im))
        batch = np.empty((side, re.shape[2]), re.dtype)
        values_of_many(re, im, batch, 0, re.shape[2])
        values[part] = batch.T.reshape(-1, groups, side)

    spread_symbols(decompose, symbols, phases)


def spread_symbols(
    work: Callable[[slice, np.ndarray, np.ndarray], None],
    symbols: BatchedSymbols,
    phases: Array,
) -> None:
    """Call work(part of the frequencies, real parts, imaginary parts), in threads.

    The matrices are those of `BatchedSymbols.at`; `work` may overwrite them.
    """
    groups, out, _ = symbols.taps.channel_shape
    columns = symbols.taps.columns
    size, side = block_size(out * columns * groups), min(out, columns)
    share = max(len(phases) // cores(), BATCHED_THREAD_PRODUCTS // (groups * side**3))
    size = min(size, 16 * (share // 16 + 1))  # so that no thread is left without work
    # One for each thread, all allocated here: what a thread frees goes back to the
    # system, and to fault in fresh memory takes as long as the products.
    shortest = min(size, len(phases))
    workspaces = [symbols.workspace(shortest) for _ in range(cores())]

    def portion(start: int, stop: int) -> None:
        workspace = workspaces.pop()
        for first in range(start, stop, size):
            part = slice(first, min(first + size, stop))
            work(part, *symbols.at(phases[part], workspace))
        workspaces.append(workspace)

    spread(portion, len(phases), least=size)


def _values_one_by_one(matrices: Array) -> np.ndarray:
    """The values of large matrices, (frequencies, groups, rows, columns)."""
    from .._compiled.svdvals import values_of_large

    flat = matrices.reshape(-1, *matrices.shape[-2:])
    if flat.shape[1] < flat.shape[2]:
        flat = flat.swapaxes(1, 2)
    re, im = np.ascontiguousarray(flat.real), np.ascontiguousarray(flat.imag)
    values = np.empty((len(flat), flat.shape[2]), re.dtype)
    spread(
        lambda start, stop: values_of_large(re, im, values, start, stop),
        len(flat),
        least=1 + THREAD_PRODUCTS // values.shape[1] ** 3,
    )
    return values.reshape(*matrices.shape[:2], -1)
