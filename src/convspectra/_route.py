"""Which algorithm does a job get, and why? Decided here, and followed everywhere.

`operator_norm`, `singular_values`, `clip` and `project` follow a route, `plan` prices
it, `NormBounds.method` names it, and tests ask for one by name.

What certifies a norm (`method`), by the layer:

    no grid                                      supremum
    the Fourier basis makes it block diagonal    frequencies
    its matrix is small                          matrix
    its Gram matrix has a narrow band            banded
    it reads zeros outside of its input          compression of a torus to its grid
                                                 (before banded, if likely near enough;
                                                 block compression, if not near enough,
                                                 or before banded, if likely quicker)
    any other                                    embedding in a torus
    none of these is within the budget           reshaped: the kernel as one matrix

What is done with the matrices of a torus (`algorithm`), the first row that applies:

    all are the same real matrix                 one matrix
    few and small                                small matrices
    at most some thousands                       every frequency
    many and small                               search by values
    many and large                               search
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ._base import cached
from ._layer.stencil import Stencil, embedding
from ._maps.banded import BandedGram, banded_gram
from ._maps.matrix import ENTRIES_LIMIT, matrix_entries, matrix_shape
from ._maps.symbol import common_steps, pattern_of
from ._maps.tiling import working_set
from ._price import (
    APPLICATIONS,
    COMPRESSION,
    NOMINAL,
    Cost,
    Machine,
    SymbolSize,
    directions_kept,
    of_band,
    of_block_compression,
    of_group_bounds,
    of_kernel_matrix,
    of_lanczos,
    of_matrix,
    of_matrix_norm,
    of_one_matrix,
    of_torus,
    product_seconds,
    symbol_size,
    this_machine,
)

Method: TypeAlias = Literal[
    "frequencies",
    "matrix",
    "banded",
    "compression",
    "block compression",
    "embedding",
    "supremum",
    "reshaped",
]
NormAlgorithm: TypeAlias = Literal[
    "one matrix",
    "small matrices",
    "every frequency",
    "search by values",
    "search",
    "matrix",
    "banded",
]
ValuesAlgorithm: TypeAlias = Literal[
    "one matrix", "compiled", "LAPACK", "array library", "matrix", "too large"
]

# Products to factorize the matrices of a layer, up to which that takes less time than
# to factorize within the band of the Gram matrix.
MATRIX_LIMIT = 2**28
# The budget, unless it is stated, in seconds of the nominal machine: for a banded
# factor or a block compression that closes an interval, and for a norm in all.
CLOSING_SECONDS, BLOCK_SECONDS, SECONDS = 5.0, 2.5, 60.0
# Products to factorize the matrices of a layer, up to which a banded factor is worth
# its time where only the upper bound is wanted: training asks for it at every step.
UPPER_ONLY_LIMIT = 2**30
# Numbers that a banded factor may have in memory: 1.5 GB of real ones.
BANDED_NUMBERS = 3 * 2**26
# A compression is tried before a banded factor if so much of the gap that it is
# expected to leave is within the tolerance: random 3x3 kernels leave 0.8 to 2.3 of it.
PROMISING = 0.8
# The same for a block compression: trained 3x3 kernels leave 1e-2 of that gap, random
# ones up to 0.15.
BLOCK_PROMISING = 2e-2
# Directions that a block compression must be able to keep, and bytes that it may take.
FEWEST_DIRECTIONS, BLOCK_BYTES = 2, 2**30
# A relative gap that is not worth the seconds of a block compression, without a budget.
BLOCK_GAP = 1e-3
# Sites of an axis up to which a compression cuts it, and frequencies up to which it
# bounds the norm at each. Beyond, a torus is close: (degree * pi / sites)^2 / 8.
CUT_SITES, COMPRESSION_FREQUENCIES = 512, 2**18
# Of a group by its matrix or band, but for products: with this their bounds come first
# from 60 channels on 7x7 on, where both ways were measured to take as long.
GROUP_SECONDS = 1e-4
# Groups that may have the largest norm, by the bounds of all: usually one or two.
DECIDING_GROUPS = 2
# Entries of the largest matrix that `project` decomposes, in each of its rounds.
PROJECT_MATRIX_LIMIT = 2**18
# The largest side for which a search takes singular values. Measured on two machines.
SEARCH_VALUES_SIDE = 16
# Bytes that the Gram matrices at the nodes of screening may take.
SCREENING_BYTES = 2**28
# Nodes per frequency up to which a compression screens: a node costs a product, and two
# factorizations in double precision take as long as some ten in single precision.
SCREENED_NODES = 2
# Predicted seconds of all values that a process is asked for, up to which LAPACK takes
# less time than to load our compiled routine (0.9 s), let alone to compile it (5 s).
LAPACK_SECONDS = 0.2
# Soft-thresholding many matrices at once: the largest side of which a vector's worth
# stays in the cache, and the fewest matrices that are worth a vector.
COMPILED_CLIP_SIDE, COMPILED_CLIP_COUNT = 256, 4


@dataclass(frozen=True, slots=True)
class NormRoute:
    """How the norm of a layer is certified.

    These are all combinations, and who follows them (modules of `_norm`):

        method             algorithm   closing            followed by
        frequencies        of a torus  -                  norm_bounds
        supremum           of a torus  -                  norm_bounds
        embedding          of a torus  -                  norm_bounds
        matrix             matrix      -                  matrix_norm
        banded             banded      -                  banded_norm
        block compression  banded      banded             banded_norm, for both
        compression        of a torus  -                  zero_padding
        compression        of a torus  block compression  zero_padding, for both
        compression        of a torus  banded             zero_padding; banded_norm
        reshaped           one matrix  -                  reshaped

    Attributes
    ----------
    method : what certifies the upper bound
    algorithm : what is done with the matrices of the torus, or of the layer
    is_screened : whether single precision settles most of them first
    closing : what is tried next if upper / lower - 1 > max(rtol, allowed_gap)
    allowed_gap : not 0 only where a block compression closes: its seconds must pay
    """

    method: Method
    algorithm: NormAlgorithm
    is_screened: bool = False
    closing: Method | None = None
    allowed_gap: float = 0.0


@cached(maxsize=256)
def norm_route(
    stencil: Stencil,
    *,
    real: bool,
    on_host: bool,
    rtol: float = 0.0,
    budget: float | None = None,
    upper_only: bool = False,
) -> NormRoute:
    """The route of `operator_norm`: the first of `_ways` that is within the budget.

    Ways are ordered from the closest bounds to the loosest; where one that costs less
    is likely to reach `rtol`, it comes first. What they cost is predicted. The last
    resort, "reshaped", may take longer than the budget.

    Parameters
    ----------
    on_host : bool
        Whether the weight is a NumPy array.
    budget : float, optional
        Seconds on this machine. By default SECONDS, on the nominal one.
    upper_only : bool
        Whether the lower bound is of no use, as in training. Then a banded factor must
        take little time, and a layer that is too large for it gets the norm of the
        torus that `project` has brought within a bound.
    """
    machine, most = NOMINAL, SECONDS
    closing_seconds, block_seconds = CLOSING_SECONDS, BLOCK_SECONDS
    if budget is not None:
        machine = this_machine()
        closing_seconds = block_seconds = most = budget
    closes = _can_close(stencil, machine, closing_seconds)
    in_blocks = real and on_host and _has_blocks(stencil, machine, block_seconds)
    for method, closing in _ways(
        stencil, rtol, closes=closes, in_blocks=in_blocks, upper_only=upper_only
    ):
        route = _route_of_method(method, stencil, real=real, on_host=on_host)
        is_patient = budget is not None or closing != "block compression"
        gap = 0.0 if is_patient else BLOCK_GAP
        route = replace(route, closing=closing, allowed_gap=gap)
        if route_cost(route, stencil, machine, real=real).seconds <= most:
            return route
    return NormRoute("reshaped", "one matrix")


def method_of(stencil: Stencil) -> Method:
    """What certifies the upper bound of a layer's norm, as close as it gets."""
    return norm_route(stencil, real=True, on_host=True).method


