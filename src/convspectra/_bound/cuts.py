"""Half-spaces that hold every kernel within a bound: see `cutting_planes`."""

from dataclasses import dataclass

import numpy as np

from .._maps.symbol import Taps
from .half_spaces import HalfSpaces

# Cuts may be nearly the same: this part of the largest diagonal entry is added to the
# matrix of their products. It is more than what single precision is off by there.
RIDGE = 1e-6
# Changes of the active set at most, and how many of them may leave as many wrong signs.
PIVOTS, PATIENCE = 500, 3


@dataclass(frozen=True, slots=True, eq=False)
class NewCuts:
    """The half-spaces that a kernel K is not in.

    Attributes
    ----------
    half_spaces : HalfSpaces
    where : array, shape (cuts,)
        The numbers of their frequencies.
    gains : array, shape (cuts,)
        <g, K>, which is above c.
    nuclear : array, shape (cuts,)
        Nuclear norms of what soft-thresholding takes off K.
    """

    half_spaces: HalfSpaces
    where: np.ndarray
    gains: np.ndarray
    nuclear: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Half-spaces <g_j, K> <= c, and the nearest point of their intersection.

    Attributes
    ----------
    half_spaces : HalfSpaces
    gram : array, shape (cuts, cuts)
        The inner products <g_j, g_k>.
    excess : array, shape (cuts,)
        <g_j, K0> - c.
    x : array, shape (cuts,)
        The nearest point is K0 - sum of x_j g_j.
    """

    half_spaces: HalfSpaces
    gram: np.ndarray
    excess: np.ndarray
    x: np.ndarray

    @classmethod
    def first(cls, new: NewCuts, taps: Taps, c: float) -> "Cuts":
        """Those of K0."""
        half_spaces, excess = new.half_spaces, new.gains - c
        gram = half_spaces.products(half_spaces, taps)
        x = nonnegative_minimum(gram, excess, np.zeros(len(excess)))
        return cls(half_spaces, gram, excess, x)

    @property
    def distance(self) -> float:
        """No kernel within the bound has |K - K0|^2 / 2 below this."""
        return float(self.x @ self.excess - self.x @ self.gram @ self.x / 2)

    def with_new(self, new: NewCuts, taps: Taps, c: float) -> "Cuts":
        """With those of the nearest point so far, and the nearest point then.

        Cuts on which the nearest point does not lie are forgotten.
        """
        own = self.x > 0
        old, x = self.half_spaces.only(own), self.x[own]
        across = new.half_spaces.products(old, taps)
        square = new.half_spaces.products(new.half_spaces, taps)
        gram = np.block([[self.gram[np.ix_(own, own)], across.T], [across, square]])
        excess = np.concatenate([self.excess[own], new.gains - c + across @ x])
        x = np.concatenate([x, np.zeros(len(new.gains))])
        found = nonnegative_minimum(gram, excess, x)
        return Cuts(old.joined(new.half_spaces), gram, excess, found)

    def change(self, taps: Taps) -> np.ndarray:
        """The sum of x_j g_j: (taps, out * in)."""
        return self.half_spaces.change(self.x, taps)


def nonnegative_minimum(gram: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The least <x, gram x> / 2 - <b, x> with x >= 0, from a first guess.

    Block principal pivoting: all signs that are wrong are turned at once. If that does
    not leave fewer of them, then one by one, which comes to an end (Murty's rule).
    """
    gram = gram + RIDGE * gram.diagonal().max() * np.eye(len(b))
    active, fewest, patience = x > 0, len(b) + 1, PATIENCE
    for _ in range(PIVOTS):
        x = np.zeros(len(b))
        x[active] = np.linalg.solve(gram[np.ix_(active, active)], b[active])
        slack = gram @ x - b
        wrong = np.where(active, x < 0, slack < -RIDGE * np.abs(b).max())
        count = np.count_nonzero(wrong)
        if not count:
            break
        patience = PATIENCE if count < fewest else patience - 1
        fewest = min(fewest, count)
        active = active ^ wrong
        if patience < 0:
            active = active ^ wrong
            active[np.flatnonzero(wrong)[-1]] ^= True
    return np.maximum(x, 0.0)
