"""The geometry of a convolution: everything but its weights, validated on creation."""

from dataclasses import dataclass, replace
from typing import (
    Any,
    Literal,
    NamedTuple,
    Protocol,
    SupportsIndex,
    TypeAlias,
)

from .._base import cached, size
from .boundary import BOUNDARIES, BoundaryName


class IndexArray(Protocol):
    """An array of whole numbers, of any library."""

    def tolist(self) -> Any: ...


# What a geometry accepts for sizes and paddings; its fields say what it keeps of them.
Sizes: TypeAlias = SupportsIndex | tuple[SupportsIndex, ...] | list[int] | IndexArray
Pairs: TypeAlias = tuple[Sizes, ...] | list[int] | list[tuple[int, int]]
Padding: TypeAlias = Literal["same", "valid"] | SupportsIndex | Pairs | IndexArray


class Axis(NamedTuple):
    """One axis: row r reads the columns stride * r + dilation * t - pad_before.

    For a transposed layer, of the convolution that it is the transpose of.
    """

    columns: int
    rows: int
    pad_before: int


@dataclass(frozen=True, slots=True, init=False)
class Geometry:
    """Grid, stride, dilation, groups, padding and boundary of a convolution.

    Output site r reads the input sites `stride * r + dilation * t - before`, where t
    runs over the taps of the kernel and `before` is the padding. A number applies to
    every axis; a tuple has one entry per axis. If any argument is a tuple, all fields
    become tuples; otherwise they stay numbers, and the kernel determines the number of
    axes.

    Parameters
    ----------
    grid : int, tuple of int, or None
        The size of the layer's *input*, for transposed layers too. None means all input
        sizes at once; functions that bound or change norms accept it.
    stride, dilation : int or tuple of int
    groups : int
    padding : "same", "valid", int, an int per axis, or a (before, after) pair per axis
        "same" gives ceil(grid / stride) outputs, with the extra site of an odd padding
        at the end; for a transposed layer it gives grid * stride outputs.
    boundary : {"circular", "zeros", "reflect", "replicate"}
        What the layer reads beyond its input.
    transposed : bool
        Whether the layer is the transpose of the convolution with this weight.
    output_padding : int or tuple of int
        Additional output sites at the end of a transposed layer.

    Examples
    --------
    >>> Geometry(grid=(32, 32), stride=2).out_grid()
    (16, 16)
    """

    grid: int | tuple[int, ...] | None
    stride: int | tuple[int, ...]
    dilation: int | tuple[int, ...]
    groups: int
    padding: Literal["same"] | int | tuple[tuple[int, int], ...]
    boundary: BoundaryName
    transposed: bool
    output_padding: int | tuple[int, ...]

    # Written out, because it accepts wider types than the fields have.
    def __init__(
        self,
        grid: Sizes | None,
        stride: Sizes = 1,
        dilation: Sizes = 1,
        groups: SupportsIndex = 1,
        padding: Padding = "same",
        boundary: BoundaryName = "circular",
        transposed: bool = False,
        output_padding: Sizes = 0,
    ) -> None:
        if boundary not in BOUNDARIES:
            raise ValueError(
                f"`boundary` must be one of {', '.join(BOUNDARIES)}, got {boundary!r}."
            )
        if not isinstance(transposed, bool):
            raise TypeError(f"`transposed` must be True or False, got {transposed!r}.")
        self._keep(
            grid=None if grid is None else _sizes("grid", grid, least=1),
            stride=_sizes("stride", stride, least=1),
            dilation=_sizes("dilation", dilation, least=1),
            groups=size("groups", groups, least=1),
            padding=_padding(padding),
            boundary=boundary,
            transposed=transposed,
            output_padding=_sizes("output_padding", output_padding, least=0),
        )
        axes = self._axes()
        if axes is not None:
            self._spread(axes)
        self._check_output_padding()

    def broadcast_to(self, axes: int) -> "Geometry":
        """Return this geometry with `axes` entries in every field."""
        stated = self._axes()
        if stated is None:
            return _spread_out(self, axes)
        if stated != axes:
            raise ValueError(
                "The geometry must have one entry per axis of the kernel, got "
                f"{stated} (grid {self.grid}, stride {self.stride}) for a kernel with "
                f"{axes}. Give one number for every axis, or {axes} of them."
            )
        return self

    def out_grid(self, kernel: Sizes | None = None) -> tuple[int, ...]:
        """Return the size of the layer's output.

        Parameters
        ----------
        kernel : int or tuple of int, optional
            The size of the kernel; required unless `padding` is "same".
        """
        axes = self.resolve_axes(kernel)
        return tuple(a.columns if self.transposed else a.rows for a in axes)

    def torus(self, kernel: Sizes | None = None) -> "Geometry":
        """Return the geometry of the layer's circular surrogate.

        It has the same stride, dilation and groups, on a grid of (output grid) * stride
        (transposed: on the same grid), where the layer is block diagonal in the Fourier
        basis. Its singular values approximate those of this layer but do not bound
        them.

        Parameters
        ----------
        kernel : int or tuple of int, optional
            The size of the kernel; required unless `padding` is "same".
        """
        axes = self.resolve_axes(kernel)
        if self.transposed:
            grid = self.grid
        else:
            stride = per_axis(self.stride, len(axes))
            grid = tuple(a.rows * s for a, s in zip(axes, stride))
        return replace(
            self, grid=grid, padding="same", boundary="circular", output_padding=0
        )

    def resolve_axes(self, kernel: Sizes | None) -> tuple[Axis, ...]:
        """Return rows, columns and padding on each axis, for kernel sizes `kernel`."""
        if self.grid is None:
            raise ValueError(
                "A grid is needed here, got grid None. State the input size, or call "
                "`operator_norm`, which bounds the norm for every size."
            )
        if kernel is None and self.padding != "same":
            raise ValueError(
                'The kernel must be known unless `padding` is "same", got padding '
                f"{self.padding!r}. Pass its sizes: `weight.shape[2:]`."
            )
        found = _sizes("kernel", 1 if kernel is None else kernel, least=1)
        axes = len(found) if isinstance(found, tuple) else self._axes() or 1
        full, grid, kernels = (
            self.broadcast_to(axes),
            per_axis(self.grid, axes),
            per_axis(found, axes),
        )
        return tuple(_axis(full, a, grid[a], kernels[a]) for a in range(axes))

    def _axes(self) -> int | None:
        """The number of axes that the tuples state, None where all are numbers."""
        stated = {
            name: len(value)
            for name in ("grid", "stride", "dilation", "padding", "output_padding")
            if isinstance(value := getattr(self, name), tuple)
        }
        if len(set(stated.values())) > 1:
            got = ", ".join(f"{name} {getattr(self, name)}" for name in stated)
            raise ValueError(
                f"All tuples must have one entry per axis, got {got}. Give one number "
                "for every axis, or as many as there are axes; a padding of "
                "((before, after),) is the one for a single axis."
            )
        return next(iter(stated.values()), None)

    def _spread(self, axes: int) -> None:
        pair = (self.padding, self.padding)
        self._keep(
            grid=None if self.grid is None else per_axis(self.grid, axes),
            stride=per_axis(self.stride, axes),
            dilation=per_axis(self.dilation, axes),
            padding=(pair,) * axes if isinstance(self.padding, int) else self.padding,
            output_padding=per_axis(self.output_padding, axes),
        )

    def _keep(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _check_output_padding(self) -> None:
        extra, stride, dilation = (
            per_axis(value, self._axes() or 1)
            for value in (self.output_padding, self.stride, self.dilation)
        )
        if any(extra) and (not self.transposed or self.padding == "same"):
            raise ValueError(
                "`output_padding` must be 0 unless the layer is transposed with "
                f"explicit padding, got {self.output_padding} with transposed="
                f"{self.transposed} and padding {self.padding!r}."
            )
        if any(e and e >= max(s, d) for e, s, d in zip(extra, stride, dilation)):
            raise ValueError(
                "`output_padding` must be smaller than the stride or the dilation, got "
                f"{self.output_padding} with stride {self.stride} and dilation "
                f"{self.dilation}."
            )


@cached(maxsize=256)
def _spread_out(geometry: Geometry, axes: int) -> Geometry:
    """A geometry that states no number of axes, with this one."""
    found = replace(geometry)
    found._spread(axes)
    return found


def _axis(geometry: Geometry, axis: int, n: int, kernel: int) -> Axis:
    s, d = _entry(geometry.stride, axis), _entry(geometry.dilation, axis)
    reach = d * (kernel - 1) + 1
    if not isinstance(geometry.padding, tuple):  # "same"
        rows, columns = (n, n * s) if geometry.transposed else (-(-n // s), n)
        return Axis(columns, rows, max((rows - 1) * s + reach - columns, 0) // 2)
    before, after = geometry.padding[axis]
    if geometry.transposed:
        rows, more = n, _entry(geometry.output_padding, axis)
        columns = (n - 1) * s + reach - before - after + more
    else:
        rows, columns = (n + before + after - reach) // s + 1, n
    if min(rows, columns) < 1:
        raise ValueError(
            f"The layer must have an output, got none on axis {axis}: grid {n}, a "
            f"kernel that spans {reach} sites, padding {(before, after)}. Use a "
            "larger grid or another padding."
        )
    return Axis(columns, rows, before)


def _sizes(name: str, value: Any, *, least: int) -> int | tuple[int, ...]:
    if hasattr(value, "tolist"):  # an array of whole numbers
        value = value.tolist()
    elif hasattr(value, "as_list"):  # a shape of TensorFlow's
        value = value.as_list()
    if not isinstance(value, (tuple, list)):
        return size(name, value, least=least)
    if not value:
        raise ValueError(f"`{name}` must have an entry per axis, got {value!r}.")
    return tuple(size(name, v, least=least) for v in value)


def _padding(value: Any) -> Literal["same"] | int | tuple[tuple[int, int], ...]:
    """Turn a padding into "same", a number for every side, or a pair per axis."""
    if isinstance(value, str):
        if value not in ("same", "valid"):
            raise ValueError(
                '`padding` must be "same", "valid", a number, a number per axis or a '
                f"(before, after) pair per axis, got {value!r}."
            )
        return 0 if value == "valid" else "same"
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (tuple, list)):
        return size("padding", value, least=0)
    return tuple(_pair(v) for v in value)


def _pair(value: Any) -> tuple[int, int]:
    pair = _sizes("padding", value, least=0)
    if isinstance(pair, int):
        return (pair, pair)
    if len(pair) != 2:
        raise ValueError(
            f"`padding` must have (before, after) on each axis, got {value!r}."
        )
    return pair[0], pair[1]


def _entry(value: int | tuple[int, ...], axis: int) -> int:
    return value if isinstance(value, int) else value[axis]


def per_axis(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    """One number for every axis; a tuple stays."""
    return (value,) * axes if isinstance(value, int) else value
