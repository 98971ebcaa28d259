"""What are all the singular values of a layer, and what is read off them?"""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ._arrays.array import (
    Array,
    asarray_like,
    dtype_name,
    indices_like,
    is_complex,
    is_floating,
    is_host,
    namespace,
    normalized,
    spacing,
    widen,
)
from ._arrays.host import from_numpy, numpy_or_none, numpy_view, one_thread
from ._arrays.linalg import svdvals, svdvals_of_single
from ._arrays.sharding import replicated
from ._arrays.threads import BLAS_SMALL_SIDE, cores, spread
from ._base import cached
from ._layer.geometry import Geometry
from ._layer.stencil import Stencil, resolve, stencil_of
from ._maps.matrix import ENTRIES_LIMIT, group_matrices, matrix_shape
from ._maps.symbol import (
    Frequencies,
    Taps,
    chunks,
    frequencies_of,
    phase_like,
    symbol,
    taps_of,
)
from ._maps.symbol_values import values_at
from ._maps.transform import lengths_at, transform_pays
from ._route.values import values_route

LEAST = 8  # frequencies that are worth a thread for LAPACK


def singular_values(weight: Array, geometry: Geometry) -> Array:
    """All singular values of the layer, exactly.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry

    Returns
    -------
    array, shape (*frequencies, groups, min(out / groups, prod(stride) * in / groups))
        Real, non-negative, descending along the last axis; single precision for half
        and single precision weights. There is a frequency for each site of the output
        grid (for a transposed layer, of the input grid). Values are not sorted across
        frequencies, so that an index tells the frequency. If the layer is not block
        diagonal in the Fourier basis (other boundaries, a stride that does not divide
        the grid, circular padding that repeats rows), the shape is (groups, count).

    Raises
    ------
    ValueError
        If the layer is not block diagonal and its matrix has more than 2**24 entries.

    Examples
    --------
    >>> kernel = np.array([[[1.0, -1.0, 1.0]]])
    >>> singular_values(kernel, Geometry(grid=4)).ravel()
    array([1., 1., 3., 1.])
    """
    found = _values_by_shortcut(weight, geometry)
    return values_of(weight, stencil_of(weight, geometry)) if found is None else found


def _values_by_shortcut(weight: Array, geometry: Geometry) -> Array | None:
    """The values of a 1x1 kernel in single precision: those of its matrix.

    Many networks consist of such layers, mostly so small that checks, stencil and
    frequencies of the usual way would take longer than the decomposition. None for all
    other kernels, and for NaN and infinity, of which the usual way says what is wrong.
    """
    plain = numpy_view(weight)
    if plain is None or plain.dtype != np.float32 or type(geometry) is not Geometry:
        return None
    layer = _layer_of_matrices(plain.shape, geometry)
    if layer is None or not float(np.abs(plain).max()) < math.inf:
        return None
    with nullcontext() if layer.is_small else one_thread(plain):
        values = svdvals_of_single(plain.reshape(layer.matrices))
    found = np.empty((*layer.rows, *values.shape), np.float32)
    found[...] = values
    return found if plain is weight else from_numpy(weight, found)


@dataclass(frozen=True, slots=True)
class _LayerOfMatrices:
    """A layer whose matrix is the same at all frequencies, one per group."""

    rows: tuple[int, ...]
    matrices: tuple[int, int, int]  # groups, and channels of each
    is_small: bool  # enough for BLAS not to start threads


@cached(maxsize=256)
def _layer_of_matrices(
    shape: tuple[int, ...], geometry: Geometry
) -> _LayerOfMatrices | None:
    """None if a kernel of this shape is not the layer's matrix at each frequency.

    Or if the layer has more values than that matrix.
    """
    stencil = resolve(shape, geometry)
    if stencil.axes is None or values_route(stencil, on_host=True) != "one matrix":
        return None
    matrices = (stencil.groups, stencil.out_channels, stencil.in_channels)
    is_small = stencil.groups == 1 and min(matrices[1:]) <= BLAS_SMALL_SIDE
    if math.prod(stencil.stride) > 1 and matrices[1] > matrices[2]:
        return None  # some values are zero: columns that no row reads
    return _LayerOfMatrices(stencil.rows, matrices, is_small)


