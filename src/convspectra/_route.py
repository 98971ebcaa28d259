"""Which algorithm does a job get, and why? Decided here, and followed everywhere.

`operator_norm`, `singular_values`, `clip` and `project` follow a route, `plan` prices
it, `NormBounds.method` names it, and tests ask for one by name.

What certifies a norm (`method`), by the layer:

    no grid                                      supremum
    the Fourier basis makes it block diagonal    frequencies
    its matrix is small                          matrix
    its Gram matrix has a narrow band            banded
    it reads zeros outside of its input          compression of a torus to its grid
                                                 (before banded, if near enough)
    any other                                    embedding in a torus

What is done with the matrices of a torus (`algorithm`), the first row that applies:

    all are the same real matrix                 one matrix
    few and small                                values
    at most some thousands                       every frequency
    many and small                               search by values
    many and large                               search
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from ._base import cached
from ._layer.stencil import Stencil, embedding
from ._maps.banded import BandedGram, banded_gram
from ._maps.matrix import ENTRIES_LIMIT, matrix_entries, matrix_shape
from ._maps.symbol import common_steps, pattern_of
from ._maps.tiling import working_set

Method: TypeAlias = Literal[
    "frequencies", "matrix", "banded", "compression", "embedding", "supremum"
]
NormAlgorithm: TypeAlias = Literal[
    "one matrix",
    "values",
    "every frequency",
    "search by values",
    "search",
    "matrix",
    "banded",
]
ValuesAlgorithm: TypeAlias = Literal[
    "one matrix", "compiled", "array library", "matrix", "too large"
]

# Products to factorize the matrices of a layer, up to which that takes less time than
# to factorize within the band of the Gram matrix.
MATRIX_LIMIT = 2**28
# Products within the band, up to which that closes an interval: some three seconds on
# two cores. For training, which asks at every step, the matrix must be small, too.
BANDED_LIMIT, QUICK_LIMIT = 2**37, 2**33
# Numbers that this may have in memory: 512 MB of real ones.
BANDED_NUMBERS = 2**26
# Sites of an axis up to which a compression cuts it, and frequencies up to which it
# bounds the norm at each. Beyond, a torus is close: (degree * pi / sites)^2 / 8.
CUT_SITES, COMPRESSION_FREQUENCIES = 512, 2**18
# Entries of the largest matrix that `project` decomposes, in each of its rounds.
PROJECT_MATRIX_LIMIT = 2**18
# Grids with no more frequencies are not searched: all their matrices are certified.
EXHAUSTIVE_LIMIT = 4096
# A search begins with about BOXES * axes * degree boxes on each axis.
BOXES = 10
# Largest sides for which a norm may be found by singular values: of all matrices, and
# in a search. Measured on two machines; see `svd_is_cheaper`.
VALUES_SIDE, SEARCH_VALUES_SIDE = 64, 16
# Screening costs as much as this many decompositions of matrices of side s:
# (nodes + SCREENING_FIXED / s**3) * SCREENING_COST / s. Measured on two machines.
SCREENING_COST, SCREENING_FIXED = 100, 2**18
# Bytes that the Gram matrices at the nodes of screening may take.
SCREENING_BYTES = 2**28
# Nodes per frequency up to which a compression screens: a node costs a product, and two
# factorizations in double precision take as long as some ten in single precision.
SCREENED_NODES = 2
# Soft-thresholding many matrices at once: the largest side of which a vector's worth
# stays in the cache, and the fewest matrices that are worth a vector.
COMPILED_CLIP_SIDE, COMPILED_CLIP_COUNT = 256, 4


@dataclass(frozen=True, slots=True)
class NormRoute:
    """How the norm of a layer is certified.

    Attributes
    ----------
    method : what certifies the upper bound
    algorithm : what is done with the matrices of the torus, or of the layer
    is_screened : whether single precision settles most of them first
    """

    method: Method
    algorithm: NormAlgorithm
    is_screened: bool = False


@dataclass(frozen=True, slots=True)
class SymbolSize:
    """How large and how many the matrices of a torus are, before any is made.

    For a norm a common step of all shifts, as under dilation, is divided out: the norm
    is that of the dilation-reduced kernel, on a smaller grid.
    """

    groups: int
    side: int  # the shorter side of a matrix
    longer_side: int
    degree: tuple[int, ...]  # of the symbol as a trigonometric polynomial
    points: tuple[int, ...] | None  # frequencies per axis; None: all there are
    real: bool

    @property
    def frequencies(self) -> float:
        """How many have different matrices: of a conjugate pair one counts."""
        if self.points is None:
            return math.inf
        every = math.prod(self.points)
        if not self.real:
            return every
        self_conjugate = math.prod(2 - n % 2 for n in self.points if n > 1)
        return (every + self_conjugate) // 2

    @property
    def nodes(self) -> int:
        """Frequencies from which the Gram matrices of all others are interpolated."""
        every = math.prod(2 * d + 1 for d in self.degree)
        return (every + 1) // 2 if self.real else every

    @property
    def boxes(self) -> int:
        """About how many boxes of frequencies a search begins with."""
        return math.prod(max(1, BOXES * len(self.degree) * d) for d in self.degree)

    @property
    def is_searched(self) -> bool:
        if self.points is None:
            return True
        return math.prod(self.points) > max(EXHAUSTIVE_LIMIT, self.boxes)

    @property
    def svd_is_cheaper(self) -> bool:
        """Whether decomposing all matrices takes less time than screening them."""
        per_node = SCREENING_COST / self.side
        screening = (self.nodes + SCREENING_FIXED / self.side**3) * per_node
        return self.side <= VALUES_SIDE and self.frequencies < screening


@cached(maxsize=256)
def symbol_size(torus: Stencil, *, real: bool) -> SymbolSize:
    """The size of the matrices from which the norm of a torus comes."""
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


def method_of(stencil: Stencil, rtol: float = 0.0, *, is_quick: bool = False) -> Method:
    """What certifies the upper bound of a layer's norm.

    Quick is what training asks for: an upper bound alone, in less time than a banded
    factor may take, and of the torus that `project` has brought within a bound.
    """
    if stencil.axes is None:
        return "supremum"
    if stencil.is_torus:
        return "frequencies"
    entries, side = matrix_entries(stencil), min(matrix_shape(stencil))
    products = entries * side if entries <= ENTRIES_LIMIT else math.inf
    if products <= MATRIX_LIMIT:
        return "matrix"
    # A banded factor closes the interval to any `rtol`; the others cost less, and how
    # near they come is known only when they are done.
    compresses = not is_quick and _compresses(stencil)
    if compresses and compression_gap(stencil) <= rtol:
        return "compression"
    if (products <= QUICK_LIMIT or not is_quick) and affordable_band(stencil):
        return "banded"
    return "compression" if compresses else "embedding"


def _compresses(stencil: Stencil) -> bool:
    """Whether a compression bounds the layer, and is worth its time."""
    rows = embedding(stencil)[0].rows
    few = min(stencil.rows) <= CUT_SITES and math.prod(rows) <= COMPRESSION_FREQUENCIES
    return stencil.reads_zeros_outside and few


def compression_gap(stencil: Stencil) -> float:
    """About how far apart the bounds of a compression are, relatively.

    The cube of the kernel's reach over the grid's size, summed over the axes: 7e-4 for
    3x3 taps on 28x28, where trained kernels had 2e-4 to 6e-4 and random ones up to
    1.3e-3.
    """
    sides = zip(stencil.reach, stencil.stride, stencil.rows)
    return sum(((reach - 1) / (stride * rows)) ** 3 for reach, stride, rows in sides)


@cached(maxsize=256)
def affordable_band(stencil: Stencil) -> BandedGram | None:
    """The banded Gram matrix of a layer, if its factorization is within the limits."""
    gram = banded_gram(stencil)
    if gram is None or gram.products > BANDED_LIMIT:
        return None
    numbers = max((working_set(gram, piece) for piece in gram.pieces), default=0)
    return gram if numbers <= BANDED_NUMBERS else None


@cached(maxsize=256)
def norm_route(
    stencil: Stencil,
    *,
    real: bool,
    on_host: bool,
    rtol: float = 0.0,
    is_quick: bool = False,
) -> NormRoute:
    """The route of `operator_norm`; `on_host`: for weights that are NumPy's."""
    method = method_of(stencil, rtol, is_quick=is_quick)
    if method == "matrix":
        return NormRoute(method, "matrix")
    if method == "banded":
        return NormRoute(method, "banded")
    torus = embedding(stencil)[0]
    route = torus_route(method, torus, real=real, on_host=on_host)
    if method == "compression":  # which has a use for every frequency
        size = symbol_size(torus, real=real)
        worth = size.nodes < SCREENED_NODES * size.frequencies
        screened = on_host and worth and _screening_fits(torus, size)
        return replace(route, is_screened=screened)
    return route


