"""The paper's clip-and-crop: clip the singular values, crop to the kernel's taps."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from .._arrays.array import (
    Array,
    adjoint,
    asarray_like,
    is_host,
    namespace,
    normalized,
    to_double,
    widen,
)
from .._arrays.host import call_on_host
from .._arrays.linalg import are_definite, eigh
from .._arrays.threads import spread
from .._base import positive, size
from .._layer.geometry import Geometry
from .._layer.stencil import circular_surrogate, stencil_of
from .._maps.split_complex import BatchedSymbols
from .._maps.symbol import block_size, varying_sizes
from .._maps.transform import lengths, transform_pays, transformed_back, transforms
from .._route.bound import COMPILED_CLIP_COUNT, clip_is_compiled
from .blocks import TorusBlocks, torus_blocks

# The side of matrices from which on LAPACK takes less time for a few of them than the
# compiled routine for a vector that they do not fill.
PARTIAL_VECTOR_SIDE = 64
# Bounds are cut off here: larger than the norm of any kernel with entries near 1, and
# small enough to be squared in single precision.
LARGEST_BOUND = 2.0**60


def clip(
    weight: Array,
    geometry: Geometry,
    max_norm: float,
    rounds: int = 1,
    *,
    min_norm: float = 0.0,
) -> Array:
    """Clip the singular values into [min_norm, max_norm], then crop to the kernel.

    The paper's clip-and-crop. Cropping changes the values again, so the result usually
    *violates* the bounds, after one round by some 20 percent; more rounds alternate the
    two steps and come closer. `project` guarantees the upper bound.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
        If the boundary is not circular, its `torus()` is clipped, as in the paper.
    max_norm : float
    rounds : int
    min_norm : float
        At most `max_norm`. If the two are equal, all values are driven to that number:
        with 1, the layer is driven towards a semi-orthogonal (Parseval) one.

    Returns
    -------
    array
        Of the shape and dtype of `weight`; a constant to automatic differentiation.
    """
    stencil = stencil_of(weight, geometry)
    max_norm, min_norm = positive("max_norm", max_norm), float(min_norm)
    if not 0 <= min_norm <= max_norm:
        raise ValueError(
            "`min_norm` must be between 0 and `max_norm`, got "
            f"{min_norm!r} with max_norm {max_norm!r}."
        )
    rounds = size("rounds", rounds, least=1)
    torus = circular_surrogate(stencil, geometry)

    def clipped(plain: Array) -> tuple[Array]:
        xp, (double, scale) = namespace(plain), normalized(plain)
        if min_norm > scale:  # the values are raised to that: make it the one near 1
            double, scale = double * (scale / min_norm), min_norm
        near_one = xp.astype(double, widen(plain).dtype)
        blocks = torus_blocks(near_one, torus)
        kernel, most = blocks.start, min(max_norm / scale, LARGEST_BOUND)
        for _ in range(rounds):
            kernel = _clip_once(blocks, kernel, min_norm / scale, most)
        clipped = to_double(blocks.kernel(kernel, near_one)) * scale
        return (xp.astype(clipped, plain.dtype),)

    return call_on_host(clipped, weight, arrays=1)[0]


def _clip_once(blocks: TorusBlocks, kernel: Array, least: float, most: float) -> Array:
    """`kernel` with its singular values clipped into [least, most], then cropped."""
    if not least and is_host(kernel) and transform_pays(blocks.taps):
        change = _soft_threshold_by_transform(blocks, kernel, most)
    else:
        change = _removed_by_frequency(blocks, kernel, least, most)
    return kernel - change * asarray_like(kernel, 1 / blocks.merged)[:, None]


def _removed_by_frequency(
    blocks: TorusBlocks, kernel: Array, least: float, most: float
) -> Array:
    """What a clip takes off the matrices, as a kernel."""
    change, first = 0.0, 0
    numbers = np.arange(len(blocks.weights))
    to_remove = partial(_soft_threshold, most=most)
    if least:
        to_remove = partial(_out_of_range, least=least, most=most)
    if clip_is_compiled(
        len(numbers) * blocks.taps.channel_shape[0],
        min(blocks.shape),
        real=blocks.real,
        on_host=is_host(kernel),
        raises=least > 0,
    ):
        first = _in_whole_vectors(blocks, kernel.real.itemsize)
        points, sizes = blocks.frequencies.points, blocks.frequencies.grid_sizes
        is_real = ~(2 * points % sizes).any(axis=1)
        # Real matrices are last: LAPACK takes less time for them.
        numbers = np.argsort(is_real, kind="stable")
    if first:
        change = change + _soft_threshold_many(blocks, kernel, most, numbers[:first])
    for part in blocks.parts(numbers[first:]):
        removed = _of_each(to_remove, blocks.of(kernel, part))
        change = change + blocks.fold(removed, part)
    return change


def _soft_threshold_by_transform(
    blocks: TorusBlocks, kernel: np.ndarray, most: float
) -> np.ndarray:
    """The soft-thresholded part as a kernel, if each matrix has one singular value."""
    taps = replace(blocks.taps, weight=kernel)
    sizes = varying_sizes(taps.pattern, blocks.frequencies.grid_sizes)
    by_group = []
    for matrices in transforms(taps, sizes):
        share = 1 - most / np.maximum(lengths(matrices), most)
        by_group.append(transformed_back(matrices * share, taps, sizes))
    change = np.concatenate(by_group, axis=1).astype(kernel.dtype)
    return np.real(change) if blocks.real else change


def _in_whole_vectors(blocks: TorusBlocks, itemsize: int) -> int:
    """How many of the frequencies the compiled routine soft-thresholds.

    If matrices are large, it is not given a last vector that is nearly empty.
    """
    from .._compiled.simd import BYTES

    count, groups = len(blocks.weights), blocks.taps.channel_shape[0]
    left = count % (BYTES // itemsize)
    large = groups == 1 and min(blocks.shape) > PARTIAL_VECTOR_SIDE
    return count - left if large and left < COMPILED_CLIP_COUNT else count


def _soft_threshold_many(
    blocks: TorusBlocks, kernel: np.ndarray, most: float, numbers: np.ndarray
) -> np.ndarray:
    """The soft-thresholded part at these frequencies as a kernel: compiled."""
    symbols = BatchedSymbols(replace(blocks.taps, weight=kernel))
    found: dict[int, np.ndarray] = {}

    def fold(own: slice, phase: Array, re: np.ndarray, im: np.ndarray) -> None:
        weighted = phase * blocks.weights[numbers[own], None]
        found[own.start] = symbols.fold_back(re, im, weighted)

    _each_soft_threshold(blocks, symbols, most, numbers, fold)
    # In order of frequency, so that the sum does not depend on the threads.
    parts = [found[first] for first in sorted(found)]
    return functools.reduce(np.add, parts)


def soft_thresholded(
    blocks: TorusBlocks, kernel: np.ndarray, most: float, numbers: np.ndarray
) -> np.ndarray:
    """The soft-thresholded parts at these frequencies: (frequencies, out, columns).

    Of a real kernel, in NumPy, that has one group.
    """
    side = min(blocks.shape)
    if not clip_is_compiled(len(numbers), side, real=True, on_host=True, raises=False):
        to_remove = partial(_soft_threshold, most=most)
        return _of_each(to_remove, blocks.of(kernel, numbers))[:, 0]
    symbols = BatchedSymbols(replace(blocks.taps, weight=kernel))
    found = np.empty((len(numbers), *blocks.shape), kernel.dtype)

    def keep(own: slice, _: Array, re: np.ndarray, im: np.ndarray) -> None:
        part = found[own]
        part.real, part.imag = (x.transpose(2, 0, 1) for x in (re, im))

    _each_soft_threshold(blocks, symbols, most, numbers, keep)
    return found


def _each_soft_threshold(
    blocks: TorusBlocks,
    symbols: BatchedSymbols,
    most: float,
    numbers: np.ndarray,
    use: Callable[[slice, Array, np.ndarray, np.ndarray], None],
) -> None:
    """Call use(part of the numbers, phase factors, re, im), in threads, for all.

    With the soft-thresholded parts, (out, columns, frequencies * groups).
    """
    from .._compiled.soft_threshold import soft_threshold

    bound = symbols.dtype.type(most)
    entries = math.prod(blocks.shape) * blocks.taps.channel_shape[0]
    size = block_size(max(entries, len(blocks.taps.shifts)))

    def some(start: int, stop: int) -> None:
        workspace = symbols.workspace(min(size, stop - start))
        for first in range(start, stop, size):
            own = slice(first, min(first + size, stop))
            phase = blocks.phases(numbers[own])
            re, im = symbols.at(phase[:, symbols.taps_needed], workspace)
            tall = re.shape[0] >= re.shape[1]
            if not tall:
                re, im = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (re, im))
            soft_threshold(re, im, bound, 0, re.shape[2])
            if not tall:
                re, im = re.swapaxes(0, 1), im.swapaxes(0, 1)
            use(own, phase, re, im)

    spread(some, len(numbers), least=size)


def _of_each(f: Callable[[Array], Array], y: Array) -> Array:
    """f(y) for matrices (frequencies, groups, out, columns), in threads if NumPy's."""
    if not is_host(y):
        return f(y)
    found = np.empty_like(y)

    def some(start: int, stop: int) -> None:
        for i in range(start, stop):
            found[i] = f(y[i] if y[i].imag.any() else y[i].real)

    spread(some, len(y))
    return found


