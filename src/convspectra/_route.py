"""Which algorithm a job gets, and why: decided here once, and followed everywhere.

`operator_norm`, `singular_values`, `clip` and `project` follow a route, `plan` prices
it, `NormBounds.method` names it, and tests ask for one by name.

What certifies a norm (`method`), by the layer:

    no grid                                      supremum
    the Fourier basis makes it block diagonal    frequencies
    its matrix is small                          matrix
    any other                                    embedding, in a torus that holds it

How the matrices of a torus are gone through (`algorithm`), the first that fits:

    all are the same real matrix                 one matrix
    few small ones                               values
    up to some thousand                          every frequency
    small ones                                   search by values
    any other                                    search
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ._base import cached
from ._layer.stencil import Stencil, embedding
from ._maps.matrix import ENTRIES_LIMIT, matrix_entries, matrix_shape
from ._maps.symbol import common_steps, pattern_of

Method: TypeAlias = Literal["frequencies", "matrix", "embedding", "supremum"]
NormAlgorithm: TypeAlias = Literal[
    "one matrix", "values", "every frequency", "search by values", "search", "matrix"
]
ValuesAlgorithm: TypeAlias = Literal[
    "one matrix", "compiled", "array library", "matrix", "too large"
]

# Products to factorize the matrices of a layer, up to which that closes an interval.
MATRIX_LIMIT = 2**33
# Entries of a matrix that the projection decomposes in every round.
PROJECT_MATRIX_LIMIT = 2**18
# Grids with no more frequencies are not searched: every frequency is looked at.
EXHAUSTIVE_LIMIT = 4096
# A search begins with about BOXES * axes * degree boxes on each axis.
BOXES = 10
# Singular values of all matrices are considered up to this side, and in a search up to
# the smaller one. Measured on two machines; see `svd_is_cheaper`.
VALUES_SIDE, SEARCH_VALUES_SIDE = 64, 16
# What screening costs, in decompositions of matrices of side s:
# (nodes + SCREENING_FIXED / s**3) * SCREENING_COST / s.
SCREENING_COST, SCREENING_FIXED = 100, 2**18
# Bytes that screening may keep of the Gram matrices at its nodes.
SCREENING_BYTES = 2**28
# Soft thresholds of many matrices at once: the largest side of which a vector's worth
# stays in the cache, and the fewest matrices that are worth a vector.
COMPILED_CLIP_SIDE, COMPILED_CLIP_COUNT = 256, 4


@dataclass(frozen=True, slots=True)
class NormRoute:
    """How the norm of a layer is certified.

    Attributes
    ----------
    method : what the upper bound rests on
    algorithm : what is done with the matrices of the torus, or with the layer's own
    is_screened : whether single precision settles most matrices before double does
    """

    method: Method
    algorithm: NormAlgorithm
    is_screened: bool = False


@dataclass(frozen=True, slots=True)
class SymbolSize:
    """The matrices of a torus before any of them is made: how large and how many.

    For a norm a step that all taps are multiples of (a dilation) is divided out: the
    same norm has the kernel with its taps closer together, on a smaller grid.
    """

    groups: int
    side: int  # the shorter side of a matrix
    longer_side: int
    degree: tuple[int, ...]  # of the symbol as a trigonometric polynomial
    points: tuple[int, ...] | None  # of the grid of frequencies; None: all there are
    real: bool

    @property
    def frequencies(self) -> float:
        """How many differ: of real kernels one of each conjugate pair."""
        if self.points is None:
            return math.inf
        own = math.prod(2 - n % 2 for n in self.points if n > 1) if self.real else 0
        every = math.prod(self.points)
        return (every + own) // 2 if self.real else every

    @property
    def nodes(self) -> int:
        """Frequencies from which the Gram matrices of all others are interpolated."""
        every = math.prod(2 * d + 1 for d in self.degree)
        return (every + 1) // 2 if self.real else every

    @property
    def boxes(self) -> int:
        """Boxes of frequencies that a search begins with, about."""
        return math.prod(max(1, BOXES * len(self.degree) * d) for d in self.degree)

    @property
    def is_searched(self) -> bool:
        if self.points is None:
            return True
        return math.prod(self.points) > max(EXHAUSTIVE_LIMIT, self.boxes)

    @property
    def svd_is_cheaper(self) -> bool:
        """Whether to decompose all matrices takes less time than to screen them."""
        per_node = SCREENING_COST / self.side
        screening = (self.nodes + SCREENING_FIXED / self.side**3) * per_node
        return self.side <= VALUES_SIDE and self.frequencies < screening


@cached(maxsize=256)
def symbol_size(torus: Stencil, *, real: bool) -> SymbolSize:
    """What the norm of a torus has to go through."""
    pattern = pattern_of(torus)
    step = common_steps(pattern.shifts)
    degree = (pattern.shifts // step).max(axis=0)
    points = None
    if torus.axes is not None:
        rows = torus.rows // np.gcd(step, torus.rows)
        points = tuple(int(n) if d else 1 for n, d in zip(rows, degree))
    side, longer_side = sorted(
        (torus.out_channels, len(pattern.phases) * torus.in_channels)
    )
    return SymbolSize(
        groups=torus.groups,
        side=side,
        longer_side=longer_side,
        degree=tuple(map(int, degree)),
        points=points,
        real=real,
    )


def method_of(stencil: Stencil) -> Method:
    """What the upper bound of a layer's norm rests on."""
    if stencil.axes is None:
        return "supremum"
    if stencil.is_torus:
        return "frequencies"
    entries, side = matrix_entries(stencil), min(matrix_shape(stencil))
    small = entries <= ENTRIES_LIMIT and entries * side <= MATRIX_LIMIT
    return "matrix" if small else "embedding"


