"""Norms by a route that a test asks for by name."""

from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from convspectra import _price
from convspectra._arrays.array import is_complex
from convspectra._layer.stencil import embedding, stencil_of
from convspectra._norm.operator_norm import norm_by
from convspectra._route.cost import route_cost, typical_cost
from convspectra._route.norm import norm_route
from convspectra._route.records import NormRoute
from convspectra._route.torus import torus_route

DECIDED_BY_SPEED = (norm_route, route_cost, typical_cost)
SEARCHES = ("search", "search by values")


def norm_along(weight, geometry, rtol=1e-4, *, method=None, **changed):
    """The norm by the route that suits the layer, but for what is changed of it.

    With the method "embedding" or "compression" the torus that holds the layer is gone
    through, however small its matrix is; a compression needs zeros outside the input.
    With "banded" its banded Gram matrix is factorized; with "reshaped" the kernel is
    taken as one matrix. A block compression closes the gap of real layers of one group,
    and comes before the banded factor of those that read zeros.
    """
    stencil = stencil_of(weight, geometry)
    options = {"real": not is_complex(weight), "on_host": True}
    one_real_group = stencil.groups == 1 and not is_complex(weight)
    elsewhere = stencil.is_torus or stencil.axes is None
    if method is None or (elsewhere and method != "reshaped"):
        route = norm_route(stencil, **options)
    elif method in ("banded", "block compression"):
        has_blocks = one_real_group and stencil.reads_zeros_outside
        route = NormRoute(method if has_blocks else "banded", "banded")
    elif method == "reshaped":
        route = NormRoute(method, "one matrix")
    else:
        if method == "compression" and not stencil.reads_zeros_outside:
            method = "embedding"
        route = torus_route(method, embedding(stencil)[0], **options)
    if changed.get("closing") == "block compression" and not one_real_group:
        changed["closing"] = None
    return norm_by(weight, stencil, rtol, route=replace(route, **changed))


@contextmanager
def machine(rate, cores):
    """A machine with so many operations per second, on each of so many cores."""

    def forget():
        for decision in DECIDED_BY_SPEED:
            decision.cache_clear()

    forget()
    with (
        mock.patch.object(_price, "product_rate", return_value=rate),
        mock.patch.object(_price, "cores", return_value=cores),
    ):
        yield
    forget()


def search(weight, geometry, rtol=1e-4, *, algorithm="search"):
    """The norm by a search over boxes, where all frequencies would be looked at."""
    screened = algorithm == "search"
    return norm_along(weight, geometry, rtol, algorithm=algorithm, is_screened=screened)
