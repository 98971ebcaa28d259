"""The layer as it is, without a matrix: applied, transposed, its top singular pair."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays.array import (
    Array,
    adjoint,
    asarray_like,
    conj,
    frobenius_norm,
    namespace,
)
from .._layer.stencil import Stencil, columns_read
from .extension import Extension, extension_of


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """The convolution of a stencil; images are (groups, channels, *sites)."""

    stencil: Stencil
    taps: Array  # (taps, groups, out, into)
    extend: tuple[Extension, ...]  # per axis

    def apply(self, x: Array) -> Array:
        """From (groups, into, *columns) to (groups, out, *rows)."""
        xp = namespace(x)
        for axis, extend in enumerate(self.extend, start=2):
            x = extend.apply(x, axis)
        shape = (*x.shape[:2], -1)
        y: Array = 0.0
        for t, window in enumerate(self._windows()):
            y = y + xp.matmul(self.taps[t, ...], xp.reshape(x[window], shape))
        return xp.reshape(y, (*y.shape[:2], *self.stencil.rows))

    def apply_adjoint(self, y: Array) -> Array:
        """From (groups, out, *rows) to (groups, into, *columns)."""
        xp = namespace(y)
        flat = xp.reshape(y, (*y.shape[:2], -1))
        sites = (y.shape[0], self.stencil.in_channels, *(e.sites for e in self.extend))
        x: Array = None
        for t, window in enumerate(self._windows()):
            part = xp.matmul(adjoint(self.taps[t, ...]), flat)
            x = asarray_like(part, np.zeros(sites)) if x is None else x
            x[window] += xp.reshape(part, (*part.shape[:2], *self.stencil.rows))
        for axis, extend in enumerate(self.extend, start=2):
            x = extend.apply_adjoint(x, axis)
        return x

    def derivative(self, x: Array, y: Array) -> Array:
        """The kernel D, (taps, groups, out, into), with <D, W> = <y, W on x>."""
        xp = namespace(x)
        for axis, extend in enumerate(self.extend, start=2):
            x = extend.apply(x, axis)
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
    return Operator(stencil, xp.permute_dims(taps, (3, 0, 1, 2)), tuple(extend))


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A unit input and how much a map stretches it: its norm is no smaller."""

    gain: float
    x: Array
    y: Array  # the image of x, not normalized


BASIS_BYTES = 2**29  # what the Lanczos basis may take
BASIS, RESTARTS = 24, 12


def top_pair(
    apply: Callable[[Array], Array],
    gram: Callable[[Array], Array],
    start: Array,
    *,
    rtol: float,
    goal: float = math.inf,
) -> Pair:
    """The top singular pair of a linear map, by restarted Lanczos from `start`.

    `gram` is the map and after it its adjoint. Stops when a restart gains less than
    `rtol`, or the gain is as much as `goal`.
    """
    basis = max(3, min(BASIS, BASIS_BYTES // (16 * math.prod(start.shape))))
    x = start / frobenius_norm(start)
    best = Pair(0.0, x, apply(x))
    for _ in range(RESTARTS):
        x = _lanczos(gram, x, basis)
        y = apply(x)
        gain = frobenius_norm(y)
        if gain <= best.gain:
            break
        converged = gain <= best.gain * (1 + rtol) or gain >= goal
        best = Pair(gain, x, y)
        if converged:
            break
    return best


def _lanczos(gram: Callable[[Array], Array], x: Array, steps: int) -> Array:
    """The unit vector that a Krylov space of `steps` dimensions offers for the top."""
    xp, shape = namespace(x), x.shape
    basis = asarray_like(x, np.zeros((steps, math.prod(shape))))
    basis[0, :] = xp.reshape(x, (-1,))
    projected, size = np.zeros((steps, steps)), 0
    for j in range(steps):
        size = j + 1
        known = basis[:size, :]
        v = xp.reshape(gram(xp.reshape(basis[j, :], shape)), (-1,))
        for _ in range(2):  # twice is enough to stay orthogonal
            along = xp.matmul(known, conj(v))
            v = v - xp.matmul(conj(along), known)
            projected[j, j] += complex(along[j]).real
        rest = frobenius_norm(v)
        if size == steps or rest <= 1e-14 * abs(projected[0, 0]):
            break
        projected[j, j + 1] = projected[j + 1, j] = rest
        basis[j + 1, :] = v / rest
    weights = np.linalg.eigh(projected[:size, :size])[1][:, -1]
    found = xp.matmul(asarray_like(x, weights), basis[:size, :])
    return xp.reshape(found / frobenius_norm(found), shape)