@cached(maxsize=256)
def torus_route(
    method: Method, torus: Stencil, *, real: bool, on_host: bool
) -> NormRoute:
    """The route of the norm of a torus, for a bound that `method` certifies."""
    size = symbol_size(torus, real=real)
    if on_host and real and size.groups == 1 and not any(size.degree):
        return NormRoute(method, "one matrix")
    if not size.is_searched and on_host and size.svd_is_cheaper:
        return NormRoute(method, "values")
    if size.is_searched and on_host and size.side <= SEARCH_VALUES_SIDE:
        return NormRoute(method, "search by values")
    screened = (
        on_host and size.nodes < size.frequencies and _screening_fits(torus, size)
    )
    return NormRoute(
        method, "search" if size.is_searched else "every frequency", screened
    )


def _screening_fits(torus: Stencil, size: SymbolSize) -> bool:
    """Whether there is memory for the Gram matrices at all nodes."""
    # Real and imaginary parts of their triangles, in double precision.
    known = 16 * size.nodes * size.groups * size.side * (size.side + 1) // 2
    kernel = 16 * size.groups * torus.out_channels * torus.in_channels * torus.taps
    return known <= max(SCREENING_BYTES, kernel)


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

    If not, `clip` takes eigenvectors of their Gram matrices, or all singular vectors if
    small values are to be raised.
    """
    small = side <= COMPILED_CLIP_SIDE and matrices >= COMPILED_CLIP_COUNT
    return small and real and on_host and not raises


def projects_by_matrix(stencil: Stencil) -> bool:
    """Whether `project` works on the layer's own matrix, not on a torus around it."""
    small = method_of(stencil) == "matrix"
    return small and matrix_entries(stencil) <= PROJECT_MATRIX_LIMIT
