"""Other methods for a layer's norm, each labelled as a bound or an estimate."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ._arrays.array import (
    Array,
    adjoint,
    asarray_like,
    frobenius_norm,
    is_complex,
    namespace,
    normalized,
    to_complex,
    to_double,
)
from ._arrays.host import ROUND_DOWN, ROUND_NEAREST, ROUND_UP, call_on_host
from ._base import positive, size
from ._layer.geometry import Geometry
from ._layer.stencil import (
    Stencil,
    embedding,
    some_row_reads_all_taps,
    stencil_of,
)
from ._maps.matrix_free import operator_of
from ._maps.symbol import chunks, frequencies_of, phase_like, symbol, taps_of

Kind = Literal["upper bound", "lower bound", "estimate"]
_SAFE_SIDE = {
    "upper bound": ROUND_UP,
    "lower bound": ROUND_DOWN,
    "estimate": ROUND_NEAREST,
}


@dataclass(frozen=True, slots=True)
class Baseline:
    """The result of a method other than `operator_norm` for a layer's norm.

    Attributes
    ----------
    value : scalar
        A double-precision scalar of the array's library (single precision in JAX
        without x64, with bounds rounded outward); a constant to automatic
        differentiation.
    kind : {"upper bound", "lower bound", "estimate"}
        How `value` relates to the norm, up to double-precision rounding. An estimate
        may lie on either side.
    method : str
        The name of the function.
    """

    value: Any
    kind: Kind
    method: str


def reshaped_norm(weight: Array, geometry: Geometry) -> Baseline:
    """The norm of the kernel as one matrix, as spectral normalization uses it.

    A lower bound if some output site reads all taps at different input sites, because
    the matrix is then a block of the layer's matrix. An estimate if at every output
    site some taps coincide or read zeros.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        Each group becomes a matrix (out / groups, in / groups * taps). A transposed
        layer, (in, out / groups, *kernel), is treated as the convolution it transposes.
    geometry : Geometry
        With grid None, the norm is the supremum over all input sizes.

    Examples
    --------
    >>> reshaped_norm(np.ones((1, 1, 3, 3)), Geometry(grid=8))  # the layer's norm is 9
    Baseline(value=np.float64(3.0), kind='lower bound', method='reshaped_norm')
    """
    stencil = stencil_of(weight, geometry)
    is_block = some_row_reads_all_taps(stencil)
    kind = "lower bound" if is_block else "estimate"
    return _baseline(
        lambda w: _largest_value(_matrices(w, stencil)), weight, kind, "reshaped_norm"
    )


def reshaped_clip(weight: Array, geometry: Geometry, max_norm: float) -> Array:
    """Clip the singular values of the kernel reshaped as in `reshaped_norm`.

    The layer's norm may still be up to sqrt(taps) times `max_norm`, and more where
    padding repeats sites. Use `project` to bound it.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
    geometry : Geometry
    max_norm : float

    Returns
    -------
    array
        Of the shape and dtype of `weight`; a constant to automatic differentiation.
    """
    stencil = stencil_of(weight, geometry)
    max_norm = positive("max_norm", max_norm)

    def clipped(plain: Array) -> tuple[Array]:
        xp, matrices = namespace(plain), _matrices(to_double(plain), stencil)
        u, s, vh = xp.linalg.svd(matrices, full_matrices=False)
        kept = xp.matmul(u * xp.clip(s, max=max_norm)[:, None, :], vh)
        return (xp.astype(xp.reshape(kept, plain.shape), plain.dtype),)

    return call_on_host(clipped, weight, arrays=1)[0]


def power_iteration(
    weight: Array,
    geometry: Geometry,
    *,
    steps: int = 10,
    rng: np.random.Generator | None = None,
) -> Baseline:
    """The gain of the last iterate of power iteration.

    A lower bound: other inputs may have a larger gain.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
    geometry : Geometry
        Its grid must be stated.
    steps : int
        The number of applications of the layer and its adjoint.
    rng : numpy.random.Generator, optional
        Draws the first input; `np.random.default_rng(0)` if not given.
    """
    stencil = stencil_of(weight, geometry)
    steps = size("steps", steps, least=1)
    sizes = (stencil.groups, stencil.in_channels, *stencil.columns)
    start = (rng or np.random.default_rng(0)).standard_normal(sizes)

    def gain(plain: Array) -> float:
        operator, x = operator_of(plain, stencil), asarray_like(plain, start)
        for _ in range(steps):
            x = operator.apply_adjoint(operator.apply(x))
            total = frobenius_norm(x)
            if not total:  # all taps but zeros read padding only
                return 0.0
            x = x / total
        return frobenius_norm(operator.apply(x))

    return _baseline(gain, weight, "lower bound", "power_iteration")


def fantastic_four(weight: Array, geometry: Geometry) -> Baseline:
    """sqrt(taps) times the smallest norm among the 2^axes matrix reshapings.

    An upper bound (Singla and Feizi, for two axes). Each reshaping assigns every axis
    of the kernel to rows or to columns. At any frequency the layer's matrix equals each
    of them multiplied on the left and right by factors whose norms multiply to
    sqrt(taps). If padding repeats sites, the bound includes a factor for it.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
    geometry : Geometry
        With grid None, the bound holds for every input size.
    """
    stencil = stencil_of(weight, geometry)
    factor = embedding(stencil)[1] * math.sqrt(stencil.taps)
    ways = list(itertools.product((False, True), repeat=len(stencil.kernel)))

    def bound(plain: Array) -> float:
        return factor * min(
            _largest_value(_matrices(plain, stencil, way)) for way in ways
        )

    return _baseline(bound, weight, "upper bound", "fantastic_four")


def gram_iteration(weight: Array, geometry: Geometry, *, steps: int = 6) -> Baseline:
    """The Frobenius norm of a high power of the Gram matrix, at every frequency.

    An upper bound (Delattre and others). After `steps` iterations of H <- H^H H on the
    matrix of a frequency, the 2^steps-th root of its Frobenius norm bounds the spectral
    norm from above and converges to it quickly.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
    geometry : Geometry
        Its grid must be stated. If the layer is not block diagonal in the Fourier
        basis, the bound is that of a circular layer which contains it; it then does not
        converge to the layer's norm.
    steps : int
    """
    stencil = stencil_of(weight, geometry)
    steps = size("steps", steps, least=1)
    torus, factor = embedding(stencil)
    rows = torus.rows

    def bound(plain: Array) -> float:
        taps = taps_of(plain, torus)
        kept = frequencies_of(taps.pattern, rows, real=not is_complex(plain))
        phases = (
            phase_like(taps, kept.points[part], kept.grid_sizes)
            for part in chunks(taps, len(kept))
        )
        return factor * max(_by_squaring(symbol(taps, p), steps) for p in phases)

    return _baseline(bound, weight, "upper bound", "gram_iteration")


def tensor_norm(
    weight: Array,
    geometry: Geometry,
    *,
    steps: int = 50,
    restarts: int = 1,
    rng: np.random.Generator | None = None,
) -> Baseline:
    """sqrt(taps) times the norm of the kernel as a tensor, by alternating maximization.

    An estimate. The tensor's norm, the largest |sum of weight * u_1 * ... * u_m| over
    complex unit vectors, one per axis, would give an upper bound (Grishina and others;
    with a factor if padding repeats sites). But the maximization may end in a local
    maximum, which is too small.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
    geometry : Geometry
        With grid None, the estimate is of the supremum over all input sizes.
    steps : int
        Sweeps over all axes.
    restarts : int
        The number of random starts; the largest result is returned.
    rng : numpy.random.Generator, optional
        Draws the starts; `np.random.default_rng(0)` if not given.
    """
    stencil = stencil_of(weight, geometry)
    steps = size("steps", steps, least=1)
    restarts = size("restarts", restarts, least=1)
    draw = rng or np.random.default_rng(0)
    factor = embedding(stencil)[1] * math.sqrt(stencil.taps)

    def estimate(plain: Array) -> float:
        tensor = to_complex(_per_group(plain, stencil))
        return factor * max(_alternate(tensor, steps, draw) for _ in range(restarts))

    return _baseline(estimate, weight, "estimate", "tensor_norm")


def _baseline(
    find: Callable[[Array], float], weight: Array, kind: Kind, method: str
) -> Baseline:
    """The result of `find` for the plain numbers of `weight`, in double precision."""

    def scaled(plain: Array) -> tuple[float]:
        double, scale = normalized(plain)
        if not bool(namespace(double).any(double != 0)):
            return (0.0,)
        return (find(double) * scale,)

    side = (_SAFE_SIDE[kind],)
    value = call_on_host(scaled, weight, arrays=0, scalars=side)[0]
    return Baseline(value, kind, method)


def _per_group(weight: Array, stencil: Stencil) -> Array:
    shape = (stencil.groups, stencil.out_channels, stencil.in_channels, *stencil.kernel)
    return namespace(weight).reshape(weight, shape)


def _matrices(weight: Array, stencil: Stencil, to_rows: tuple[bool, ...] = ()) -> Array:
    """The kernel as a matrix per group; the axes marked in `to_rows` are rows."""
    xp, kernel = namespace(weight), _per_group(weight, stencil)
    marked = [axis for axis, mark in enumerate(to_rows, start=3) if mark]
    rest = [axis for axis in range(3, kernel.ndim) if axis not in marked]
    rows = stencil.out_channels * math.prod(kernel.shape[axis] for axis in marked)
    ordered = xp.permute_dims(kernel, (0, 1, *marked, 2, *rest))
    return xp.reshape(ordered, (stencil.groups, rows, -1))


def _largest_value(matrices: Array) -> float:
    """The root of the largest eigenvalue of the Gram matrices, in double precision."""
    xp, double = namespace(matrices), to_double(matrices)
    wide = double.shape[-2] <= double.shape[-1]
    short, long = (double, adjoint(double)) if wide else (adjoint(double), double)
    squares = xp.linalg.eigvalsh(xp.matmul(short, long))
    return math.sqrt(max(float(xp.max(squares)), 0.0))


def _by_squaring(matrices: Array, steps: int) -> float:
    """The largest bound of `gram_iteration` over a batch of matrices."""
    xp = namespace(matrices)
    tall = matrices.shape[-2] >= matrices.shape[-1]
    power = matrices if tall else adjoint(matrices)
    log = 0.0  # of what was divided out, as a factor of the result
    for step in range(steps):
        divisor = _divisor(power, (-2, -1))
        power = power / divisor
        power = xp.matmul(adjoint(power), power)
        log = log + xp.log(divisor) / 2**step
    last = xp.linalg.vector_norm(power, axis=(-2, -1), keepdims=True)
    return float(xp.max(xp.exp(log) * last ** (0.5**steps)))


def _alternate(tensor: Array, steps: int, rng: np.random.Generator) -> float:
    """A local maximum for each tensor (groups, *sizes); the largest of them."""
    xp, axes, rest = namespace(tensor), tuple(range(1, tensor.ndim)), tensor
    vectors = {}
    for axis in axes:
        shape = [n if a in (0, axis) else 1 for a, n in enumerate(tensor.shape)]
        # Complex, like waves along the axes: real vectors may reach less.
        start = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        vectors[axis] = asarray_like(tensor, start)
    for _, axis in itertools.product(range(steps), axes):
        rest = tensor
        for other in (a for a in axes if a != axis):
            rest = xp.sum(rest * vectors[other], axis=other, keepdims=True)
        vectors[axis] = xp.conj(rest) / _divisor(rest, axes)
    return float(xp.max(xp.linalg.vector_norm(rest, axis=axes)))


def _divisor(x: Array, axes: tuple[int, ...]) -> Array:
    """The Frobenius norm over these axes, or 1 where that is 0."""
    xp = namespace(x)
    norm = xp.linalg.vector_norm(x, axis=axes, keepdims=True)
    return xp.where(norm > 0, norm, xp.ones_like(norm))
