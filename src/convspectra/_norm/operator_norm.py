"""A lower and an upper bound on the operator norm of a layer."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays.array import Array, is_complex, is_host, is_traced
from .._arrays.host import (
    ROUND_DOWN,
    ROUND_UP,
    call_on_host,
    detach_to_numpy,
    is_differentiated,
    numpy_view,
    scalars_like,
)
from .._arrays.threads import BLAS_SMALL_SIDE, one_blas_thread
from .._base import cached, fraction, positive
from .._layer.geometry import Geometry
from .._layer.stencil import Stencil, resolve, stencil_of
from .._route.norm import norm_route
from .._route.records import Method, NormRoute
from .._text import Lower, Upper, number
from .bounds import Bounds
from .norm_bounds import norm_bounds
from .one_matrix import norm_of_matrix
from .rounding import Allowance, of_stated_matrix

# Characters of single and double precision, which are computed with as they are. And
# the sizes of the largest entry between which squares neither overflow nor underflow.
REAL, SAFE = "fd", (1e-60, 1e60)
# How both bounds are rounded.
OUTWARD = (ROUND_DOWN, ROUND_UP)
# The route of a layer that has the same real matrix at all frequencies.
ONE_MATRIX = NormRoute("frequencies", "one matrix")


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
    method : str
        How the upper bound was certified: one of those that `operator_norm` lists.
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


def operator_norm(
    weight: Array,
    geometry: Geometry,
    rtol: float = 1e-4,
    *,
    budget: float | None = None,
) -> NormBounds:
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
    budget : float, optional
        Seconds that this may take, by the prediction of `plan`. If no method reaches
        `rtol` within them, the bounds come from the closest that does not take longer:
        their `gap` tells how far apart they are, and `method` by what. By default a
        banded factor may take about 5 seconds, a block compression half of that, and
        any other method a minute, on a machine with two cores: the default does not
        depend on yours.

    Returns
    -------
    NormBounds
        `lower <= norm <= upper`, rounding included, by one of these methods:

        - "frequencies": the layer is block diagonal in the Fourier basis. The bounds
          agree to `rtol`, unless nearly all of very many frequencies have the same norm
          in a part of the channels, and there is no time to tell them apart.
        - "matrix": any other layer whose matrix is small: at most `2**28` for its
          entries times its shorter side (645 x 645, or many smaller matrices in
          groups). The bounds agree to `rtol`.
        - "banded": any other layer whose Gram matrix, by rows of sites, has a band so
          narrow that it can be factorized within the budget. For 3x3 taps on an n x n
          grid this takes about `4 * n * (channels * n)**3` operations: some seconds for
          64 channels on 16 x 16. The bounds agree to `rtol`.
        - "compression": all others that pad with zeros. The upper bound rests on the
          norms of a circular layer that contains this one as a block, cut to the grid;
          the lower bound is attained on the layer itself. The gap is about 1e-3 for 3x3
          taps on 20x20, and falls as the third power of the grid. Tried before "banded"
          if it may reach `rtol`.
        - "block compression": these, where the bounds are further apart than `rtol`
          (and, without a budget, than 1e-3) and a banded factor takes too long. A few
          directions of the channels, in which the input of the lower bound lies, are
          cut to the grid with their symbol. Trained 3x3 layers with 256 channels on
          14x14 have gaps of about 2e-4, with 512 on 7x7 up to 1e-3. Tried before
          "banded" if it may reach `rtol` in less time. For real weights in one group,
          in memory of the CPU.
        - "embedding": all other layers. The upper bound is that of a circular layer
          which contains this one as a block; the lower bound is attained on the layer
          itself.
        - "supremum": grid None. With a zero or circular boundary the bounds agree to
          `rtol`, with the same exception; with any other, the upper bound is multiplied
          by the most that the padding can contribute on the smallest grid.
        - "reshaped": layers for which none of these is within the budget. The bounds
          come from the norm of the kernel as one matrix, and are up to sqrt(taps)
          apart, more where padding repeats sites.

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
    rtol = fraction("rtol", rtol)
    if budget is not None:
        budget = positive("budget", budget)
    elif (found := _norm_by_shortcut(weight, geometry, rtol)) is not None:
        return found
    return norm_by(weight, stencil_of(weight, geometry), rtol, budget=budget)


def _norm_by_shortcut(
    weight: Array, geometry: Geometry, rtol: float
) -> NormBounds | None:
    """The norm of a real 1x1 kernel that is the matrix of all frequencies, else None.

    Many networks consist of such layers, mostly so small that checks, stencil and route
    of the usual way would take longer than the arithmetic. None as well for entries
    whose squares may overflow or underflow, and for NaN and infinity.
    """
    plain = numpy_view(weight)
    if plain is None or plain.dtype.char not in REAL or type(geometry) is not Geometry:
        return None
    layer = _layer_of_one_matrix(plain.shape, geometry)
    if layer is None:
        return None
    matrix = plain.reshape(plain.shape[:2]).astype(np.float64, copy=False)
    if not SAFE[0] < float(np.abs(matrix).max()) < SAFE[1]:
        return None
    is_small = min(matrix.shape) <= BLAS_SMALL_SIDE
    with nullcontext() if is_small else one_blas_thread():
        found = norm_of_matrix(matrix, layer.allowance, rtol)
    lower, upper = scalars_like(weight, found.lower, found.upper)
    return NormBounds(lower, upper, ONE_MATRIX.method, layer.grid)


@dataclass(frozen=True, slots=True)
class _LayerOfOneMatrix:
    """A layer whose kernel is its matrix at all frequencies."""

    grid: tuple[int, ...] | None
    allowance: Allowance


@cached(maxsize=256)
def _layer_of_one_matrix(
    shape: tuple[int, ...], geometry: Geometry
) -> _LayerOfOneMatrix | None:
    """None if a real kernel of this shape is not the layer's matrix at each frequency.

    Or if there are several groups.
    """
    stencil = resolve(shape, geometry)
    if stencil.taps > 1 or norm_route(stencil, real=True, on_host=True) != ONE_MATRIX:
        return None
    return _LayerOfOneMatrix(stencil.grid, of_stated_matrix(*shape[:2]))


def norm_by(
    weight: Array,
    stencil: Stencil,
    rtol: float,
    *,
    budget: float | None = None,
    route: NormRoute | None = None,
) -> NormBounds:
    """The norm of a layer by this route, or by that for its plain numbers.

    Where these are not known yet, under `jit`, the method is the last of the route.
    """
    method: Method | None = None

    def bounds_of(plain: Array) -> Bounds:
        nonlocal method
        found = norm_bounds(plain, stencil, rtol, budget=budget, route=route)
        method = found.method
        return found

    def both(plain: Array) -> tuple[float, float]:
        bounds = bounds_of(plain)
        return bounds.lower, bounds.upper

    def both_and_gradient(plain: Array) -> tuple[Array, float, float]:
        bounds = bounds_of(plain)
        return bounds.derivative(), bounds.lower, bounds.upper

    if is_differentiated(weight):
        _, lower, upper = call_on_host(
            both_and_gradient, weight, arrays=1, scalars=OUTWARD, has_gradient=True
        )
    else:
        lower, upper = call_on_host(both, weight, arrays=0, scalars=OUTWARD)
    if method is None:
        real, host = not is_complex(weight), is_host(weight)
        last = route or norm_route(
            stencil, real=real, on_host=host, rtol=rtol, budget=budget
        )
        method = last.closing or last.method
    return NormBounds(lower=lower, upper=upper, method=method, grid=stencil.grid)
