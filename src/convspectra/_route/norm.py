"""The route of `operator_norm`."""

import math
from dataclasses import replace

from .._base import cached
from .._layer.stencil import Stencil, embedding
from .._maps.banded import BandedGram, banded_gram
from .._maps.matrix import ENTRIES_LIMIT, matrix_entries, matrix_shape
from .._maps.symbol import common_steps, pattern_of
from .._maps.tiling import working_set
from .._price import (
    NOMINAL,
    Machine,
    directions_kept,
    of_band,
    of_block_compression,
    product_seconds,
    this_machine,
)
from .cost import route_cost
from .records import Method, NormRoute
from .torus import BOUNDED_FREQUENCIES, screens_all, torus_route

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
# Sites of an axis up to which a compression cuts it. Beyond, the norm of the torus is
# close: it exceeds the layer's by about (degree * pi / sites)^2 / 8.
CUT_SITES = 512


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
    few = min(sites) <= CUT_SITES and math.prod(points) <= BOUNDED_FREQUENCIES
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
