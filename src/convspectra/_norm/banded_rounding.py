"""What may rounding lose where the banded Gram matrix of a layer is factorized?

By the rules of `rounding.py`, in double precision. What the factorization itself loses
is measured while it runs.
"""

import math
from dataclasses import dataclass

import numpy as np

from .._arrays.array import Array
from .._maps.banded import BandedGram
from .._maps.tiling import Tiling
from .rounding import UNIT_DOUBLE, UP, cholesky_error, complex_gamma, gamma, layer_size


def formed_gram(weight: Array, gram: BandedGram) -> float:
    """What the Gram matrix of a layer may be off by, in norm, made from pairs of taps.

    A product of taps is a complex inner product (2) over the channels of the other
    side. The counts of an axis are whole numbers: with k taps, k^2 products are each
    multiplied by one, and added up. So an entry is off by at most this gamma times that
    of |T|^H |T|, where |T| is the layer with the sizes of its taps, of those that read
    a column at all. Two more pay for what `layer_size` is off by.
    """
    stencil = gram.stencil
    other = stencil.in_channels if gram.on_rows else stencil.out_channels
    sums = sum(k * k + 1 for k in stencil.kernel)
    read = np.ix_(*(axis.taps for axis in gram.axes))
    size = layer_size(np.asarray(weight)[:, :, *read], stencil)
    return complex_gamma(other + sums + 2, UNIT_DOUBLE) * size * size


@dataclass(frozen=True, slots=True)
class BandedRounding:
    """What a tiled factorization of the matrix A = square - G may lose.

    Attributes
    ----------
    formed : float
        How far the computed G is from the true one, in norm.
    square : float
    """

    formed: float
    square: float

    def factor(self, tiles: Tiling, solves: float) -> float:
        """What L L^H is off by from A, in norm, once the factorization has ended.

        Where `solves` is how far L_ik L_kk^H is from S_ik, for all i > k together, in
        the Frobenius norm.

        With P the sum over m < k of L_im L_km^H, S = fl(A_ik - P) is off from A_ik - P
        by at most complex_gamma(reach) |L| |L|^H and u |S|. On the diagonal its factor
        adds cholesky_error(2 tile) |L_kk| |L_kk|^H. Beside it S = L_ik L_kk^H + D by
        the definition of D, whose norm is `solves`. On the diagonal A itself was
        rounded once. All of this together is within

            |A - L L^H| <= cholesky_error(2 reach + 4) |L| |L|^H + (1 + u) |D|.

        D stands below the diagonal and D^H above it. For the norm of |L| |L|^H see
        `banded_factor_loss`; its diagonal is the one of L L^H, so that with A it is at
        most (square + formed) / (1 - cholesky_error): G has no diagonal entry below
        -formed.
        """
        loss = banded_factor_loss(tiles) * (self.square + self.formed)
        return (loss + 2 * solves) * (1 + 8 * UNIT_DOUBLE)

    def upper(self, error: float) -> float:
        """No norm is above this where the factors are off by at most `error`."""
        return math.sqrt(self.square + error + self.formed) * UP


def banded_factor_loss(tiles: Tiling) -> float:
    """What L L^H may be off by in norm from A, over the largest number on its diagonal.

    B = |L| |L|^H is positive semidefinite and has tiles where L L^H may have some. A
    tile of it has a norm of at most the root of the product of the two on the diagonal,
    and these have at most their traces: so |B| <= neighbors * side times the largest
    number on its diagonal.
    """
    c = cholesky_error(2 * tiles.reach + 4, UNIT_DOUBLE)
    return c / (1 - c) * tiles.neighbors * tiles.side if c < 1 else math.inf


def inverse_residual(factor: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """What a multiplication by L^-1 in place of a solve is off by, over |S|_F.

    X = fl(S Y^H) with Y near L^-1 is S Y^H + E, |E| <= complex_gamma(n) |S| |Y|^H, so
    that S - X L^H = S (I - L Y)^H - E L^H. The first is at most |S| |I - L Y| where L Y
    was computed, and so off by complex_gamma(n) |L| |Y|; both are measured, and all
    norms are Frobenius norms: sums of n^2 squares, off by gamma(2 n^2) in all. Nothing
    is supposed of how Y was found.
    """
    n = factor.shape[-1]
    left = np.linalg.norm(factor @ inverse - np.eye(n), axis=(-2, -1))
    sizes = (np.linalg.norm(x, axis=(-2, -1)) for x in (factor, inverse))
    products = 2 * complex_gamma(n + 2, UNIT_DOUBLE) * math.prod(sizes)
    return (left + products) * (1 + gamma(2 * n * n, UNIT_DOUBLE))
