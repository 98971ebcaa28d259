"""Boxes of frequencies, over which a search goes.

How far a box reaches from its center is measured by its delta, an angle: see `search`.
"""

from dataclasses import dataclass, replace

import numpy as np

from .._price import FIRST_DELTA

# An axis is searched if a period of its highest wave has more grid points than this.
# With fewer, half a step of the grid would cost too much of the threshold.
POINTS_PER_PERIOD = 4
# Grid points per axis that stand for the continuous torus: half a step of it is below
# any tolerance, and products with shifts are exact in 64 bits.
CONTINUOUS = 2**40


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Boxes of grid points, sorted along the first axis by their centers.

    So neighbors share the sums over the taps of the first axis.
    """

    low: np.ndarray  # (boxes, axes)
    size: np.ndarray  # (boxes, axes), in grid points
    degree: np.ndarray  # (axes,) of the symbol as a trigonometric polynomial
    grid_sizes: np.ndarray  # (axes,)

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, which: slice | np.ndarray) -> "Boxes":
        return replace(self, low=self.low[which], size=self.size[which])

    @property
    def centers(self) -> np.ndarray:
        return (self.low + self.size // 2) % self.grid_sizes

    @property
    def deltas(self) -> np.ndarray:
        return np.pi * self._axis_deltas.sum(axis=1)

    @property
    def _axis_deltas(self) -> np.ndarray:
        """What each axis contributes to delta, over pi."""
        return self.degree * (self.size // 2) / self.grid_sizes

    def split(self) -> "Boxes":
        """Halve each box on the axis that contributes most to its delta."""
        row, axis = np.arange(len(self)), np.argmax(self._axis_deltas, axis=1)
        half = self.size[row, axis] // 2
        low, size = np.tile(self.low, (2, 1)), np.tile(self.size, (2, 1))
        size[row, axis] = half
        low[row + len(self), axis] += half
        size[row + len(self), axis] -= half
        order = np.argsort(low[:, 0] + size[:, 0] // 2, kind="stable")
        return replace(self, low=low[order], size=size[order])


def single_points(
    points: np.ndarray, degree: np.ndarray, grid_sizes: np.ndarray
) -> Boxes:
    """A box for each of these grid points."""
    return Boxes(points, np.ones_like(points), degree, grid_sizes)


def first_boxes(degree: np.ndarray, grid_sizes: np.ndarray, *, real: bool) -> Boxes:
    """Boxes that hold all frequencies, or half of them if the layer is real."""
    count = grid_sizes.copy()
    if real:  # the other half of one axis has the conjugate matrices
        axis = int(np.argmax(count))
        count[axis] = count[axis] // 2 + 1
    size = np.where(_is_searched(degree, grid_sizes), count, 1)
    low = np.indices(tuple(count // size)).reshape(len(size), -1).T * size
    size = np.broadcast_to(size, low.shape)
    boxes = Boxes(low, size, degree, grid_sizes)
    while (wide := boxes.deltas > FIRST_DELTA).any():
        narrow, split = boxes[~wide], boxes[wide].split()
        low = np.concatenate([narrow.low, split.low])
        boxes = replace(boxes, low=low, size=np.concatenate([narrow.size, split.size]))
    return boxes[np.argsort(boxes.low[:, 0] + boxes.size[:, 0] // 2, kind="stable")]


def half_step_delta(degree: np.ndarray, grid_sizes: np.ndarray) -> float:
    """The delta of half a step on all axes that are searched.

    0 on the continuous torus, and on axes whose points all have boxes of their own.
    """
    matters = _is_searched(degree, grid_sizes) & (grid_sizes < CONTINUOUS)
    return float(np.sum(np.pi / 2 * degree / grid_sizes, where=matters))


def _is_searched(degree: np.ndarray, grid_sizes: np.ndarray) -> np.ndarray:
    """On which axes boxes are larger than one point of the grid."""
    return POINTS_PER_PERIOD * degree < grid_sizes