def _ways(
    stencil: Stencil, rtol: float, *, closes: bool, in_blocks: bool, upper_only: bool
) -> tuple[tuple[Method, Method | None], ...]:
    """What may certify the bound, and what closes the gap then: the closest first.

    Whether there is time for a banded factor, or for a block compression, is known.
    """
    if stencil.axes is None:
        return (("supremum", None),)
    if stencil.is_torus:
        return (("frequencies", None),)
    entries, side = matrix_entries(stencil), min(matrix_shape(stencil))
    products = entries * side if entries <= ENTRIES_LIMIT else math.inf
    # How near a compression comes is known only when it is done; a factor, of a matrix
    # or within a band, closes the interval to any `rtol`.
    found: list[tuple[Method, Method | None]] = []
    compresses = not upper_only and _compresses(stencil)
    if products <= MATRIX_LIMIT:
        found.append(("matrix", None))
    elif closes and (products <= UPPER_ONLY_LIMIT or not upper_only):
        if compresses and PROMISING * compression_gap(stencil) <= rtol:
            found.append(("compression", "banded"))
        elif compresses and in_blocks and _blocks_come_first(stencil, rtol):
            found.append(("block compression", "banded"))
        found.append(("banded", None))
    if compresses and in_blocks:
        found.append(("compression", "block compression"))
    if compresses:
        found.append(("compression", None))
    return (*found, ("embedding", None))


