"""The layer as one explicit matrix, by index arithmetic: the judge of all the rest.

It shares nothing with what it judges but the checks of arguments: sizes, padding and
boundaries are written out once more, from their definitions.
"""

import itertools
import math

import numpy as np

from .._arrays.array import Array, asarray_like, namespace, widen
from .._layer.geometry import Geometry
from .._layer.stencil import stencil_of

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
    _ = stencil_of(weight, geometry).known_axes  # for the checks alone
    weight, kernel = widen(weight), tuple(weight.shape[2:])
    layer = geometry.broadcast_to(len(kernel))
    sides = [_sides(layer, axis, k) for axis, k in enumerate(kernel)]
    rows = weight.shape[0] * math.prod(outputs for outputs, _, _ in sides)
    columns = weight.shape[1] * math.prod(inputs for _, inputs, _ in sides)
    columns *= layer.groups
    if rows * columns > DENSE_LIMIT:
        raise ValueError(
            f"The matrix must have at most {DENSE_LIMIT} entries, got {rows} x "
            f"{columns}. Take a smaller grid, or `operator_norm` and `top_vectors`, "
            "which never build it."
        )
    xp = namespace(weight)
    own_group = np.kron(
        np.eye(layer.groups), np.ones((weight.shape[0] // layer.groups, 1))
    )  # (out, groups)
    own_group = asarray_like(weight, own_group)[:, None, :, None, None]
    matrix: Array = 0.0
    for tap in itertools.product(*map(range, kernel)):
        reads = np.ones((1, 1))
        for axis, t in enumerate(tap):
            reads = np.kron(reads, _reads(layer, axis, t, sides[axis]))
        reads = asarray_like(weight, reads)[None, :, None, None, :]
        entries = weight[(slice(None), slice(None), *tap)]  # (out, in / groups)
        matrix = matrix + own_group * entries[:, None, None, :, None] * reads
    matrix = xp.reshape(matrix, (rows, columns))
    return xp.matrix_transpose(matrix) if layer.transposed else matrix


def _sides(layer: Geometry, axis: int, k: int) -> tuple[int, int, int]:
    """Outputs, inputs and padding before them, of a kernel of k taps on one axis.

    For a transposed layer, of the convolution that it is the transpose of.
    """
    n, s = _entry(layer.grid, axis), _entry(layer.stride, axis)
    span = _entry(layer.dilation, axis) * (k - 1) + 1
    if not isinstance(layer.padding, tuple):  # "same"
        outputs, inputs = (n, n * s) if layer.transposed else (math.ceil(n / s), n)
        missing = (outputs - 1) * s + span - inputs
        return outputs, inputs, max(missing, 0) // 2
    before, after = layer.padding[axis]
    if layer.transposed:
        # What n outputs read, without the padding, and some that no output reads.
        read = (n - 1) * s + span
        more = _entry(layer.output_padding, axis)
        return n, read - before - after + more, before
    return len(range(span, before + n + after + 1, s)), n, before


def _reads(
    layer: Geometry, axis: int, t: int, sides: tuple[int, int, int]
) -> np.ndarray:
    """Which input each output reads through tap t of an axis, as zeros and ones."""
    outputs, inputs, before = sides
    s, d = _entry(layer.stride, axis), _entry(layer.dilation, axis)
    found = np.zeros((outputs, inputs))
    for r in range(outputs):
        site = s * r + d * t - before
        column = _input_at(site, inputs, layer.boundary)
        if column is not None:
            found[r, column] = 1.0
    return found


def _entry(per_axis: int | tuple[int, ...] | None, axis: int) -> int:
    assert isinstance(per_axis, tuple)  # once the geometry knows its axes
    return per_axis[axis]


def _input_at(site: int, n: int, boundary: str) -> int | None:
    """Which of n inputs stands at `site`, None for a zero."""
    if 0 <= site < n:
        return site
    if boundary == "zeros":
        return None
    if boundary == "circular":
        return site % n
    if boundary == "replicate":
        return 0 if site < 0 else n - 1
    if boundary == "reflect":
        while not 0 <= site < n:  # at one edge and the other, without repeating it
            site = 0 if n == 1 else -site if site < 0 else 2 * (n - 1) - site
        return site
    raise ValueError(f"Of the boundary {boundary!r} the judge knows nothing.")
