"""A lower and an upper bound on the operator norm of a layer."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays.array import (
    Array,
    adjoint,
    asarray_like,
    is_complex,
    is_host,
    is_traced,
    namespace,
    normalized,
)
from .._arrays.host import (
    call_on_host,
    detach_to_numpy,
    is_differentiated,
    with_gradient,
)
from .._arrays.linalg import are_definite
from .._base import fraction
from .._layer.geometry import Geometry
from .._layer.stencil import Stencil, embedding, stencil_of
from .._maps.banded import banded_gram
from .._maps.matrix import group_matrices, matrix_shape
from .._maps.matrix_free import Operator, operator_of
from .._maps.symbol import taps_of
from .._route import NormRoute, method_of, norm_route
from .._text import Lower, Upper, number
from .banded_norm import banded_norm
from .bounds import Bounds
from .lanczos import Pair, gain_of, top_vector
from .peak import NO_PROGRESS
from .rounding import TIGHT, UP, of_matrix
from .search import norm_on_torus
from .top_vectors import (
    lower_near_peak,
    pair_derivative,
    peak_derivative,
)
from .zero_padding import by_compression

# Numbers below SMALLEST_NORMAL have fewer digits than others; none is above LARGEST.
SMALLEST_NORMAL = float(np.finfo(np.float64).smallest_normal)
LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class NormBounds:
    """A lower and an upper bound on a layer's norm; see `operator_norm`.

    Attributes
    ----------
    lower : scalar
        Attained: for some input x, |layer(x)| is at least `lower` * |x|.
    upper : scalar
        Certified: |layer(x)| is at most `upper` * |x| for every input x. Differentiable
        in torch and JAX.
    method : {"frequencies", "matrix", "banded", "compression", "embedding", "supremum"}
        How the upper bound was certified.
    grid : tuple of int, or None
        The input size for which the bounds hold; None for every size (if the boundary
        is circular, every size that the stride divides).
    """

    lower: Any
    upper: Any
    method: str
    grid: tuple[int, ...] | None

    @property
    def gap(self) -> float:
        """The relative gap between the bounds: upper / lower - 1."""
        lower, upper = (
            float(detach_to_numpy(self.lower)),
            float(detach_to_numpy(self.upper)),
        )
        if lower == 0:
            return 0.0 if upper == 0 else math.inf
        return upper / lower - 1

    def __str__(self) -> str:
        """Both bounds with four digits, rounded outward."""
        if is_traced(self.upper):
            return repr(self)
        lower, upper = (
            Lower(detach_to_numpy(self.lower)),
            Upper(detach_to_numpy(self.upper)),
        )
        return f"{number(lower)} <= norm <= {number(upper)} ({self.method})"


def operator_norm(weight: Array, geometry: Geometry, rtol: float = 1e-4) -> NormBounds:
    """Bound the operator norm of a layer from below and above.

    The operator norm, the largest singular value, is the largest factor by which the
    layer can stretch an input.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
        With grid None the norm is the supremum over all input sizes (if the boundary
        is circular, over all sizes that the stride divides).
    rtol : float
        Relative gap to reach, where the method allows it: `upper / lower - 1 <= rtol`.
        On small grids and for small matrices the gap is much smaller at no cost.

    Returns
    -------
    NormBounds
        `lower <= norm <= upper`, rounding included, by one of these methods:

        - "frequencies": the layer is block diagonal in the Fourier basis. The bounds
          agree to `rtol`.
        - "matrix": any other layer whose matrix is small: at most `2**28` for its
          entries times its shorter side (645 x 645, or many smaller matrices in
          groups). The bounds agree to `rtol`.
        - "banded": any other layer whose Gram matrix, by rows of sites, has a band
          narrow enough: for 3x3 taps on an n x n grid about `4 * n * (channels * n)**3
          <= 2**37`, which is 64 channels on 16 x 16. The bounds agree to `rtol`.
        - "compression": all others that pad with zeros. The upper bound rests on the
          norms of a circular layer that contains this one as a block, cut to the grid;
          the lower bound is attained on the layer itself. The gap is about 2e-3 for 3x3
          taps on 20x20, and falls as the third power of the grid.
        - "embedding": all other layers. The upper bound is that of a circular layer
          which contains this one as a block; the lower bound is attained on the layer
          itself.
        - "supremum": grid None. With a zero or circular boundary the bounds agree to
          `rtol`; with any other, the upper bound is multiplied by the most that the
          padding can contribute on the smallest grid.

        A norm below the rounding error, about 1e-14 of the kernel's size, is bounded by
        that error. The bounds are double-precision scalars of the array's library
        (single precision in JAX without x64, rounded outward).

    Examples
    --------
    >>> kernel = np.array([[[1.0, -1.0, 1.0]]])
    >>> found = operator_norm(kernel, Geometry(grid=3, boundary="zeros"))
    >>> print(found)
    2.414 <= norm <= 2.415 (matrix)
    """
    stencil = stencil_of(weight, geometry)
    return norm_by(None, weight, stencil, fraction("rtol", rtol))


def norm_by(
    route: NormRoute | None, weight: Array, stencil: Stencil, rtol: float
) -> NormBounds:
    """The norm of a layer by this route; None: by the route for this layer."""

    def both(plain: Array) -> tuple[float, float]:
        bounds = norm_bounds(plain, stencil, rtol, route=route)
        return bounds.lower, bounds.upper

    def both_and_gradient(plain: Array) -> tuple[Array, float, float]:
        bounds = norm_bounds(plain, stencil, rtol, route=route)
        return bounds.derivative(), bounds.lower, bounds.upper

    if is_differentiated(weight):
        gradient, lower, upper = call_on_host(
            both_and_gradient, weight, arrays=1, scalars=(-1, 1)
        )
        upper = with_gradient(upper, gradient, weight)
    else:
        lower, upper = call_on_host(both, weight, arrays=0, scalars=(-1, 1))
    method = route.method if route else method_of(stencil, rtol)
    return NormBounds(lower=lower, upper=upper, method=method, grid=stencil.grid)


def upper_bound(weight: Array, stencil: Stencil, rtol: float) -> float:
    """The certified bound alone: for an embedding the lower one takes longer."""
    return norm_bounds(weight, stencil, rtol, attain=False).upper


def norm_bounds(
    weight: Array,
    stencil: Stencil,
    rtol: float,
    *,
    attain: bool = True,
    route: NormRoute | None = None,
) -> Bounds:
    """Bounds of the norm for plain numbers, by the route for this layer if not stated.

    Unless `attain`, the lower bound of an embedding is 0: nothing is computed for it.
    """
    double, scale = normalized(weight)
    if route is None:
        real, host = not is_complex(double), is_host(double)
        route = norm_route(
            stencil, real=real, on_host=host, rtol=rtol, is_quick=not attain
        )
    if route.method == "matrix":
        bounds = _by_matrix(double, operator_of(double, stencil), rtol)
    elif route.method == "banded":
        bounds = _by_band(double, stencil, rtol)
    elif route.method == "compression":
        bounds = by_compression(double, stencil, rtol, route, attain=attain)
    else:
        bounds = _by_torus(double, stencil, rtol, route, attain=attain)
    lower, upper = min(bounds.lower * scale, LARGEST), bounds.upper * scale
    if 0 < upper < SMALLEST_NORMAL:  # the products above were rounded
        lower, upper = math.nextafter(lower, 0.0), math.nextafter(upper, math.inf)
    xp = namespace(weight)
    return Bounds(lower, upper, lambda: xp.astype(bounds.derivative(), weight.dtype))


def _by_torus(
    weight: Array, stencil: Stencil, rtol: float, route: NormRoute, *, attain: bool
) -> Bounds:
    """The norm of the torus that is the layer, or holds it as a block."""
    torus, factor = embedding(stencil)
    taps, real = taps_of(weight, torus), not is_complex(weight)
    rows = None if torus.axes is None else torus.rows
    peak = norm_on_torus(taps, rows, route, real=real, rtol=rtol)
    lower, upper = peak.lower, peak.upper
    if route.method == "embedding" and not attain:
        lower = 0.0
    elif route.method == "embedding":
        most = factor * upper
        lower = lower_near_peak(weight, stencil, taps, peak, rtol=rtol, upper=most)
    if factor > 1:
        upper *= factor * UP
    return Bounds(lower, upper, lambda: factor * peak_derivative(taps, peak, weight))


def _by_band(weight: Array, stencil: Stencil, rtol: float) -> Bounds:
    """Lanczos for the lower bound, a banded Cholesky factor for the upper one."""
    gram = banded_gram(stencil)
    if gram is None:
        raise ValueError("The reads of an axis are too many for a banded Gram matrix.")
    found = banded_norm(weight, stencil, gram, rtol)
    return Bounds(
        found.lower,
        found.upper,
        lambda: pair_derivative(found.operator, found.pair, weight),
    )


def _by_matrix(weight: Array, operator: Operator, rtol: float) -> Bounds:
    """Lanczos for the lower bound, a factorization of the matrix for the upper one."""
    xp, stencil = namespace(weight), operator.stencil
    matrices = group_matrices(weight, stencil)
    pair = _pair_by_lanczos(operator, matrices, rtol / 10)
    rows, columns = matrix_shape(stencil)
    matrices = matrices if rows <= columns else adjoint(matrices)
    gram = xp.matmul(matrices, adjoint(matrices))
    allowance = of_matrix(weight, stencil)
    eye = asarray_like(gram, np.eye(min(rows, columns)))

    def certified(pair: Pair, rtol: float) -> float | None:
        threshold = allowance.threshold(pair.gain, rtol)
        if threshold and not are_definite(threshold**2 * eye - gram).all():
            return None
        return allowance.upper(threshold)

    upper = certified(pair, min(rtol, TIGHT)) or certified(pair, rtol)
    if upper is None:
        pair = _pair_by_eigh(operator, gram)
        upper = certified(pair, min(rtol, TIGHT))
    if upper is None:
        raise ArithmeticError(NO_PROGRESS)
    lower = allowance.lower(pair.gain)
    return Bounds(lower, upper, lambda: pair_derivative(operator, pair, weight))


def _pair_by_lanczos(operator: Operator, matrices: Array, rtol: float) -> Pair:
    """The top input, found by Lanczos on the matrices, with the operator's own gain."""
    xp, stencil = namespace(matrices), operator.stencil

    def gram(x: Array) -> Array:
        return xp.matmul(adjoint(matrices), xp.matmul(matrices, x))

    shape = (*matrices.shape[::2], 1)
    start = asarray_like(matrices, np.random.default_rng(0).standard_normal(shape))
    x = top_vector(gram, start, rtol=rtol)
    image = xp.reshape(x, (stencil.groups, stencil.in_channels, *stencil.columns))
    return gain_of(operator.apply, image)


def _pair_by_eigh(operator: Operator, gram: Array) -> Pair:
    """The top singular pair by an eigendecomposition, if Lanczos has missed it."""
    xp, stencil = namespace(gram), operator.stencil
    values, vectors = xp.linalg.eigh(gram)
    group = int(xp.argmax(values[:, -1]))
    rows, columns = matrix_shape(stencil)
    wide = rows <= columns
    shape = (
        (stencil.out_channels, *stencil.rows)
        if wide
        else (stencil.in_channels, *stencil.columns)
    )
    here = asarray_like(gram, np.arange(stencil.groups).reshape(-1, 1) == group)
    top = xp.reshape(here * vectors[group, :, -1][None, :], (stencil.groups, *shape))
    return gain_of(operator.apply, operator.apply_adjoint(top) if wide else top)
