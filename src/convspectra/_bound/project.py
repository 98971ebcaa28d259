"""Kernels with a bounded norm: clipped, scaled, or the nearest one there is."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .._arrays.array import (
    Array,
    adjoint,
    are_definite,
    eigh,
    is_host,
    is_traced,
    like,
    looking_at_numbers,
    namespace,
    normalized,
    spacing,
    to_double,
    widen,
)
from .._arrays.threads import spread
from .._base import fraction, positive, size
from .._layer.geometry import Axis, Geometry
from .._layer.stencil import Stencil, embedding, stencil_of
from .._maps.matrix import matrix_entries
from .._maps.symbol import PlanarTaps, block_size
from .._norm.operator_norm import NormBounds, bounds, method_of, upper_end
from .._norm.peak import TIGHT
from .blocks import TorusBlocks, matrix_blocks, torus_blocks
from .nearest import nearest

MANY = 4  # matrices from which on lanes are not wasted
APART, VECTOR = 64, 64  # the side from which on that counts; bytes of a vector
LANES_SIDE = 256  # the largest matrices of which a vector's worth stays in the cache
PROJECT_MATRIX_LIMIT = 2**18  # entries of a matrix that is decomposed in each round
ROUNDS = 100
BEYOND = 2.0**60  # more than the norm of any kernel with entries near 1
SUPREMUM_ROWS = 24  # per degree: the torus that stands in for all grids at once
SUPREMUM_RTOL = 3e-4  # how close its norms are brought


def clip(
    weight: Array,
    geometry: Geometry,
    max_norm: float,
    rounds: int = 1,
    *,
    min_norm: float = 0.0,
) -> Array:
    """Clip the singular values into [min_norm, max_norm], then crop to the kernel.

    The paper's clip-and-crop. Cropping moves the values again, so that the result is
    usually *outside* the bounds, after one round by some 20 percent; more rounds
    alternate the two and come closer. `project` ends inside.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
        With another boundary than circular, its `torus()` is clipped, as in the paper.
    max_norm : float
    rounds : int
    min_norm : float
        At most `max_norm`. Equal to it, all values are drawn to one number: with 1,
        the layer is drawn to one that keeps every length (Parseval).

    Returns
    -------
    array
        Shaped and typed like `weight`, cut off from automatic differentiation.
    """
    stencil = stencil_of(weight, geometry)
    max_norm, min_norm = positive("max_norm", max_norm), float(min_norm)
    if not 0 <= min_norm <= max_norm:
        raise ValueError(
            "`min_norm` must be between 0 and `max_norm`, got "
            f"{min_norm!r} with max_norm {max_norm!r}."
        )
    rounds = size("rounds", rounds, least=1)
    torus = stand_in(stencil, geometry)

    def clipped(plain: Array) -> tuple[Array]:
        xp, (double, scale) = namespace(plain), normalized(plain)
        if min_norm > scale:  # which the values are raised to: that is the size to take
            double, scale = double * (scale / min_norm), min_norm
        near_one = xp.astype(double, widen(plain).dtype)
        blocks = torus_blocks(near_one, torus)
        kernel, most = blocks.start, min(max_norm / scale, BEYOND)
        for _ in range(rounds):
            kernel = _clip_once(blocks, kernel, min_norm / scale, most)
        clipped = to_double(blocks.kernel(kernel, near_one)) * scale
        return (xp.astype(clipped, plain.dtype),)

    return looking_at_numbers(clipped, weight, arrays=1)[0]


def _clip_once(blocks: TorusBlocks, kernel: Array, least: float, most: float) -> Array:
    change, first = 0.0, 0
    numbers = np.arange(len(blocks.weights))
    if least:
        excess = partial(_out_of_range, least=least, most=most)
    else:
        excess = partial(_excess, most=most)
        if is_host(kernel) and blocks.real:
            first = _in_lanes(blocks, kernel.real.itemsize)
            is_real = ~blocks.phase.imag.any(axis=1)
            numbers = np.argsort(is_real, kind="stable")  # faster by themselves: last
    if first:
        change = change + _excess_of_many(blocks, kernel, most, numbers[:first])
    for part in blocks.parts(numbers[first:]):
        change = change + blocks.fold(_of_each(excess, blocks.of(kernel, part)), part)
    return kernel - change * like(kernel, 1 / blocks.merged)[:, None]


def _in_lanes(blocks: TorusBlocks, itemsize: int) -> int:
    """How many of the frequencies stand in the lanes of vectors.

    A last vector that would be nearly empty is not worth it if matrices are large.
    """
    count, groups, side = len(blocks.weights), blocks.taps.block[0], min(blocks.shape)
    left = count % (VECTOR // itemsize)
    if count * groups < MANY or side > LANES_SIDE:
        return 0
    return count - left if groups == 1 and side > APART and left < MANY else count


def _excess_of_many(
    blocks: TorusBlocks, kernel: np.ndarray, most: float, numbers: np.ndarray
) -> np.ndarray:
    """What exceeds `most` at these frequencies, folded back: in lanes of vectors."""
    from .._compiled.soft_threshold import excess

    planar = PlanarTaps(replace(blocks.taps, weight=kernel))
    bound = planar.dtype.type(most)
    size = block_size(math.prod(blocks.shape) * blocks.taps.block[0])
    found: dict[int, np.ndarray] = {}

    def some(start: int, stop: int) -> None:
        for first in range(start, stop, size):
            part = numbers[first : min(first + size, stop)]
            re, im = planar.symbol(blocks.phase[part][:, planar.columns], 1)
            tall = re.shape[0] >= re.shape[1]
            if not tall:
                re, im = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in (re, im))
            excess(re, im, bound, 0, re.shape[2])
            if not tall:
                re, im = re.swapaxes(0, 1), im.swapaxes(0, 1)
            weighted = blocks.phase[part] * blocks.weights[part, None]
            found[first] = planar.fold_back(re, im, weighted)

    spread(some, len(numbers), least=size)
    parts = [found[first] for first in sorted(found)]  # in an order of its own
    return functools.reduce(np.add, parts)


def _of_each(excess: Callable[[Array], Array], y: Array) -> Array:
    """`excess` of the matrices (frequencies, groups, out, columns)."""
    if not is_host(y):
        return excess(y)
    found = np.empty_like(y)

    def some(start: int, stop: int) -> None:
        for i in range(start, stop):
            found[i] = excess(y[i] if y[i].imag.any() else y[i].real)

    spread(some, len(y))
    return found


def _excess(y: Array, most: float) -> Array:
    """What exceeds `most`, by the Hermitian eigenproblem of the short side."""
    xp = namespace(y)
    if y.shape[-1] > y.shape[-2]:
        return adjoint(_excess(adjoint(y), most))
    gram = xp.matmul(adjoint(y), y)
    eye = like(gram, np.eye(gram.shape[-1]))
    if are_definite(most * most * eye - gram).all():
        return 0 * y
    squares, v = eigh(gram)
    s = xp.sqrt(xp.clip(squares, min=float(xp.finfo(squares.dtype).smallest_normal)))
    # Vectors of values that nowhere exceed it are left out.
    first = int(xp.min(xp.sum(xp.astype(s <= most, xp.int64), axis=-1)))
    s, v = s[..., first:], v[..., :, first:]
    turned = xp.matmul(y, v) * xp.clip(1 - most / s, min=0.0)[..., None, :]
    return xp.matmul(turned, adjoint(v))


def _out_of_range(y: Array, least: float, most: float) -> Array:
    xp = namespace(y)
    u, s, vh = xp.linalg.svd(y, full_matrices=False)
    change = s - xp.clip(s, min=least, max=most)
    return xp.matmul(u * change[..., None, :], vh)


def scale_to(weight: Array, geometry: Geometry, max_norm: float) -> Array:
    """Scale the kernel down until the norm is certainly at most `max_norm`.

    A kernel whose norm is within the bound stays as it is.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
    max_norm : float

    Returns
    -------
    array
        Shaped and typed like `weight`, cut off from automatic differentiation.
    """
    stencil = stencil_of(weight, geometry)
    max_norm = positive("max_norm", max_norm)
    return looking_at_numbers(
        lambda plain: (scaled_inside(plain, stencil, max_norm),), weight, arrays=1
    )[0]


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """The nearest kernel within a bound, and how it was reached; see `project`.

    Attributes
    ----------
    weight : array
        Shaped and typed like the kernel that was projected, cut off from automatic
        differentiation.
    before, after : NormBounds
        The norm of the layer; `after.upper` is at most `max_norm`.
    distance : scalar
        Frobenius norm of the change.
    rounds : int
        Rounds of the iteration, 0 if the kernel was inside.
    gap : scalar
        No kernel inside has a squared distance below (1 - gap) * distance^2. For layers
        past the matrix, of the kernels whose embedding is inside: see `project`.
    """

    weight: Array
    before: NormBounds
    after: NormBounds
    distance: Any
    rounds: Any
    gap: Any


def project(
    weight: Array, geometry: Geometry, max_norm: float, rtol: float = 1e-3
) -> Projection:
    """The nearest kernel, with the same support, whose norm is at most `max_norm`.

    Solves  minimize |K - weight|_F  over kernels K of the same shape with
    operator_norm(K) <= max_norm, which is convex, and certifies the answer inside.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
        Layers that are not block diagonal and whose matrix has more than 2**18 entries
        are projected so that the circular layer that holds them obeys the bound:
        certainly inside, but `gap` then speaks of that smaller set. With grid None
        every input size is to obey (that the stride divides, if circular).
    max_norm : float
    rtol : float
        The duality gap to reach, relative to the squared distance.

    Returns
    -------
    Projection
    """
    stencil = stencil_of(weight, geometry)
    max_norm = positive("max_norm", max_norm)
    rtol = fraction("rtol", rtol)
    found = looking_at_numbers(
        lambda plain: _projected(plain, stencil, max_norm, rtol),
        weight,
        arrays=1,
        scalars=(-1, 1, -1, 1, 0, 0, 0),
    )
    method, grid = method_of(stencil), stencil.grid
    return Projection(
        weight=found[0],
        before=NormBounds(found[1], found[2], method, grid),
        after=NormBounds(found[3], found[4], method, grid),
        distance=found[5],
        rounds=found[6] if is_traced(weight) else int(found[6]),
        gap=found[7],
    )


def _projected(
    weight: Array, stencil: Stencil, max_norm: float, rtol: float
) -> tuple[Any, ...]:
    _, lower, upper = bounds(weight, stencil, closeness(stencil))
    if upper <= max_norm:
        return weight, lower, upper, lower, upper, 0.0, 0, 0.0
    kernel, *about = nearest_inside(weight, stencil, max_norm, rtol)
    _, *after = bounds(kernel, stencil, closeness(stencil))
    return kernel, lower, upper, *after, *about


def nearest_inside(
    weight: Array, stencil: Stencil, max_norm: float, rtol: float
) -> tuple[Array, float, int, float]:
    """For a kernel outside the nearest one inside, its distance, rounds and gap."""
    double, scale = normalized(weight)
    small = method_of(stencil) == "matrix"
    if small and matrix_entries(stencil) <= PROJECT_MATRIX_LIMIT:
        blocks, factor = matrix_blocks(double, stencil), 1.0
    else:
        torus, factor = embedding(stencil)
        blocks = torus_blocks(double, _with_rows(torus))
    bound = max_norm / factor / scale
    found = nearest(blocks, bound, rtol=rtol, max_rounds=ROUNDS)
    xp = namespace(weight)
    kernel = xp.astype(blocks.kernel(found.kernel, double) * scale, weight.dtype)
    kernel = scaled_inside(kernel, stencil, max_norm)
    moved = to_double(kernel) * (1 / scale) - double
    distance = float(xp.linalg.vector_norm(moved))
    gap = max(1 - 2 * found.dual / distance**2, 0.0)
    return kernel, distance * scale, found.rounds, gap


def scaled_inside(weight: Array, stencil: Stencil, max_norm: float) -> Array:
    """`weight` scaled until its certified norm, in its own precision, is inside."""
    xp = namespace(weight)
    scaled, factor, margin = weight, 1.0, spacing(weight)
    rtol = closeness(stencil)
    while (upper := upper_end(scaled, stencil, rtol)) > max_norm:
        factor *= max_norm / upper * (1 - margin)
        margin = min(2 * margin, 0.5)
        scaled = xp.astype(to_double(weight) * factor, weight.dtype)
    return scaled


def closeness(stencil: Stencil) -> float:
    """How well to know norms: kernels that were projected attain them everywhere.

    On a grid that only takes all of its frequencies; else it takes ever more.
    """
    return SUPREMUM_RTOL if stencil.axes is None else TIGHT


def stand_in(stencil: Stencil, geometry: Geometry) -> Stencil:
    """The torus on which a layer is clipped."""
    if stencil.is_torus:
        return stencil
    if stencil.axes is None:
        return _with_rows(embedding(stencil)[0])
    axes = geometry.torus(stencil.kernel).meet(stencil.kernel)
    return replace(stencil, axes=axes, boundary="circular")


def _with_rows(torus: Stencil) -> Stencil:
    """A grid for a torus that stands for all of them: finer than the symbol varies."""
    if torus.axes is not None:
        return torus
    degrees = [(reach - 1) // s for reach, s in zip(torus.reach, torus.stride)]
    rows = [SUPREMUM_ROWS * max(degree, 1) for degree in degrees]
    axes = tuple(Axis(m * s, m, 0) for m, s in zip(rows, torus.stride))
    return replace(torus, axes=axes)