def values_of(
    weight: Array, stencil: Stencil, *, total_seconds: float = math.inf
) -> Array:
    """As `singular_values`; for `total_seconds` see `values_route`."""
    weight = widen(weight)
    plain = numpy_or_none(weight)
    if plain is None:
        weight = replicated(weight)
    on_host = plain is not None
    route = values_route(stencil, on_host=on_host, total_seconds=total_seconds)
    if route == "one matrix":
        return _by_one_matrix(weight, plain, stencil)
    if plain is not None and route in ("compiled", "LAPACK"):
        is_compiled = route == "compiled"
        with one_thread(plain):
            found = _on_host(plain, stencil, is_compiled=is_compiled)
        return from_numpy(weight, found)
    if route == "array library":
        return _by_frequency(weight, stencil)
    if route == "too large":
        rows, columns = matrix_shape(stencil)
        raise ValueError(
            "All values of a layer that is not block diagonal come from its matrix, "
            f"which must have at most {ENTRIES_LIMIT} entries, got {stencil.groups} x "
            f"{rows} x {columns}. Use `operator_norm(weight, geometry)` for the norm, "
            "or `singular_values(weight, geometry.torus(weight.shape[2:]))` for the "
            "values of its circular surrogate, an approximation."
        )
    return svdvals(group_matrices(weight, stencil))


def _by_one_matrix(weight: Array, plain: np.ndarray | None, stencil: Stencil) -> Array:
    """The values of a 1x1 kernel, which has the same matrix at all frequencies."""
    shape = (1, stencil.groups, stencil.out_channels, stencil.in_channels)
    is_small = stencil.groups == 1 and min(shape[2:]) <= BLAS_SMALL_SIDE
    with nullcontext() if is_small else one_thread(weight):
        if plain is not None and plain.dtype == np.float32:
            values = svdvals_of_single(plain.reshape(shape))
            values = values if plain is weight else from_numpy(weight, values)
        else:
            values = svdvals(namespace(weight).reshape(weight, shape))
    everywhere = np.zeros(stencil.rows, dtype=np.int64)
    return _on_the_grid(values, everywhere, stencil)


def _by_frequency(weight: Array, stencil: Stencil) -> Array:
    xp = namespace(weight)
    taps = taps_of(weight, stencil)
    kept = frequencies_of(taps.pattern, stencil.rows, real=not is_complex(weight))
    parts = chunks(taps, len(kept))
    values = xp.concat([_by_library(taps, kept, part) for part in parts], axis=0)
    return _on_the_grid(values, kept.representative, stencil)


def _by_library(taps: Taps, kept: Frequencies, part: slice) -> Array:
    """Values at these frequencies: (frequencies, groups, min(out, columns))."""
    phase = phase_like(taps, kept.points[part], kept.grid_sizes)
    return svdvals(symbol(taps, phase))


def _by_lapack(taps: Taps, kept: Frequencies) -> np.ndarray:
    """Values at all frequencies, which the cores share."""
    groups, out, _ = taps.channel_shape
    shape = (len(kept), groups, min(out, taps.columns))
    values = np.empty(shape, taps.weight.real.dtype)

    def some(start: int, stop: int) -> None:
        for part in chunks(taps, stop - start, copies=4 * cores()):
            own = slice(start + part.start, start + part.stop)
            values[own] = _by_library(taps, kept, own)

    spread(some, len(kept), least=LEAST)
    return values


