"""Sublayers small enough for Lanczos.

Their norm is a lower bound of the layer's, and close to it.
"""

from dataclasses import replace

import numpy as np

from .._layer.geometry import Axis
from .._layer.stencil import Stencil
from .._price import APPLICATION_LIMIT, columns_that_attain


def part_that_attains(stencil: Stencil, degree: np.ndarray, rtol: float) -> Stencil:
    """The first rows and columns of a layer that reads zeros outside of its input.

    They are so many that the excess of their torus is likely within `rtol`.
    """
    wanted = columns_that_attain(stencil, degree, rtol)
    axes = []
    for (_, rows, before), s, columns in zip(
        stencil.known_axes, stencil.stride, _within_limit(stencil, wanted)
    ):
        axes.append(Axis(columns, min(rows, (columns - 1 + before) // s + 1), before))
    return replace(stencil, axes=tuple(axes))


def part_inside(stencil: Stencil) -> Stencil:
    """A layer within the limit, or rows that do not read beyond its borders."""
    columns = list(stencil.columns)
    most = _within_limit(stencil, columns)
    if most == columns:
        return stencil
    axes = []
    for (n, rows, before), s, reach, columns in zip(
        stencil.known_axes, stencil.stride, stencil.reach, most
    ):
        first = -(-before // s)  # the first row that begins inside
        columns = min(max(columns, reach), n - (s * first - before))
        rows = min(rows - first, (columns - reach) // s + 1)
        if rows < 1:
            return stencil
        axes.append(Axis((rows - 1) * s + reach, rows, 0))
    return replace(stencil, axes=tuple(axes), boundary="zeros")


def _within_limit(stencil: Stencil, columns: list[int]) -> list[int]:
    """At most these columns, and on long axes fewer, for Lanczos to be affordable."""
    each = stencil.groups * stencil.in_channels * stencil.out_channels * stencil.taps
    left, found = APPLICATION_LIMIT / each, list(columns)
    order = sorted(range(len(columns)), key=lambda axis: columns[axis])
    for done, axis in enumerate(order):
        most = max(left, 1.0) ** (1 / (len(order) - done))
        found[axis] = min(columns[axis], max(int(most), 1))
        left /= found[axis]
    return found
