"""The layer as it is, without a matrix: applied, its adjoint, its derivative."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays.array import (
    Array,
    adjoint,
    asarray_like,
    is_host,
    namespace,
)
from .._layer.stencil import Stencil, columns_read
from .extension import Extension, extension_of
from .im2col import Im2col


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """The convolution of a stencil; images are (groups, channels, *sites)."""

    stencil: Stencil
    taps: Array  # (taps, groups, out, in)
    extend: tuple[Extension, ...]  # per axis
    im2col: Im2col | None  # for NumPy's arrays

    def apply(self, x: Array) -> Array:
        """From (groups, in, *columns) to (groups, out, *rows)."""
        x = self._extended(x)
        if self.im2col is not None:
            return self.im2col.apply(x)
        xp, shape = namespace(x), (*x.shape[:2], -1)
        y: Array = 0.0
        for t, window in enumerate(self._windows()):
            y = y + xp.matmul(self.taps[t, ...], xp.reshape(x[window], shape))
        return xp.reshape(y, (*y.shape[:2], *self.stencil.rows))

    def apply_adjoint(self, y: Array) -> Array:
        """From (groups, out, *rows) to (groups, in, *columns)."""
        if self.im2col is not None:
            x = self.im2col.apply_adjoint(y)
        else:
            x = self._apply_adjoint(y)
        for axis, extend in enumerate(self.extend, start=2):
            x = extend.apply_adjoint(x, axis)
        return x

    def _extended(self, x: Array) -> Array:
        for axis, extend in enumerate(self.extend, start=2):
            x = extend.apply(x, axis)
        return x

    def _apply_adjoint(self, y: Array) -> Array:
        """As an extended image, tap by tap."""
        xp = namespace(y)
        flat = xp.reshape(y, (*y.shape[:2], -1))
        sites = (y.shape[0], self.stencil.in_channels, *(e.sites for e in self.extend))
        x = asarray_like(self.taps, np.zeros(sites))
        for t, window in enumerate(self._windows()):
            part = xp.matmul(adjoint(self.taps[t, ...]), flat)
            x[window] += xp.reshape(part, (*part.shape[:2], *self.stencil.rows))
        return x

    def derivative(self, x: Array, y: Array) -> Array:
        """The kernel D, (taps, groups, out, in), with <D, W> = <y, W on x>."""
        xp, x = namespace(x), self._extended(x)
        shape, flat = (*x.shape[:2], -1), xp.reshape(y, (*y.shape[:2], -1))
        return xp.stack(
            [
                xp.matmul(flat, adjoint(xp.reshape(x[window], shape)))
                for window in self._windows()
            ]
        )

    def _windows(self) -> list[tuple[Any, ...]]:
        """For each tap, the sites that the rows read through it."""
        s = self.stencil
        taps = itertools.product(*map(range, s.kernel))
        starts = [[d * t for d, t in zip(s.dilation, tap)] for tap in taps]
        return [
            (
                ...,
                *(
                    slice(a, a + (m - 1) * step + 1, step)
                    for a, m, step in zip(start, s.rows, s.stride)
                ),
            )
            for start in starts
        ]


def operator_of(weight: Array, stencil: Stencil) -> Operator:
    xp = namespace(weight)
    taps = xp.reshape(
        weight, (stencil.groups, stencil.out_channels, stencil.in_channels, -1)
    )
    extend = []
    for axis, columns in enumerate(stencil.columns):
        read = columns_read(stencil, axis)
        extend.append(extension_of(read, columns, weight))
    taps = xp.permute_dims(taps, (3, 0, 1, 2))
    im2col = Im2col(taps, stencil) if is_host(weight) else None
    return Operator(stencil, taps, tuple(extend), im2col)
