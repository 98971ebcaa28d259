"""Norms by a route that a test asks for by name."""

from dataclasses import replace

from convspectra._arrays.array import is_complex
from convspectra._layer.stencil import embedding, stencil_of
from convspectra._norm.operator_norm import norm_by
from convspectra._route import NormRoute, norm_route, torus_route

SEARCHES = ("search", "search by values")


def norm_along(weight, geometry, rtol=1e-4, *, method=None, **changed):
    """The norm by the route that suits the layer, but for what is changed of it.

    With the method "embedding" or "compression" the torus that holds the layer is gone
    through, however small its matrix is; a compression needs zeros outside the input.
    With "banded" its banded Gram matrix is factorized.
    """
    stencil = stencil_of(weight, geometry)
    options = {"real": not is_complex(weight), "on_host": True}
    if method is None or stencil.is_torus or stencil.axes is None:
        route = norm_route(stencil, **options)
    elif method == "banded":
        route = NormRoute(method, "banded")
    else:
        if method == "compression" and not stencil.reads_zeros_outside:
            method = "embedding"
        route = torus_route(method, embedding(stencil)[0], **options)
    return norm_by(replace(route, **changed), weight, stencil, rtol)


def search(weight, geometry, rtol=1e-4, *, algorithm="search"):
    """The norm by a search over boxes, where all frequencies would be looked at."""
    screened = algorithm == "search"
    return norm_along(weight, geometry, rtol, algorithm=algorithm, is_screened=screened)
