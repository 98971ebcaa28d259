"""An image extended by what an axis reads beyond its ends, and the adjoint of that."""

from dataclasses import dataclass

import numpy as np

from .._arrays.array import Array, asarray_like, namespace, zeros_for


@dataclass(frozen=True, slots=True, eq=False)
class Margin:
    """Sites before or after a run of columns, which repeat some of the columns."""

    columns: slice  # those that are repeated
    repeats: Array  # (sites, columns), zeros and ones

    @property
    def sites(self) -> int:
        return self.repeats.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Extension:
    """The sites that an axis reads: a run of its columns between two margins.

    One matrix of zeros and ones would not fit into memory for long axes.
    """

    count: int  # columns of the axis
    run: slice  # the columns that are read as they stand
    before: Margin
    after: Margin

    @property
    def sites(self) -> int:
        """How many sites are read."""
        return self.before.sites + self.run.stop - self.run.start + self.after.sites

    def apply(self, x: Array, axis: int) -> Array:
        """Extend an image along one axis."""
        inside = _part(x, axis, self.run)
        if self.before.sites == self.after.sites == 0:
            return inside
        first, last = (
            _apply_along(side.repeats, _part(x, axis, side.columns), axis)
            if side.columns.stop > side.columns.start
            else _zeros(x, axis, side.sites)
            for side in (self.before, self.after)
        )
        return namespace(x).concat([first, inside, last], axis=axis)

    def apply_adjoint(self, y: Array, axis: int) -> Array:
        """Add the value at each site to the column that it repeats."""
        xp, stop = namespace(y), self.sites - self.after.sites
        inside = slice(self.before.sites, stop)
        x = self._padded(_part(y, axis, inside), axis, self.run)
        sides = (
            (self.before, slice(0, self.before.sites)),
            (self.after, slice(stop, self.sites)),
        )
        for side, sites in sides:
            if side.columns.stop > side.columns.start:
                adjoint = xp.matrix_transpose(side.repeats)
                part = _apply_along(adjoint, _part(y, axis, sites), axis)
                x = x + self._padded(part, axis, side.columns)
        return x

    def _padded(self, part: Array, axis: int, columns: slice) -> Array:
        """A part of an image with zeros around it, so that it is at these columns."""
        if columns.stop - columns.start == self.count:
            return part
        first = _zeros(part, axis, columns.start)
        last = _zeros(part, axis, self.count - columns.stop)
        return namespace(part).concat([first, part, last], axis=axis)


def extension_of(read: np.ndarray, count: int, weight: Array) -> Extension:
    """The extension whose sites read these of `count` columns, a zero for -1.

    Its matrices are in the library of `weight`.
    """
    breaks = np.concatenate([[True], np.diff(read) != 1]) | (read == 0)
    starts = np.flatnonzero(breaks)  # of runs of neighboring columns
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
    """Zeros, shaped like `x` but with so many sites on one axis."""
    return zeros_for(x, (*x.shape[:axis], count, *x.shape[axis + 1 :]))


def _part(x: Array, axis: int, columns: slice) -> Array:
    return x[(slice(None),) * axis + (columns, ...)]


def _apply_along(matrix: Array, x: Array, axis: int) -> Array:
    """Apply `matrix` along one axis of `x`."""
    xp = namespace(x)
    return xp.moveaxis(xp.tensordot(matrix, x, axes=((1,), (axis,))), 0, axis)