def _can_close(stencil: Stencil, machine: Machine, seconds: float) -> bool:
    """Whether a factor within the band of the Gram matrix takes no longer than that."""
    if stencil.axes is None or stencil.is_torus:
        return False
    gram = banded_gram(stencil)
    if gram is None or product_seconds(gram, machine) > seconds:
        return False  # to cut a large grid into tiles takes seconds
    return (
        affordable_band(stencil) is not None
        and of_band(gram, machine).seconds <= seconds
    )


def _has_blocks(stencil: Stencil, machine: Machine, seconds: float) -> bool:
    """Whether a block compression is possible, and takes no longer than that."""
    if stencil.axes is None or stencil.is_torus or stencil.groups > 1:
        return False
    if (common_steps(pattern_of(stencil).shifts) > 1).any():
        return False
    if directions_kept(stencil) < FEWEST_DIRECTIONS:
        return False
    cost = of_block_compression(stencil, machine)
    return cost.seconds <= seconds and cost.memory <= BLOCK_BYTES


def _blocks_come_first(stencil: Stencil, rtol: float) -> bool:
    """Whether a block compression is likely to do, in less time than a banded factor.

    It is tried at one threshold, which costs little if it does not.
    """
    gram, block = banded_gram(stencil), of_block_compression(stencil, NOMINAL)
    is_quicker = gram is not None and block.seconds <= of_band(gram, NOMINAL).seconds
    return is_quicker and BLOCK_PROMISING * compression_gap(stencil) <= rtol


