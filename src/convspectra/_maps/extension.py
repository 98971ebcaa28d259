"""What an axis reads beyond its ends: an image extended by margins, and the adjoint."""

from dataclasses import dataclass

import numpy as np

from .._arrays.array import Array, asarray_like, namespace, zeros_for


@dataclass(frozen=True, slots=True, eq=False)
class Margin:
    """Sites beside a run of columns, which repeat some columns near an end."""

    columns: slice  # that are repeated
    repeats: Array  # (sites, columns), zeros and ones

    @property
    def sites(self) -> int:
        return self.repeats.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Extension:
    """The sites that an axis reads: some of its columns in a row, between two margins.

    As one matrix of zeros and ones this would not fit into memory for long axes.
    """

    count: int  # of columns
    run: slice  # the columns that are read as they stand
    before: Margin
    after: Margin

    @property
    def sites(self) -> int:
        """How many are read."""
        return self.before.sites + self.run.stop - self.run.start + self.after.sites

    def apply(self, x: Array, axis: int) -> Array:
        """Extend an image along one axis."""
        inside = _part(x, axis, self.run)
        if self.before.sites == self.after.sites == 0:
            return inside
        first, last = (
            _along(side.repeats, _part(x, axis, side.columns), axis)
            if side.columns.stop > side.columns.start
            else _zeros(x, axis, side.sites)
            for side in (self.before, self.after)
        )
        return namespace(x).concat([first, inside, last], axis=axis)

    def apply_adjoint(self, y: Array, axis: int) -> Array:
        """Add what is at each site to the column that it repeats."""
        xp, stop = namespace(y), self.sites - self.after.sites
        inside = slice(self.before.sites, stop)
        found = self._placed(_part(y, axis, inside), axis, self.run)
        sides = (
            (self.before, slice(0, self.before.sites)),
            (self.after, slice(stop, self.sites)),
        )
        for side, sites in sides:
            if side.columns.stop > side.columns.start:
                turned = xp.matrix_transpose(side.repeats)
                part = _along(turned, _part(y, axis, sites), axis)
                found = found + self._placed(part, axis, side.columns)
        return found

    def _placed(self, part: Array, axis: int, columns: slice) -> Array:
        """A part of an image at these columns, zeros elsewhere."""
        if columns.stop - columns.start == self.count:
            return part
        first = _zeros(part, axis, columns.start)
        last = _zeros(part, axis, self.count - columns.stop)
        return namespace(part).concat([first, part, last], axis=axis)


def extension_of(read: np.ndarray, count: int, weight: Array) -> Extension:
    """The extension that reads these of `count` columns in turn, nothing at -1.

    Its matrices are in the library of `weight`.
    """
    breaks = np.concatenate([[True], np.diff(read) != 1]) | (read == 0)
    starts = np.flatnonzero(breaks)  # of runs of neighbors
    lengths = np.diff(starts, append=len(read)) * (read[starts] >= 0)
    longest = int(np.argmax(lengths))
    first, length = int(starts[longest]), int(lengths[longest])
    column = int(read[first]) if length else 0
    return Extension(
        count=count,
        run=slice(column, column + length),
        before=_margin(read[:first], weight),
        after=_margin(read[first + length :], weight),
    )


def _margin(read: np.ndarray, weight: Array) -> Margin:
    inside = read[read >= 0]
    low, high = (int(inside.min()), int(inside.max()) + 1) if inside.size else (0, 0)
    return Margin(
        columns=slice(low, high),
        repeats=asarray_like(weight, read[:, None] == np.arange(low, high)),
    )


def _zeros(x: Array, axis: int, count: int) -> Array:
    """An image like `x`, but with so many sites on one axis, and zeros there."""
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return zeros_for(x, shape)


def _part(x: Array, axis: int, columns: slice) -> Array:
    return x[(slice(None),) * axis + (columns, ...)]


def _along(matrix: Array, x: Array, axis: int) -> Array:
    """Apply `matrix` along one axis of `x`."""
    xp = namespace(x)
    return xp.moveaxis(xp.tensordot(matrix, x, axes=((1,), (axis,))), 0, axis)
