"""Memory for compiled routines."""

import numpy as np

from .jit import subroutine
from .simd import BYTES


@subroutine
def aligned(size, like):
    """Room for numbers like those of an array, from where a line of the cache begins.

    A vector that lies across two lines takes twice the time to load.
    """
    raw = np.empty(size + BYTES // like.itemsize, like.dtype)
    skip = -raw.ctypes.data % BYTES // like.itemsize
    return raw[skip : skip + size]
