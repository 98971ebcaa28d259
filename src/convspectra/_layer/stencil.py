"""A geometry and the shape of a kernel: all that the numerics need of a layer."""

import math
from dataclasses import dataclass, replace

import numpy as np

from .._arrays.array import Array, check_weight
from .._base import cached
from .boundary import boundary_of
from .geometry import Axis, Geometry, per_axis

# Rows per degree of its symbol that a layer without a grid gets, to be clipped or
# projected: in between the symbol hardly varies.
SUPREMUM_ROWS = 24


@dataclass(frozen=True, slots=True)
class Stencil:
    """The convolution of a layer; for a transposed layer, the one it transposes.

    On each axis row r and tap t read column stride * r + dilation * t - pad_before.
    """

    groups: int
    out_channels: int  # per group, of the rows
    in_channels: int  # per group, of the columns
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    axes: tuple[Axis, ...] | None  # None: for all grids
    boundary: str
    transposed: bool
    max_padding: tuple[int, ...]  # at most so many padded sites, on both sides together

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(axis.rows for axis in self.known_axes)

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(axis.columns for axis in self.known_axes)

    @property
    def pad_before(self) -> tuple[int, ...]:
        return tuple(axis.pad_before for axis in self.known_axes)

    @property
    def grid(self) -> tuple[int, ...] | None:
        """The sizes of the layer's input; None for all sizes."""
        if self.axes is None:
            return None
        return self.rows if self.transposed else self.columns

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        """How many columns the kernel spans on each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation))

    @property
    def is_torus(self) -> bool:
        """Whether the Fourier basis makes the layer block diagonal."""
        if self.axes is None:
            return False
        whole = all(a.rows * s == a.columns for a, s in zip(self.axes, self.stride))
        circular = boundary_of(self.boundary).is_circular
        return whole and (circular or self._stays_inside)

    @property
    def reads_zeros_outside(self) -> bool:
        """Whether all that a row reads outside of the input is zero."""
        return boundary_of(self.boundary).is_zero or self._stays_inside

    @property
    def _stays_inside(self) -> bool:
        """Whether no boundary is ever read, so that any of them will do."""
        return all(
            a.pad_before == 0 and (a.rows - 1) * s + reach <= a.columns
            for a, s, reach in zip(self.known_axes, self.stride, self.reach)
        )

    @property
    def known_axes(self) -> tuple[Axis, ...]:
        if self.axes is None:
            raise ValueError(
                "A grid is needed here, got grid None. State the input size, or call "
                "`operator_norm`, which bounds every size at once."
            )
        return self.axes


def stencil_of(weight: Array, geometry: Geometry) -> Stencil:
    """Check `weight` and `geometry` against each other and join them."""
    if not isinstance(geometry, Geometry):
        raise TypeError(
            f"`geometry` must be a Geometry, got {type(geometry).__name__}. Build it "
            "by `Geometry(grid=...)`."
        )
    check_weight(weight)
    return resolve(tuple(weight.shape), geometry)


@cached(maxsize=256)
def resolve(shape: tuple[int, ...], geometry: Geometry) -> Stencil:
    """Join the shape of a weight and a geometry; cached, for training loops."""
    if len(shape) < 3:
        raise ValueError(
            "`weight` must have the axes (out, in / groups, *kernel), got shape "
            f"{shape}. A matrix is a kernel of one tap: `weight[:, :, None]`."
        )
    if 0 in shape:
        raise ValueError(f"`weight` must not be empty, got shape {shape}.")
    if shape[0] % geometry.groups:
        name = "in" if geometry.transposed else "out"
        raise ValueError(
            f"`groups` must divide the {name} channels, the first axis of `weight`, "
            f"got {geometry.groups} groups for shape {shape}."
        )
    kernel = shape[2:]
    full = geometry.broadcast_to(len(kernel))
    stride = per_axis(full.stride, len(kernel))
    dilation = per_axis(full.dilation, len(kernel))
    if isinstance(full.padding, tuple):
        max_padding = tuple(map(sum, full.padding))
    else:  # "same"
        max_padding = tuple(d * (k - 1) for k, d in zip(kernel, dilation))
    found = Stencil(
        groups=full.groups,
        out_channels=shape[0] // full.groups,
        in_channels=shape[1],
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        axes=None if full.grid is None else full.resolve_axes(kernel),
        boundary=full.boundary,
        transposed=full.transposed,
        max_padding=max_padding,
    )
    if boundary_of(found.boundary).is_circular and found.axes is None:
        misfit = misfit_on_circles(full, kernel)
        if misfit is not None:
            raise ValueError(
                f"Circular padding of {misfit} reads some input sites more often than "
                "others, so that no bound holds for every grid. State the grid, or "
                'take padding "same".'
            )
    return found


def columns_read(stencil: Stencil, axis: int) -> np.ndarray:
    """The column that is read at each site of an axis; -1 for a zero.

    Row r and tap t read entry stride * r + dilation * t.
    """
    n, rows, before = stencil.known_axes[axis]
    extent = (rows - 1) * stencil.stride[axis] + stencil.reach[axis]
    site = np.arange(-before, extent - before)
    return boundary_of(stencil.boundary).columns_at(site, n)


def rows_and_columns(stencil: Stencil, axis: int) -> tuple[range, range]:
    """The rows of an axis that read some column, and the columns that some row reads.

    Of a layer that reads zeros outside of its input. The columns are empty if no row
    reads one.
    """
    n, rows, before = stencil.known_axes[axis]
    s, reach = stencil.stride[axis], stencil.reach[axis]
    first, last = max(0, -((reach - 1 - before) // s)), (n - 1 + before) // s
    reading = range(first, min(rows - 1, last) + 1)
    end = min(n - 1, s * (reading.stop - 1) - before + reach - 1)
    return reading, range(max(0, s * first - before), end + 1)


def embedding(stencil: Stencil) -> tuple[Stencil, float]:
    """A torus and a factor: the layer's norm is at most factor times the torus's norm.

    The input is extended by what the boundary reads, which repeats no site more than
    factor^2 times. What follows is a block of the circular layer on a torus so wide
    that the kernel never wraps around. Without a grid the torus has none either.
    """
    if stencil.is_torus:
        return replace(stencil, boundary="circular"), 1.0
    axes, repeats = [], 1
    for a in range(len(stencil.kernel)):
        if stencil.axes is None:
            repeats *= boundary_of(stencil.boundary).repeats(stencil.max_padding[a])
        else:
            axis, times = _embedded_axis(stencil, a)
            axes.append(axis)
            repeats *= times
    found = tuple(axes) if stencil.axes is not None else None
    return replace(stencil, axes=found, boundary="circular"), math.sqrt(repeats)


def _embedded_axis(stencil: Stencil, axis: int) -> tuple[Axis, int]:
    n, rows, before = stencil.known_axes[axis]
    s, boundary = stencil.stride[axis], boundary_of(stencil.boundary)
    if boundary.is_circular and n % s == 0:
        return Axis(n, n // s, before), -(-rows * s // n)
    if boundary.is_zero:
        wide, times = n + stencil.reach[axis] - 1, 1
    else:
        read = columns_read(stencil, axis)
        wide, times = len(read), int(np.bincount(read[read >= 0]).max(initial=1))
    return Axis(-(-wide // s) * s, -(-wide // s), before), times


def circular_surrogate(stencil: Stencil, geometry: Geometry) -> Stencil:
    """The circular layer that is clipped in place of one that may not be circular."""
    if stencil.is_torus:
        return stencil
    if stencil.axes is None:
        return with_rows(embedding(stencil)[0])
    axes = geometry.torus(stencil.kernel).resolve_axes(stencil.kernel)
    return replace(stencil, axes=axes, boundary="circular")


def with_rows(torus: Stencil, per_degree: int = SUPREMUM_ROWS) -> Stencil:
    """The torus itself; if it has no grid, on one that is fine for its symbol."""
    if torus.axes is not None:
        return torus
    degrees = [(reach - 1) // s for reach, s in zip(torus.reach, torus.stride)]
    rows = [per_degree * max(degree, 1) for degree in degrees]
    axes = tuple(Axis(m * s, m, 0) for m, s in zip(rows, torus.stride))
    return replace(torus, axes=axes)


def some_row_reads_all_taps(stencil: Stencil) -> bool:
    """Whether the taps of some row read different columns, all inside the input.

    The kernel as one matrix is then a block of the layer. Without a grid: whether that
    is so on some grid, as it always is.
    """
    if stencil.axes is None:
        return True
    return all(_reads_all_taps(stencil, axis) for axis in range(len(stencil.kernel)))


def _reads_all_taps(stencil: Stencil, axis: int) -> bool:
    n, rows, before = stencil.known_axes[axis]
    s, taps = stencil.stride[axis], stencil.kernel[axis]
    first = -(-before // s)  # the first row that begins inside
    if first < rows and s * first - before + stencil.reach[axis] <= n:
        return True  # it also ends there: no need to list all rows of a large grid
    sites = s * np.arange(rows)[:, None] + stencil.dilation[axis] * np.arange(taps)
    read = np.sort(columns_read(stencil, axis)[sites], axis=1)  # (rows, taps)
    differ = (np.diff(read, axis=1) > 0).all(axis=1)
    return bool((differ & (read[:, 0] >= 0)).any())


def misfit_on_circles(
    geometry: Geometry, kernel: tuple[int, ...]
) -> tuple[int, int] | None:
    """The padding on some axis with which no circle is a torus, or part of one.

    None if there is no such axis. The geometry has an entry per axis.
    """
    if not isinstance(geometry.padding, tuple):  # "same"
        return None
    axes = len(kernel)
    stride, dilation, more = (
        per_axis(sizes, axes)
        for sizes in (geometry.stride, geometry.dilation, geometry.output_padding)
    )
    for axis, (before, after) in enumerate(geometry.padding):
        spare = dilation[axis] * (kernel[axis] - 1) + 1 - before - after
        is_torus = spare + more[axis] == stride[axis]
        if not (is_torus if geometry.transposed else spare > 0):
            return before, after
    return None