@cached(maxsize=256)
def norm_route(stencil: Stencil, *, real: bool, on_host: bool) -> NormRoute:
    """The route of `operator_norm`, for weights that are real, and NumPy's, or not."""
    method = method_of(stencil)
    if method == "matrix":
        return NormRoute(method, "matrix")
    return torus_route(method, embedding(stencil)[0], real=real, on_host=on_host)


@cached(maxsize=256)
def torus_route(
    method: Method, torus: Stencil, *, real: bool, on_host: bool
) -> NormRoute:
    """The route of the norm of a torus, for a bound that is to rest on `method`."""
    size = symbol_size(torus, real=real)
    if on_host and real and size.groups == 1 and not any(size.degree):
        return NormRoute(method, "one matrix")
    if not size.is_searched and on_host and size.svd_is_cheaper:
        return NormRoute(method, "values")
    if size.is_searched and on_host and size.side <= SEARCH_VALUES_SIDE:
        return NormRoute(method, "search by values")
    # Real and imaginary parts of the triangles at all nodes, in double precision.
    known = 16 * size.nodes * size.groups * size.side * (size.side + 1) // 2
    kernel = 16 * size.groups * torus.out_channels * torus.in_channels * torus.taps
    fits = known <= max(SCREENING_BYTES, kernel)
    screened = on_host and size.nodes < size.frequencies and fits
    return NormRoute(
        method, "search" if size.is_searched else "every frequency", screened
    )


def values_route(stencil: Stencil, *, on_host: bool) -> ValuesAlgorithm:
    """The route of `singular_values`."""
    if stencil.is_torus and stencil.taps == 1:
        return "one matrix"
    if stencil.is_torus:
        return "compiled" if on_host else "array library"
    return "matrix" if matrix_entries(stencil) <= ENTRIES_LIMIT else "too large"


def clip_is_compiled(
    matrices: int, side: int, *, real: bool, on_host: bool, raises: bool
) -> bool:
    """Whether our own routine soft-thresholds the matrices of a clip.

    Else it takes their eigenvectors, or all singular vectors where small values are to
    be raised.
    """
    small = side <= COMPILED_CLIP_SIDE and matrices >= COMPILED_CLIP_COUNT
    return small and real and on_host and not raises


def projects_by_matrix(stencil: Stencil) -> bool:
    """Whether `project` bounds the layer's own matrix, not a torus that holds it."""
    small = method_of(stencil) == "matrix"
    return small and matrix_entries(stencil) <= PROJECT_MATRIX_LIMIT