def _compresses(stencil: Stencil) -> bool:
    """Whether a compression bounds the layer, and is worth its time.

    Under dilation each residue class of the sites is a layer of its own, and all have
    the same bound. Axes without a reach need no cut.
    """
    shifts = pattern_of(stencil).shifts
    sizes = zip(stencil.rows, embedding(stencil)[0].rows, common_steps(shifts))
    reduced = [(-(-rows // step), -(-points // step)) for rows, points, step in sizes]
    cut = [size for size, reach in zip(reduced, shifts.max(axis=0)) if reach]
    sites, points = zip(*cut) if cut else ((1,), (1,))
    few = min(sites) <= CUT_SITES and math.prod(points) <= COMPRESSION_FREQUENCIES
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
    """The banded Gram matrix of a layer, if there is memory for its factorization."""
    gram = banded_gram(stencil)
    if gram is None:
        return None
    numbers = max((working_set(gram, piece) for piece in gram.pieces), default=0)
    return gram if numbers <= BANDED_NUMBERS else None


@cached(maxsize=256)
def _route_of_method(
    method: Method, stencil: Stencil, *, real: bool, on_host: bool
) -> NormRoute:
    """The route with this method, without what may close it."""
    if method == "matrix" or method == "banded":
        return NormRoute(method, method)
    if method == "block compression":  # which a banded factor closes
        return NormRoute(method, "banded")
    torus = embedding(stencil)[0]
    route = torus_route(method, torus, real=real, on_host=on_host)
    if method == "compression":  # which has a use for every frequency
        screened = screens_all(torus, real=real, on_host=on_host)
        return replace(route, is_screened=screened)
    return route


@cached(maxsize=256)
def groups_come_first(
    stencil: Stencil, method: Literal["matrix", "banded"], *, real: bool
) -> bool:
    """Whether to bound all groups by their tori before some are gone through by this.

    They may leave one: that pays where they cost less than the method for all.
    """
    torus = embedding(stencil)[0]
    if stencil.groups == 1 or math.prod(torus.rows) > COMPRESSION_FREQUENCIES:
        return False
    screened = screens_all(torus, real=real, on_host=True)
    bounds = of_torus(torus, NOMINAL, real=real, by_values=False, is_screened=screened)
    if method == "matrix":
        whole = of_matrix(stencil, NOMINAL, products=1)
    else:
        gram = banded_gram(stencil)
        assert gram is not None
        whole = of_band(gram, NOMINAL)
    return bounds.seconds < whole.seconds + GROUP_SECONDS * stencil.groups


def screens_all(torus: Stencil, *, real: bool, on_host: bool) -> bool:
    """Whether to screen, where the norms at all frequencies are wanted."""
    size = symbol_size(torus, real=real)
    worth = size.nodes < SCREENED_NODES * size.frequencies
    return on_host and worth and _screening_fits(torus, size)


@cached(maxsize=256)
def typical_cost(
    route: NormRoute, stencil: Stencil, machine: Machine, *, real: bool
) -> Cost:
    """As `route_cost`, of a layer in which one or two groups decide about the norm.

    That is so in most of them. Where training has brought many to the same bound, all
    have to be gone through: no decision is by this.
    """
    method, closing = route.method, route.closing
    if closing is not None:
        first, then = (
            replace(route, method=m, closing=None) for m in (method, closing)
        )
        cost = route_cost(first, stencil, machine, real=real)
        return cost + typical_cost(then, stencil, machine, real=real)
    if method not in ("matrix", "banded"):
        return route_cost(route, stencil, machine, real=real)
    if not groups_come_first(stencil, method, real=real):
        return route_cost(route, stencil, machine, real=real)
    bounds = of_group_bounds(embedding(stencil)[0], machine, real=real)
    first, few = (replace(stencil, groups=n) for n in (1, DECIDING_GROUPS))
    largest = of_lanczos(first, APPLICATIONS, machine)
    return bounds + largest + route_cost(route, few, machine, real=real)


@cached(maxsize=256)
def route_cost(
    route: NormRoute, stencil: Stencil, machine: Machine, *, real: bool
) -> Cost:
    """What a route is predicted to cost at most, on a machine that is idle."""
    if route.method == "matrix":
        return of_matrix_norm(stencil, machine)
    if route.method == "banded":
        gram = banded_gram(stencil)
        assert gram is not None
        return of_band(gram, machine) + of_lanczos(stencil, APPLICATIONS, machine)
    if route.method == "block compression":
        cost = of_block_compression(stencil, machine)
        if route.closing is not None:
            band = NormRoute(route.closing, "banded")
            cost += route_cost(band, stencil, machine, real=real)
        return cost
    if route.method == "reshaped":
        return of_kernel_matrix(
            stencil.out_channels, stencil.in_channels * stencil.taps, machine
        )
    torus = embedding(stencil)[0]
    by_values = route.algorithm in ("small matrices", "search by values")
    if route.algorithm == "one matrix":
        cost = of_one_matrix(torus, machine)
    else:
        cost = of_torus(
            torus,
            machine,
            real=real,
            by_values=by_values,
            is_screened=route.is_screened,
        )
    if route.method == "compression" and not symbol_size(torus, real=real).is_searched:
        cost = Cost(COMPRESSION * cost.seconds, cost.memory)
    if route.method in ("compression", "embedding"):
        cost += of_lanczos(stencil, APPLICATIONS, machine)
    if route.closing is not None:
        closing = replace(route, method=route.closing, closing=None)
        cost += route_cost(closing, stencil, machine, real=real)
    return cost


@cached(maxsize=256)
def torus_route(
    method: Method, torus: Stencil, *, real: bool, on_host: bool
) -> NormRoute:
    """The route of the norm of a torus, for a bound that `method` certifies."""
    size = symbol_size(torus, real=real)
    if on_host and real and size.groups == 1 and not any(size.degree):
        return NormRoute(method, "one matrix")
    if not size.is_searched and on_host and size.products_are_cheaper:
        return NormRoute(method, "small matrices")
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


def values_route(
    stencil: Stencil, *, on_host: bool, total_seconds: float = math.inf
) -> ValuesAlgorithm:
    """The route of `singular_values`.

    `total_seconds` are predicted for all values that the process is asked for: unless
    these are known, there may be many.
    """
    if stencil.is_torus and stencil.taps == 1:
        return "one matrix"
    if stencil.is_torus and on_host:
        return "compiled" if total_seconds > LAPACK_SECONDS else "LAPACK"
    if stencil.is_torus:
        return "array library"
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
