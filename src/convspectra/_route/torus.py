"""The route of the norm of a torus: what is done with all those matrices."""

import math
from typing import Literal

from .._base import cached
from .._layer.stencil import Stencil, embedding
from .._maps.banded import banded_gram
from .._price import (
    NOMINAL,
    SymbolSize,
    of_band,
    of_matrix,
    of_torus,
    symbol_size,
)
from .records import Method, NormRoute

# The largest side for which a search takes singular values. Measured on two machines.
SEARCH_VALUES_SIDE = 16
# Bytes that the Gram matrices at the nodes of screening may take.
SCREENING_BYTES = 2**28
# Nodes per frequency up to which a compression screens: a node costs a product, and two
# factorizations in double precision take as long as some ten in single precision.
SCREENED_NODES = 2
# Frequencies of a torus up to which norms are bounded at each, for a compression or to
# tell which groups count.
BOUNDED_FREQUENCIES = 2**18
# Of a group by its matrix or band, but for products: with this their bounds come first
# from 60 channels on 7x7 on, where both ways were measured to take as long.
GROUP_SECONDS = 1e-4


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


def screens_all(torus: Stencil, *, real: bool, on_host: bool) -> bool:
    """Whether to screen, where the norms at all frequencies are wanted."""
    size = symbol_size(torus, real=real)
    worth = size.nodes < SCREENED_NODES * size.frequencies
    return on_host and worth and _screening_fits(torus, size)


@cached(maxsize=256)
def groups_come_first(
    stencil: Stencil, method: Literal["matrix", "banded"], *, real: bool
) -> bool:
    """Whether to bound all groups by their tori before some are gone through by this.

    They may leave one: that pays where they cost less than the method for all.
    """
    torus = embedding(stencil)[0]
    if stencil.groups == 1 or math.prod(torus.rows) > BOUNDED_FREQUENCIES:
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


def _screening_fits(torus: Stencil, size: SymbolSize) -> bool:
    """Whether there is memory for the Gram matrices at all nodes."""
    # Real and imaginary parts of their triangles, in double precision.
    known = 16 * size.nodes * size.groups * size.side * (size.side + 1) // 2
    kernel = 16 * size.groups * torus.out_channels * torus.in_channels * torus.taps
    return known <= max(SCREENING_BYTES, kernel)
