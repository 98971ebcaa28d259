"""What a route is predicted to cost, by the prices of what it does."""

from dataclasses import replace

from .._base import cached
from .._layer.stencil import Stencil, embedding
from .._maps.banded import banded_gram
from .._price import (
    APPLICATIONS,
    COMPRESSION,
    Cost,
    Machine,
    of_band,
    of_block_compression,
    of_group_bounds,
    of_kernel_matrix,
    of_lanczos,
    of_matrix_norm,
    of_one_matrix,
    of_torus,
    symbol_size,
)
from .records import NormRoute
from .torus import groups_come_first

# Groups that may have the largest norm, by the bounds of all: usually one or two.
DECIDING_GROUPS = 2


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
