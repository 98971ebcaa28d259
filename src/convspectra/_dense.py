"""The layer as one explicit matrix, by index arithmetic: the judge of all the rest."""

import itertools
import math

import numpy as np

from ._array import Array, like, namespace, widen
from ._geometry import Geometry
from ._stencil import Stencil, stencil_of

DENSE_LIMIT = 2**24  # entries of the largest matrix that is built


def dense_matrix(weight: Array, geometry: Geometry) -> Array:
    """The layer as one matrix, for any geometry.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry

    Returns
    -------
    array, shape (out * prod(out_grid), in * prod(grid))
        Rows and columns in the order of the flattened output and input, which are
        (channels, *sites). Of the dtype of `weight`, half precision as single.

    Raises
    ------
    ValueError
        If the matrix would have more than 2**24 entries.

    Examples
    --------
    >>> kernel = np.array([[[1.0, -1.0, 1.0]]])
    >>> dense_matrix(kernel, Geometry(grid=3, boundary="zeros"))
    array([[-1.,  1.,  0.],
           [ 1., -1.,  1.],
           [ 0.,  1., -1.]])
    """
    stencil = stencil_of(weight, geometry)
    rows, columns = matrix_shape(stencil)
    if rows * columns * stencil.groups**2 > DENSE_LIMIT:
        raise ValueError(
            f"The matrix must have at most {DENSE_LIMIT} entries, got "
            f"{rows * stencil.groups} x {columns * stencil.groups}. Take a smaller "
            "grid, or `operator_norm` and `top_vectors`, which never build it."
        )
    blocks = group_matrices(widen(weight), stencil)
    xp = namespace(blocks)
    apart = like(blocks, np.eye(stencil.groups))[:, None, :, None]
    matrix = xp.reshape(
        blocks[:, :, None, :] * apart, (rows * stencil.groups, columns * stencil.groups)
    )
    return xp.matrix_transpose(matrix) if stencil.transposed else matrix


def group_matrices(weight: Array, stencil: Stencil) -> Array:
    """The convolution as one matrix per group, (groups, out * rows, into * columns)."""
    xp = namespace(weight)
    flat = xp.reshape(weight, (stencil.groups, stencil.out, stencil.into, -1))
    matrices: Array = 0.0
    for t, tap in enumerate(itertools.product(*map(range, stencil.kernel))):
        reads = like(weight, tap_reads(stencil, tap))[None, None, :, None, :]
        matrices = matrices + flat[:, :, None, :, t, None] * reads
    return xp.reshape(matrices, (stencil.groups, *matrix_shape(stencil)))


def matrix_shape(stencil: Stencil) -> tuple[int, int]:
    """Rows and columns of the matrix of one group."""
    rows, columns = math.prod(stencil.rows), math.prod(stencil.columns)
    return stencil.out * rows, stencil.into * columns


def matrix_entries(stencil: Stencil) -> int:
    """Entries of the matrices of all groups."""
    return stencil.groups * math.prod(matrix_shape(stencil))


def tap_reads(stencil: Stencil, tap: tuple[int, ...]) -> np.ndarray:
    """Which column site each row site reads through `tap`, as zeros and ones."""
    reads = np.ones((1, 1))
    for axis, t in enumerate(tap):
        n, rows, before = stencil.known_axes[axis]
        one_axis = np.zeros((rows, n))
        for r in range(rows):
            site = stencil.stride[axis] * r + stencil.dilation[axis] * t - before
            column = _column(site, n, stencil.boundary)
            if column is not None:
                one_axis[r, column] = 1.0
        reads = np.kron(reads, one_axis)
    return reads


def _column(site: int, n: int, boundary: str) -> int | None:
    """The input site that stands at `site`, None for a zero."""
    if 0 <= site < n:
        return site
    if boundary == "zeros":
        return None
    if boundary == "circular":
        return site % n
    if boundary == "replicate" or n == 1:
        return 0 if site < 0 else n - 1
    while not 0 <= site < n:  # reflect, without repeating the edge
        site = -site if site < 0 else 2 * (n - 1) - site
    return site