def _on_host(weight: np.ndarray, stencil: Stencil, *, is_compiled: bool) -> np.ndarray:
    """As `_by_frequency`, by our own routine on all cores if it is to be compiled."""
    double, scale = normalized(weight)
    short = _compressed(double.astype(weight.dtype), stencil)
    taps = taps_of(
        short, replace(stencil, out_channels=short.shape[0] // stencil.groups)
    )
    kept = frequencies_of(taps.pattern, stencil.rows, real=not is_complex(weight))
    if transform_pays(taps):
        values = lengths_at(taps, kept.points, kept.grid_sizes)
    elif is_compiled:
        values = values_at(taps, kept.points, kept.grid_sizes)
    else:
        values = _by_lapack(taps, kept)
    # In two steps: 2^128, the scale of 3e38, is no number of single precision.
    half = 2.0 ** round(math.log2(scale) / 2)
    for factor in (half, scale / half):
        values = values * values.dtype.type(factor)
    return _on_the_grid(values, kept.representative, stencil)


def _compressed(weight: np.ndarray, stencil: Stencil) -> np.ndarray:
    """A kernel with the same values and no more outputs than numbers it reads."""
    reads = stencil.in_channels * stencil.taps
    if stencil.out_channels <= reads:
        return weight
    rows = weight.reshape(stencil.groups, stencil.out_channels, reads)
    return np.reshape(np.linalg.qr(rows, mode="r"), (-1, *weight.shape[1:]))


def _on_the_grid(values: Array, representative: np.ndarray, stencil: Stencil) -> Array:
    """The values of all frequencies, from those of their representatives."""
    xp = namespace(values)
    aliases = math.prod(stencil.stride)
    missing = (
        min(stencil.out_channels, aliases * stencil.in_channels) - values.shape[-1]
    )
    if missing:  # those of phases without a tap
        zeros = asarray_like(values, np.zeros((*values.shape[:-1], missing)))
        values = xp.concat([values, zeros], axis=-1)
    if is_host(values):
        return values[representative]
    full = xp.take(values, indices_like(values, representative.reshape(-1)), axis=0)
    return xp.reshape(full, (*stencil.rows, *values.shape[1:]))


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of the singular values of a layer; see `summarize`."""

    count: int
    largest: Any
    smallest: Any
    rank: Any
    stable_rank: Any
    effective_rank: Any
    condition: Any
    log_volume: Any


def summarize(values: Array, *, rtol: float | None = None) -> Summary:
    """Compute the usual statistics of a layer's singular values.

    Parameters
    ----------
    values : array, any shape
        As returned by `singular_values`.
    rtol : float, optional
        Values up to `rtol` times the largest count as zero for the rank. The default,
        machine epsilon times the length of the last axis, is about the rounding error
        of an SVD of that size.

    Returns
    -------
    Summary
        count : the number of values;
        largest, smallest : the largest value, which is the norm, and the smallest;
        rank : the number of values above the tolerance;
        stable_rank : the sum of squares divided by the largest square;
        effective_rank : exp of the entropy of the values divided by their sum;
        condition : largest / smallest, infinite if the smallest is zero;
        log_volume : the sum of the logarithms, which for a square layer is the
        logarithm of |det|; -infinity if some value is zero. If all values are zero, the
        stable and effective rank are 0.
    """
    xp = namespace(values)
    if not is_floating(values) or is_complex(values):
        raise TypeError(
            f"`values` must be real floating point, got {dtype_name(values)}. Take "
            "what `singular_values` returns."
        )
    flat = xp.reshape(values, (-1,))
    count = flat.shape[0]
    if not count:
        raise ValueError("`values` must not be empty, got no values.")
    largest, smallest = xp.max(flat), xp.min(flat)
    if rtol is None:
        rtol = spacing(values) * (values.shape or (1,))[-1]
    one = xp.ones_like(largest)
    scaled = flat / xp.where(largest <= 0, one, largest)
    total = xp.sum(scaled)
    shares = scaled / xp.where(total <= 0, one, total)
    safe = xp.where(shares <= 0, xp.ones_like(shares), shares)
    entropy = -xp.sum(shares * xp.log(safe))
    return Summary(
        count=count,
        largest=largest,
        smallest=smallest,
        rank=xp.count_nonzero(flat > rtol * largest),
        stable_rank=xp.sum(scaled * scaled),
        effective_rank=xp.where(largest <= 0, xp.zeros_like(entropy), xp.exp(entropy)),
        condition=xp.where(
            smallest <= 0,
            one * float("inf"),
            largest / xp.where(smallest <= 0, one, smallest),
        ),
        log_volume=xp.where(
            smallest <= 0,
            -one * float("inf"),
            xp.sum(xp.log(xp.where(flat <= 0, xp.ones_like(flat), flat))),
        ),
    )
