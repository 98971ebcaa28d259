"""Which groups of a layer decide its norm: the largest of the norms of its groups."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from .._arrays.array import Array, asarray_like, is_complex, is_host, to_numpy
from .._layer.stencil import Stencil, embedding
from .._maps.symbol import frequencies_of, taps_of
from .._route.torus import groups_come_first, screens_all
from .bounds import Bounds
from .rounding import UP
from .symbol_norms import SymbolNorms
from .top_vectors import attained_by, top_pair_from

NEAR = 1e-4  # relative gain at which Lanczos stops, in the group with the largest bound


def by_groups(
    bound: Callable[[Array, Stencil], Bounds],
    weight: Array,
    stencil: Stencil,
    chosen: np.ndarray,
) -> Bounds:
    """The norm of a layer by `bound`, if no group but these has a larger norm."""
    if len(chosen) == stencil.groups:
        return bound(weight, stencil)
    shape = weight.shape[1:]
    kernels = to_numpy(weight).reshape(stencil.groups, -1, *shape)
    own = asarray_like(weight, kernels[chosen].reshape(-1, *shape))
    found = bound(own, replace(stencil, groups=len(chosen)))

    def derivative() -> Array:
        whole = np.zeros_like(kernels)
        whole[chosen] = to_numpy(found.derivative()).reshape(-1, *kernels.shape[1:])
        return asarray_like(weight, whole.reshape(weight.shape))

    return replace(found, derivative=derivative)


def distinct_groups(weight: Array, stencil: Stencil) -> np.ndarray:
    """The first of all groups that are equal, as in a blur of each channel."""
    kernels = to_numpy(weight).reshape(stencil.groups, -1)
    if len(set(kernels.sum(axis=1).tolist())) == stencil.groups:
        return np.arange(stencil.groups)
    first: dict[bytes, int] = {}
    for group, kernel in enumerate(kernels):
        first.setdefault(kernel.tobytes(), group)
    return np.array(list(first.values()))


def groups_that_count(
    weight: Array, stencil: Stencil, method: Literal["matrix", "banded"]
) -> np.ndarray:
    """All groups but those that certainly have a smaller norm than another one.

    Or all, where it takes as long to find out as to bound their norms by this method.
    """
    if not groups_come_first(stencil, method, real=not is_complex(weight)):
        return np.arange(stencil.groups)
    uppers = group_bounds(weight, stencil)
    first = int(np.argmax(uppers))
    own = slice(first, first + 1)
    pair = top_pair_from(weight, stencil, own, None, rtol=NEAR, goal=math.inf)
    return np.flatnonzero(uppers >= attained_by(pair, weight, stencil))


def group_bounds(weight: Array, stencil: Stencil) -> np.ndarray:
    """A certified bound for each group, by the torus around it.

    Of the channels of a trained depthwise layer they leave one or two that may have the
    largest norm.
    """
    torus, factor = embedding(stencil)
    taps, real = taps_of(weight, torus), not is_complex(weight)
    kept = frequencies_of(taps.pattern, torus.rows, real=real)
    screened = screens_all(torus, real=real, on_host=is_host(weight))
    norms = SymbolNorms(taps, kept, is_screened=screened)
    return norms.uppers.max(axis=0) * (factor * UP)