def _soft_threshold(y: Array, most: float) -> Array:
    """U max(S - most, 0) V^H, by the Hermitian eigenproblem of the short side."""
    xp = namespace(y)
    if y.shape[-1] > y.shape[-2]:
        return adjoint(_soft_threshold(adjoint(y), most))
    gram = xp.matmul(adjoint(y), y)
    eye = asarray_like(gram, np.eye(gram.shape[-1]))
    if are_definite(most * most * eye - gram).all():
        return 0 * y
    squares, v = eigh(gram)
    s = xp.sqrt(xp.clip(squares, min=float(xp.finfo(squares.dtype).smallest_normal)))
    # Leave out the vectors of values that exceed the bound in no matrix.
    first = int(xp.min(xp.sum(xp.astype(s <= most, xp.int64), axis=-1)))
    s, v = s[..., first:], v[..., :, first:]
    turned = xp.matmul(y, v) * xp.clip(1 - most / s, min=0.0)[..., None, :]
    return xp.matmul(turned, adjoint(v))


def _out_of_range(y: Array, least: float, most: float) -> Array:
    """Y less Y with its singular values clipped into [least, most]."""
    xp = namespace(y)
    u, s, vh = xp.linalg.svd(y, full_matrices=False)
    change = s - xp.clip(s, min=least, max=most)
    return xp.matmul(u * change[..., None, :], vh)
