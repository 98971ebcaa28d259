"""The matrix of a layer, for the numerics: one per group, from what its rows read."""

import itertools
import math

import numpy as np

from .._arrays.array import Array, asarray_like, namespace
from .._layer.stencil import Stencil, columns_read

# Entries of the largest matrices that are built: 128 MB in double precision.
ENTRIES_LIMIT = 2**24


def group_matrices(weight: Array, stencil: Stencil) -> Array:
    """The convolution as one matrix per group, (groups, out * rows, in * columns)."""
    xp = namespace(weight)
    flat = xp.reshape(
        weight, (stencil.groups, stencil.out_channels, stencil.in_channels, -1)
    )
    matrices: Array = 0.0
    for t, tap in enumerate(itertools.product(*map(range, stencil.kernel))):
        reads = asarray_like(weight, tap_reads(stencil, tap))[None, None, :, None, :]
        matrices = matrices + flat[:, :, None, :, t, None] * reads
    return xp.reshape(matrices, (stencil.groups, *matrix_shape(stencil)))


def tap_reads(stencil: Stencil, tap: tuple[int, ...]) -> np.ndarray:
    """Which column site each row site reads through `tap`, as zeros and ones."""
    reads = np.ones((1, 1))
    for axis, t in enumerate(tap):
        first, step = stencil.dilation[axis] * t, stencil.stride[axis]
        last = first + step * (stencil.rows[axis] - 1)
        read = columns_read(stencil, axis)[first : last + 1 : step]
        one_axis = read[:, None] == np.arange(stencil.columns[axis])
        reads = np.kron(reads, one_axis)
    return reads


def matrix_shape(stencil: Stencil) -> tuple[int, int]:
    """Rows and columns of the matrix of one group."""
    rows, columns = math.prod(stencil.rows), math.prod(stencil.columns)
    return stencil.out_channels * rows, stencil.in_channels * columns


def matrix_entries(stencil: Stencil) -> int:
    """Entries of the matrices of all groups."""
    return stencil.groups * math.prod(matrix_shape(stencil))
