"""The numbers of a sparse tensor of TensorFlow Lite, in their places."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .flatbuffer import Table

MOST_NUMBERS = 2**26  # of a tensor that is written out
MOST_LEVELS = 16
INDICES = {1: "i4", 2: "u2", 3: "u1"}  # kinds of vectors of numbers


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A level of the order in which numbers are stored, the outermost first.

    Attributes
    ----------
    axis : int
        Of the tensor; beyond those, one inside of a block.
    size : int
    segments, indices : array, optional
        Which sites of the axis are stored: those from segments[i] to segments[i + 1] of
        the indices, for place i of the level before. All of them if there are none.
    """

    axis: int
    size: int
    segments: np.ndarray | None = None
    indices: np.ndarray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Sparsity:
    """Where the stored numbers of a tensor belong; all others are zero."""

    shape: tuple[int, ...]
    levels: tuple[Level, ...]
    blocks: tuple[int, ...]  # the axis of the tensor that each axis of a block is of

    def write_out(self, values: np.ndarray) -> np.ndarray:
        """The whole tensor."""
        axes = len(self.shape)
        at = np.zeros((1, axes + len(self.blocks)), dtype=np.int64)
        for level in self.levels:
            at = _inside(at, level, len(values))
        if len(at) != len(values):
            raise ValueError(f"{len(values)} numbers have {len(at)} places")
        sizes = {level.axis: level.size for level in self.levels}
        for number, axis in enumerate(self.blocks):
            inner = axes + number
            at[:, axis] = at[:, axis] * sizes[inner] + at[:, inner]
        places = tuple(at[:, :axes].T)
        if any((x < 0).any() or (x >= n).any() for x, n in zip(places, self.shape)):
            raise ValueError("numbers have places outside of their tensor")
        whole = np.zeros(self.shape, values.dtype)
        whole[places] = values
        return whole


def _inside(at: np.ndarray, level: Level, most: int) -> np.ndarray:
    """The places of one more level, for each of those before."""
    if level.segments is None or level.indices is None:
        counts, total = np.full(len(at), level.size), len(at) * level.size
    else:
        counts = np.diff(level.segments.astype(np.int64))
        fits = len(counts) == len(at) and (counts >= 0).all()
        total = int(counts.sum()) if fits else -1
    if total > most or (level.indices is not None and total != len(level.indices)):
        raise ValueError("the places of its numbers do not fit each other")
    sites = level.indices
    if sites is None:
        sites = np.tile(np.arange(level.size), len(at))
    inner = np.repeat(at, counts, axis=0)
    inner[:, level.axis] = sites
    return inner


def sparsity(stated: Table, shape: tuple[int, ...]) -> Sparsity:
    """Where the numbers of a sparse tensor of this shape belong."""
    order, blocks = (stated.numbers(field, "i4").tolist() for field in (0, 1))
    stored = stated.tables(2)
    axes = len(shape) + len(blocks)
    if len(order) > MOST_LEVELS or sorted(order) != [*range(axes)]:
        raise ValueError("its weight is sparse in an unknown order")
    if len(stored) != axes or any(not 0 <= axis < len(shape) for axis in blocks):
        raise ValueError("its weight is sparse in unknown blocks")
    if np.prod(shape, dtype=float) > MOST_NUMBERS:
        raise ValueError(f"its weight is sparse, with the shape {shape}")
    levels = [_level(axis, stored[i]) for i, axis in enumerate(order)]
    return Sparsity(shape, tuple(levels), tuple(blocks))


def _level(axis: int, stated: Table) -> Level:
    if not stated.integer(0, "<b"):  # all sites
        size = stated.integer(1, "<i")
        if not 0 < size <= MOST_NUMBERS:
            raise ValueError(f"its weight has {size} sites on an axis")
        return Level(axis, size)
    return Level(axis, 0, _vector(stated, (2, 3)), _vector(stated, (4, 5)))


def _vector(stated: Table, fields: Sequence[int]) -> np.ndarray:
    """A vector of numbers, whose kind is in the first field."""
    kind, found = stated.integer(fields[0], "<B"), stated.table(fields[1])
    if kind not in INDICES or found is None:
        raise ValueError("the places of its numbers are not stored")
    return found.numbers(0, INDICES[kind])
