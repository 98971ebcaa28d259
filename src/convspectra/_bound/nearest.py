"""The nearest kernel whose blocks all have norm at most c: a convex problem.

    minimize |K - K0|^2 / 2   over kernels K with   |A K (f)| <= c for every block f

A takes a kernel to its blocks. The dual is a minimum over blocks L,

    |K0 - A* L|^2 / 2 + c * (mean over the blocks of the nuclear norm of L),

and K = K0 - A* L. Every round takes one Hermitian eigendecomposition per block, to
soft-threshold the singular values of Y = A K + L / rho by c; one round from L = 0 is
the paper's clip. A round makes a Newton step on the augmented Lagrangian, by conjugate
gradients in the small space of kernels, with the derivative of the soft threshold in
closed form. The dual moves along the same linearization. A block is active if its dual
is not zero. The norm of others is only compared with c, by a Cholesky factor, and they
are not stored.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._arrays.array import (
    Array,
    adjoint,
    asarray_like,
    conj,
    indices_like,
    namespace,
    to_numpy,
)
from .._arrays.linalg import are_definite, eigh
from .blocks import Blocks

# All by experiment. RHO is the first weight of the penalty and RHO_LEAST the least one,
# over the norm of A* A. The weight is multiplied by GROWTH after every round that made
# progress: the gap fell to PROGRESS times that of the last such round, or the residual
# is below SETTLED times the change of the blocks. After PATIENCE rounds without, the
# solver goes back to the last good point, with a smaller weight and less growth.
RHO, RHO_LEAST = 10.0, 0.1
GROWTH, GROWTH_LEAST = 2.0, 1.2
PROGRESS, SETTLED, PATIENCE = 0.9, 0.1, 6
# Relative residual at which conjugate gradients stop, and the most steps they make.
FORCING, FORCING_LEAST, CG_STEPS = 0.05, 0.01, 100
# Squares of singular values are at least this, so that they can be divided by.
LEAST_SQUARE = 1e-300
# Squares of values that are this close, relatively, count as equal in a divided
# difference.
TIED = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """A kernel that satisfies the bound, and a lower bound on what others attain."""

    kernel: Array  # flat, as `Blocks` has it
    dual: float  # no kernel that satisfies the bound has |K - K0|^2 / 2 below this
    rounds: int


def nearest(blocks: Blocks, c: float, *, rtol: float, max_rounds: int) -> Nearest:
    """Minimize until |K - K0|^2 / 2 is within a factor 1 - `rtol` of a lower bound."""
    search, rounds = _Newton(blocks, c), 1
    step = search.shrink()
    while search.primal - search.dual > rtol * search.primal and rounds < max_rounds:
        search.advance(step)
        step = search.shrink()
        rounds += 1
    return Nearest(search.best, search.dual, rounds)


@dataclass(frozen=True, slots=True, eq=False)
class _Shrunk:
    """Y = W V^H with W = U S, and its values soft-thresholded by c: blocks `which`."""

    which: np.ndarray
    w: Array
    v: Array
    s: Array
    h: Array  # max(1 - c / s, 0): Y has the soft-thresholded part W h V^H
    shrunk: Array  # W h V^H
    change: Array  # W h V^H - L / rho
    folded: Array  # rho * A* (W h V^H): what the dual takes off the kernel
    gap: float


class _Newton:
    """The state of the iteration, and the bounds on the optimum."""

    def __init__(self, blocks: Blocks, c: float) -> None:
        self.blocks, self.c = blocks, c
        self.rho = RHO / blocks.stretch
        self.kernel = blocks.start
        shape = blocks.of(self.kernel, np.arange(1)).shape
        self.wide = shape[-2] < shape[-1]
        self.groups = shape[1]
        self.active = np.arange(0)  # blocks whose dual is not zero
        self.dual_blocks = self._of(self.kernel, self.active)
        self.best, self.primal, self.dual = 0 * self.kernel, math.inf, 0.0
        self.growth, self.forcing = GROWTH, FORCING
        self.reference, self.patience = math.inf, PATIENCE
        self.saved = (self.kernel, self.dual_blocks, self.active, self.rho)

    def shrink(self) -> _Shrunk:
        """The one eigendecomposition of a round; both values follow from it."""
        xp, c, start = namespace(self.kernel), self.c, self.blocks.start
        new = self._newly_active()
        which = np.concatenate([self.active, new])
        y = self._of(self.kernel, which)
        none = xp.zeros_like(y[self.active.size :, ...])
        before = xp.concat([self.dual_blocks / self.rho, none], axis=0)
        y = y + before
        squares, v = eigh(xp.matmul(adjoint(y), y))
        s = xp.sqrt(xp.clip(squares, min=LEAST_SQUARE))
        h = xp.clip(1 - c / s, min=0.0)
        w = xp.matmul(y, v)
        shrunk = xp.matmul(w * h[..., None, :], adjoint(v))
        folded = self._fold(shrunk, which) * self.rho
        change = shrunk - before
        feasible = self._scaled_to_bound(self._group_bounds(s, change))
        primal = _square(feasible - start) / 2
        weights = asarray_like(s, self.blocks.weights[which])[:, None, None]
        nuclear = self.rho * float(xp.sum(weights * s * h))
        dual = _dot(folded, start) - _square(folded) / 2 - c * nuclear
        if primal < self.primal:
            self.primal, self.best = primal, feasible
        self.dual = max(self.dual, dual)
        return _Shrunk(which, w, v, s, h, shrunk, change, folded, primal - dual)

    def advance(self, at: _Shrunk) -> None:
        """One Newton step; rho grows after progress, and falls back without any."""
        xp = namespace(self.kernel)
        residual = self.blocks.start - self.kernel - at.folded
        weights = asarray_like(at.s, self.blocks.weights[at.which])[:, None, None, None]
        moved = self.rho * float(xp.sum(weights * xp.abs(at.change) ** 2))
        rho = self.rho
        if at.gap < PROGRESS * self.reference or _square(residual) < SETTLED * moved:
            self.reference, self.patience = at.gap, PATIENCE
            self.saved = (self.kernel, self.dual_blocks, self.active, self.rho)
            rho = self.rho * self.growth
        else:
            self.patience -= 1
        if not self.patience:
            self._fall_back()
            return
        derivative = self._derivative(at)
        step = self._newton_step(residual, at.which, derivative)
        moved_blocks = at.shrunk + derivative(self._of(step, at.which))
        active = np.flatnonzero(to_numpy(xp.any(at.h > 0, axis=(1, 2))))
        self.kernel = self.kernel + step
        self.active = at.which[active]
        self.dual_blocks = self.rho * _take(moved_blocks, active)
        self.rho = rho

    def _fall_back(self) -> None:
        self.kernel, self.dual_blocks, self.active, rho = self.saved
        self.rho = max(rho / 4, RHO_LEAST / self.blocks.stretch)
        self.reference, self.patience = math.inf, PATIENCE
        self.forcing = max(self.forcing / 2, FORCING_LEAST)
        self.growth = max(math.sqrt(self.growth), GROWTH_LEAST)

    def _newly_active(self) -> np.ndarray:
        """Blocks whose norm exceeds c and whose dual is still zero."""
        found = [np.arange(0)]
        for part in self.blocks.parts():
            rest = np.setdiff1d(part, self.active)
            if rest.size:
                y = self._of(self.kernel, rest)
                found.append(rest[~below(y, self.c)])
        return np.concatenate(found)

    def _group_bounds(self, s: Array, change: Array) -> np.ndarray:
        """At least the norm of each group of the kernel: A K = clipped Y + change."""
        if not s.shape[0]:
            return np.full(self.groups, self.c)
        xp = namespace(s)
        if not self.active.size:
            return np.maximum(self.c, to_numpy(xp.max(s, axis=(0, 2))))
        squares = xp.max(xp.sum(xp.abs(change) ** 2, axis=(2, 3)), axis=0)
        return self.c + np.sqrt(to_numpy(squares))

    def _scaled_to_bound(self, bounds: np.ndarray) -> Array:
        xp, kernel = namespace(self.kernel), self.kernel
        factors = asarray_like(kernel, self.c / bounds)[None, :, None]
        split = xp.reshape(kernel, (kernel.shape[0], self.groups, -1))
        return xp.reshape(split * factors, kernel.shape)

    def _derivative(self, at: _Shrunk) -> Callable[[Array], Array]:
        """The derivative of the soft threshold: divided differences of h over s^2."""
        xp, c = namespace(at.s), self.c
        square = at.s * at.s
        apart = square[..., :, None] - square[..., None, :]
        slope = c / (2 * xp.clip(at.s, min=c) ** 3)
        slope = xp.where(at.s > c, slope, xp.zeros_like(slope))
        # Not c * c, which may be 0 where c is far below the values.
        tied = xp.abs(apart) <= TIED * xp.clip(square, min=c * c)[..., None]
        steps = at.h[..., :, None] - at.h[..., None, :]
        steps = steps / xp.where(tied, xp.ones_like(apart), apart)
        slopes = (slope[..., :, None] + slope[..., None, :]) / 2
        differences = xp.where(tied, slopes, steps)

        def derivative(x: Array) -> Array:
            x = xp.matmul(x, at.v)
            b = xp.matmul(adjoint(at.w), x)
            turned = xp.matmul(at.w, differences * (b + adjoint(b)))
            return xp.matmul(x * at.h[..., None, :] + turned, adjoint(at.v))

        return derivative

    def _newton_step(
        self, residual: Array, which: np.ndarray, derivative: Callable[[Array], Array]
    ) -> Array:
        """Conjugate gradients for (1 + rho A* derivative A) step = residual."""
        step, direction = 0 * residual, residual
        first = square = _square(residual)
        for _ in range(CG_STEPS):
            if square <= self.forcing**2 * first:
                break
            bent = self._fold(derivative(self._of(direction, which)), which)
            image = direction + self.rho * bent
            length = square / _dot(direction, image)
            step, residual = step + length * direction, residual - length * image
            square, last = _square(residual), square
            direction = residual + square / last * direction
        return step

    def _of(self, kernel: Array, which: np.ndarray) -> Array:
        """Blocks with the short side last."""
        y = self.blocks.of(kernel, which)
        return adjoint(y) if self.wide else y

    def _fold(self, y: Array, which: np.ndarray) -> Array:
        return self.blocks.fold(adjoint(y) if self.wide else y, which)


def below(y: Array, c: float) -> np.ndarray:
    """Whether all groups of each block have norm below c; the short side is last."""
    xp, side = namespace(y), y.shape[-1]
    rest = c * c * asarray_like(y, np.eye(side)) - xp.matmul(adjoint(y), y)
    definite = are_definite(xp.reshape(rest, (-1, side, side)))
    return np.all(definite.reshape(y.shape[0], -1), axis=1)


def _take(x: Array, which: np.ndarray) -> Array:
    return namespace(x).take(x, indices_like(x, which), axis=0)


def _dot(a: Array, b: Array) -> float:
    return complex(namespace(a).sum(conj(a) * b)).real


def _square(a: Array) -> float:
    return _dot(a, a)
