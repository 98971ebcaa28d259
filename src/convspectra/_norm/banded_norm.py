"""The norm of a layer as it is: from below by Lanczos, above by a banded factor.

Or above by a block compression, where that is likely to be as close in less time.
"""

import math
from dataclasses import dataclass

import numpy as np

from .._arrays.array import Array, asarray_like, to_numpy
from .._layer.stencil import Stencil
from .._maps.banded import BandedGram
from .._maps.matrix_free import Operator, operator_of
from .._maps.tiling import tiling
from .._route.records import Method, NormRoute
from .banded_certificate import Failure, certified
from .banded_rounding import banded_factor_loss, formed_gram
from .block_compression import block_compression
from .lanczos import BASIS, Pair, unit_pair
from .peak import NO_PROGRESS
from .rounding import SLACK
from .top_vectors import (
    PATIENCE,
    attained_by,
    promising_groups,
    top_pair_from,
)


@dataclass(frozen=True, slots=True, eq=False)
class BandedNorm:
    """Both bounds, and the layer with the input that attains the lower one."""

    lower: float
    upper: float
    operator: Operator
    pair: Pair
    method: Method


def banded_norm(
    weight: Array, stencil: Stencil, gram: BandedGram, rtol: float, route: NormRoute
) -> BandedNorm:
    """The norm of a layer, by the factor of its banded Gram matrix.

    Lanczos nearly always ends far closer to the norm than `rtol`: then the first factor
    exists. Where it does not, some group has a larger norm, and Lanczos goes on there,
    with more patience. If that finds nothing larger either, the threshold is raised
    until it does.
    """
    kernel, operator = to_numpy(weight), operator_of(weight, stencil)
    formed = formed_gram(kernel, gram) if gram.pieces else 0.0  # 0: no column is read
    loss = max(
        (banded_factor_loss(tiling(piece)) for piece in gram.pieces), default=0.0
    )
    least, near = max(SLACK * rtol, 4 * loss), rtol / 10
    pairs = [
        _attained_in(slice(group, group + 1), weight, operator, None, near)
        for group in promising_groups(weight, stencil)
    ]
    pair = max(pairs, key=lambda each: each.gain)

    if route.method == "block compression" and pair.gain:
        lower = attained_by(pair, weight, stencil)
        most = lower * (1 + rtol)
        upper = block_compression(kernel, stencil, pair, rtol, most, rounds=1)
        if upper is not None:
            return BandedNorm(lower, upper, operator, pair, route.method)
    slack = least
    while True:
        threshold = math.hypot(pair.gain * (1 + slack), 2 * math.sqrt(formed))
        if not math.isfinite(threshold * threshold):
            raise ArithmeticError(NO_PROGRESS)
        upper = certified(gram, kernel, threshold) if threshold else 0.0
        if not isinstance(upper, Failure):
            break
        near /= 100
        better = _attained_in(upper.groups, weight, operator, pair, near)
        is_larger = better.gain > pair.gain * (1 + slack / 2)
        slack = least if is_larger else 2 * slack
        pair = max(pair, better, key=lambda each: each.gain)
    lower = attained_by(pair, weight, stencil)
    return BandedNorm(lower, upper, operator, pair, "banded")


def _attained_in(
    groups: slice, weight: Array, operator: Operator, known: Pair | None, rtol: float
) -> Pair:
    """The top pair that these groups have, by Lanczos from what is known of it."""
    stencil = operator.stencil
    if known is None:
        start, patience = None, PATIENCE
    else:
        start, patience = to_numpy(known.x)[groups], BASIS
    found = top_pair_from(
        weight, stencil, groups, start, rtol=rtol, goal=math.inf, patience=patience
    )
    if stencil.groups == groups.stop - groups.start:
        return found
    mine = to_numpy(found.x)
    whole = np.zeros((stencil.groups, *mine.shape[1:]), mine.dtype)
    whole[groups] = mine
    return unit_pair(operator.apply, asarray_like(operator.taps, whole))
