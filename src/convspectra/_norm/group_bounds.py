"""Upper bounds of the norms of all groups of a layer, by the tori around them."""

import math

import numpy as np

from .._arrays.array import Array, is_complex, is_host
from .._layer.stencil import Stencil, embedding
from .._maps.symbol import frequencies_of, taps_of
from .._route import COMPRESSION_FREQUENCIES, screens_all
from .rounding import UP
from .symbol_norms import SymbolNorms


def group_bounds(weight: Array, stencil: Stencil) -> np.ndarray | None:
    """A certified bound for each group; None if the frequencies are too many.

    They cost a small part of what factors do, and of the channels of a trained
    depthwise layer they leave one or two that may have the largest norm.
    """
    torus, factor = embedding(stencil)
    if math.prod(torus.rows) > COMPRESSION_FREQUENCIES:
        return None
    taps, real = taps_of(weight, torus), not is_complex(weight)
    kept = frequencies_of(taps.pattern, torus.rows, real=real)
    screened = screens_all(torus, real=real, on_host=is_host(weight))
    norms = SymbolNorms(taps, kept, is_screened=screened)
    return norms.uppers.max(axis=0) * (factor * UP)
