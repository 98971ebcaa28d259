"""What may rounding lose on each step of a certificate, and why?

Every allowance follows from the standard model, fl(x op y) = (x op y)(1 + d) with
|d| <= u, for + - * / and the root. In it a product of m factors (1 + d), or of their
inverses, differs from 1 by at most gamma(m) = m u / (1 - m u), and
gamma(a) + gamma(b) + gamma(a) gamma(b) <= gamma(a + b). [Higham] is N. J. Higham,
Accuracy and Stability of Numerical Algorithms, 2nd edition, SIAM 2002; these are his
(2.4) and Lemmas 3.1 and 3.3. What is used of his theorems is derived again below.

Used throughout:

(1) A real inner product of m terms, summed in any order, is off by at most gamma(m)
    |x|^T |y| ([Higham], section 3.1). Fused multiply-adds only leave roundings out.
(2) The real part of a complex inner product of n terms is a real one of 2n terms, and
    |Re x Re y| + |Im x Im y| <= |x| |y|. So is the imaginary part. Together they are
    off by at most sqrt(2) gamma(2n) |x|^T |y|. It is supposed that complex products are
    made of four real ones, not of three, and matrix products not by Strassen's method.
(3) | |A| |_2 <= |A|_F <= sqrt(rank) |A|_2, so that |A| |A|^H has norm at most
    side * |A|_2^2 for a matrix with `side` rows or columns, whichever are fewer.

Underflow costs some 1e-45 in single and 1e-323 in double precision per operation, far
less than any allowance here: kernels and Gram matrices are scaled to be near 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from .._arrays.array import Array, frobenius_norm, namespace, to_numpy
from .._base import cached
from .._layer.boundary import boundary_of
from .._layer.stencil import Stencil
from .._maps.matrix import matrix_shape
from .._maps.symbol import Taps

Number = TypeVar("Number", float, np.ndarray)

# Unit roundoffs: half of the distance from 1 to the next larger number.
UNIT_SINGLE = float(np.finfo(np.float32).eps) / 2
UNIT_DOUBLE = float(np.finfo(np.float64).eps) / 2

# A factor that pays for up to three roundings of double precision around it.
UP, DOWN = 1 + 4 * UNIT_DOUBLE, 1 - 4 * UNIT_DOUBLE

# Turns a threshold in double precision into one that is not larger, though it will be
# squared and rounded to single precision.
DOWN_SINGLE = 1 - 4 * UNIT_SINGLE

# The part of the tolerance by which a threshold is above the largest gain found. The
# rest is for the rounding of both bounds.
SLACK = 0.75

# The tolerance where a smaller one costs nothing: few matrices, each factorized anyhow.
# Rounding allows for some 1e-10 with a thousand channels, so that less is not promised.
TIGHT = 1e-9

# From this tolerance on a user wants a quick answer, for which a few steps of Lanczos
# and one factorization suffice: it is not tightened.
ROUGH = 1e-3


def effective_rtol(rtol: float) -> float:
    """The tolerance to work with where a tighter one costs next to nothing."""
    return rtol if rtol >= ROUGH else min(rtol, TIGHT)


def gamma(terms: float, unit: float) -> float:
    """m u / (1 - m u); infinite where so many roundings may lose everything."""
    lost = terms * unit
    return lost / (1 - lost) if lost < 1 else math.inf


def complex_gamma(terms: float, unit: float) -> float:
    """What a complex inner product may be off by, over |x|^T |y|: see (2) above."""
    return math.sqrt(2) * gamma(2 * terms, unit)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What rounding may lose between a matrix as stated and the bounds of its norm.

    Attributes
    ----------
    certified : float
        Relative. A Cholesky factor of t^2 - G, as computed, shows that the norm of the
        computed matrix is at most t (1 + certified).
    gain : float
        Relative. The computed gain of a vector is at most (1 + gain) times the norm.
    absolute : float
        How far the computed matrix is from the stated one, in norm.
    """

    certified: float
    gain: float
    absolute: float

    def threshold(self, gain: Number, rtol: float) -> Number:
        """Where to ask for a Cholesky factor, if the largest gain found is `gain`.

        Any threshold would be sound; this one is large enough for the factorization to
        succeed. The matrix with the gain and the factorized one may be computed in two
        ways, each off by `absolute`. Once `certified` is what the Gram matrix and the
        factorization may lose (if they end, see `certificate`, and a factorization does
        end if the least eigenvalue is above its backward error: [Higham], Theorem 10.7,
        after Demmel 1989). Another three are for the gain, and for what the vector is
        off by.
        """
        slack = max(SLACK * rtol, 4 * self.certified)
        return gain * (1 + slack) + 2 * self.absolute

    def upper(self, threshold: Number) -> Number:
        """A bound of the norms of matrices with a Cholesky factor at `threshold`."""
        return (threshold * (1 + self.certified) + self.absolute) * UP

    def lower(self, gain: float) -> float:
        """A lower bound of the norm of a matrix, from the computed gain of a vector."""
        return max((gain / (1 + self.gain) - self.absolute) * DOWN, 0.0)

    def smallest_square(self, square: Number, threshold: Number) -> np.ndarray:
        """No |H x|^2 is below this where G - square and threshold^2 - G have factors.

        Neither difference is larger than |H|^2 in norm, so products and factor lose
        the same on both: at most (1 + certified)^2 - 1 times |H|^2, see `certificate`.
        Twice that pays for the terms of second order.
        """
        lost = 2 * ((1 + self.certified) ** 2 - 1) * self.upper(threshold) ** 2
        smallest = np.sqrt(np.maximum(square - lost, 0.0)) - self.absolute
        return np.maximum(smallest, 0.0) ** 2 * DOWN

    def box_threshold(
        self,
        threshold: float,
        angle: np.ndarray,
        half_step: float,
        axes: int,
        smallest_square: float | np.ndarray = 0.0,
    ) -> np.ndarray:
        """What a center must be below, for all of its box to be below `upper`.

        In exact arithmetic, threshold * q with q = cos(angle) / cos(half_step): see
        `search`; or the root of m + (threshold^2 - m) q^2 if no |H x|^2 is below m. The
        factor at the center proves that the norm is at most c (1 + certified) +
        absolute there. That must not exceed the same with upper(threshold), in which
        `absolute` is multiplied by a number below 1. So it is taken off here; and m is
        divided by (1 + certified)^2, so that this factor can be taken out of the root.

        Angles below pi / 2 are sums over the axes, of pi times quotients, each off by
        at most (axes + 5) u of itself; a cosine by 4 units in its last place (as much
        as vector libraries allow themselves). So numerator and denominator are off by
        less than (1.6 (axes + 5) + 4) u each, and the quotient, at most 1, by their sum
        over the denominator. Root, squares, products, sum and differences above the
        absolute part are at most six roundings, for which DOWN is taken twice.
        """
        cosine = np.cos(angle) - (4 * axes + 28) * UNIT_DOUBLE
        q = np.where(angle < np.pi / 2, cosine, 0.0) / math.cos(half_step)
        m = np.minimum(smallest_square / (1 + self.certified) ** 2, threshold**2)
        at_center = np.sqrt(m + (threshold**2 - m) * q**2) * DOWN**2
        return np.maximum(at_center - self.absolute, 0.0)


def of_symbol(taps: Taps, unit: float) -> Allowance:
    """For the matrices H(f) of a symbol, made of taps that are rounded to `unit`."""
    side, other = sorted((taps.channel_shape[1], taps.columns))
    return Allowance(
        certified=certificate(side, other, unit),
        gain=gain_error(side, other, unit),
        absolute=symbol_entries(taps, unit) * _symbol_size(taps),
    )


@cached(maxsize=256)
def of_stated_matrix(rows: int, columns: int) -> Allowance:
    """For a matrix in double precision that is not computed from anything."""
    side, other = sorted((rows, columns))
    return Allowance(
        certified=certificate(side, other, UNIT_DOUBLE),
        gain=gain_error(side, other, UNIT_DOUBLE),
        absolute=0.0,
    )


def symbol_entries(taps: Taps, unit: float) -> float:
    """What an entry of H(f) may be off by, over the sum of the sizes of its taps.

    The sum over the taps is a complex inner product (2). Axis by axis it is two of
    them, one inside the other, and their numbers of terms add up to at most one more.
    Another one pays for terms of second order and for what `_symbol_size` is off by.

    Taps are rounded to `unit` once, and phases twice if they go axis by axis: 3 u.

    Phases are products over the axes of exp(-2 pi i k / n). The angle, at most 2 pi, is
    off by 3.4 u of itself (pi is off by 0.35 u, one product, one quotient by way of an
    inverse: 21.4 u in all), its exponential by at most another 6 u (either part is
    supposed to be within 4 units in the last place), and a complex product by sqrt(5) u
    (Brent, Percival and Zimmermann, Math. Comp. 76, 2007): below 30 u per axis. On fine
    grids the cycles of all axes are added up first. Sums that are below k are off by up
    to k u, so that their sum is off by at most d (d + 2) u / 2, and the angle of up to
    2 pi d by 1.4 u of itself besides: below (4 d^2 + 26 d) u, at least 30 d u.
    """
    most = max(part.stop - part.start for part in taps.phases)
    axes = taps.shifts.shape[1]
    sums = complex_gamma(most + 2, unit) + gamma(3, unit)
    return sums + gamma(4 * axes**2 + 26 * axes, UNIT_DOUBLE)


def size_bound(taps: Taps) -> float:
    """No norm of the symbol is above this: see `_symbol_size`.

    The sum has as many squares as taps have numbers, and 1e-6 pays for 2^32 of them.
    """
    return _symbol_size(taps) * (1 + 1e-6)


def _symbol_size(taps: Taps) -> float:
    """A bound of | sum over the taps of |W_t| |_F, the same at every frequency.

    An entry has at most n taps, those of its polyphase component. By Cauchy and Schwarz
    the square of the sum of their sizes is at most n times the sum of their squares.
    """
    most = max(part.stop - part.start for part in taps.phases)
    return math.sqrt(most * group_squares(taps).max())


def group_squares(taps: Taps) -> np.ndarray:
    """The sum of the squares of the taps of each group."""
    groups = taps.channel_shape[0]
    if groups == 1:
        return np.array([frobenius_norm(taps.weight) ** 2])
    xp = namespace(taps.weight)
    squares = xp.sum(xp.abs(taps.weight) ** 2, axis=0)
    return to_numpy(xp.sum(xp.reshape(squares, (groups, -1)), axis=1))


def gram_entries(columns: int, unit: float) -> float:
    """What an entry of H H^H may be off by, over that of |H| |H|^H: see (2)."""
    return complex_gamma(columns, unit)


def certificate(side: int, columns: int, unit: float) -> float:
    """How far the norm of H may be above t, relatively, where t^2 - G has a factor.

    `side` is the shorter side of H, and G = H H^H. By (2) and (3) the computed G is off
    by at most g |H|^2 with g = gram_entries * side. If the factorization ends, then by
    `cholesky_error` G has no eigenvalue above t^2 (1 + c): |L| |L|^H is positive
    semidefinite, so that its norm is at most its trace, which is that of L L^H, and
    that of t^2 - G but for a relative gamma; the diagonal of G is a sum of squares, so
    that this is at most side * t^2. Squaring t costs one more u, and rounding it to
    single precision another. Hence |H|^2 (1 - g) <= t^2 (1 + c).

    Rump, Verification of positive definiteness, BIT 46 (2006), uses the trace alike.
    """
    products = gram_entries(columns, unit) * side
    factor = _by_trace(side, unit)
    if products >= 1 or factor == math.inf:
        return math.inf
    return math.sqrt((1 + factor) / (1 - products)) * (1 + 4 * unit) - 1


def _by_trace(side: int, unit: float) -> float:
    """How far G may be above t, relatively, where t - G has a factor: `certificate`."""
    trace = side * (1 + gamma(2 * side, unit))
    return cholesky_error(2 * side, unit) * trace + 2 * unit


def cholesky_error(additions: int, unit: float) -> float:
    """What L L^H may be off by from A = t - G, over |L| |L|^H in absolute values.

    [Higham], Theorem 10.3, has gamma(n + 1) for real matrices of side n if the
    factorization runs to completion. Here is the same for complex ones, and for more
    ways to sum. With the root l of the computed pivot in exact arithmetic, an entry is

        y = fl(s * fl(1 / fl(root))),   s = fl(a - sum of m real products),

    so that s = l y (1 + three roundings). As in [Higham], Lemma 8.4, the roundings of
    the additions can be moved to the other side:

        l y (1 + theta) = a - sum of products (1 + thetas),   all within gamma(m + 3),

    where m counts the roundings that a product can meet before it is part of s: the
    `additions` of real numbers on the longest way, with the product itself. The
    diagonal a is rounded once, when G is taken from t. So each part is off by at most
    gamma(m + 4) times that entry of |L| |L|^H, by Cauchy and Schwarz, and both together
    by sqrt(2) times that. On the diagonal there is no imaginary part.
    """
    return math.sqrt(2) * gamma(additions + 4, unit)


def cholesky_norm(additions: int, side: int, size: float, unit: float) -> float:
    """What L L^H may be off by in norm, over t, if | |L| |L|^H | <= size * t.

    This size was itself computed, as the largest sum in a row times the largest in a
    column: side + 4 roundings each (three in the diagonal, two in an absolute value).
    Or it is a trace, which is that of t - G but for a relative gamma(2 side).
    """
    return cholesky_error(additions, unit) * size * (1 + gamma(2 * side + 12, unit))


def power_error(side: int) -> float:
    """How far |G| may be above s |P_k|_F^(1 / 2^k) as computed, relatively.

    With P_0 = fl(G / s) and P_j+1 = fl(P_j P_j^T), in double precision. The norm of
    P P^T is that of P, squared. Computed it is off by at most gamma(side) |P|_F^2, by
    (1), and that is at most e |P|^2 with e = gamma(side^2). So |P_j|^2 (1 - e) is at
    most |P_j+1|, and |P_0| at most |P_k|^(1 / 2^k) / (1 - e): the exponents 1/2, 1/4
    and so on add up to less than 1. The Frobenius norm is off by gamma(side^2 + 1), and
    the quotient by u sqrt(side) in norm; k roots are off by 2 u in all. This takes four
    times gamma(side^2), with more than enough to spare: no power of up to 2^7 is below
    side^-64, far from underflow.
    """
    return 4 * gamma(side * side + side + 16, UNIT_DOUBLE)


def gain_error(side: int, columns: int, unit: float) -> float:
    """How far a computed |x H| / |x| may be above the norm of H, relatively.

    The vector x is as long as the shorter side. By (2) and (3) the product is off by at
    most complex_gamma(side) sqrt(side) |H| |x|. A length is the root of a sum of 2 n
    squares: gamma(n + 1). The quotient costs one more.
    """
    products = complex_gamma(side, unit) * math.sqrt(side)
    return products + (1 + products) * gamma(side + columns + 4, unit)


def of_matrix(weight: Array, stencil: Stencil) -> Allowance:
    """For the matrices of a layer, (out * rows, in * columns), one per group.

    Their entries are sums of taps that read the same site: off by less than what
    `_applied` allows for. Gains come from the layer itself: see `of_layer`.
    """
    side, other = sorted(matrix_shape(stencil))
    layer = of_layer(weight, stencil, stencil.groups * (side + other))
    return replace(layer, certified=certificate(side, other, UNIT_DOUBLE))


def of_layer(weight: Array, stencil: Stencil, numbers: int) -> Allowance:
    """For gains |y| / |x| of the layer itself, where x and y have so many `numbers`.

    x was divided by its length, and both lengths are roots of sums of 2 n squares:
    gamma(n + 1) each, and one more for the division. They certify no upper bound.
    """
    return Allowance(
        certified=math.inf,
        gain=gamma(numbers + 6, UNIT_DOUBLE),
        absolute=_applied(weight, stencil),
    )


def _applied(weight: Array, stencil: Stencil) -> float:
    """What the layer's answer to an input of length 1 may be off by, in length.

    Each number is a complex inner product (2) of `taps * in_channels` terms; two more
    pay for terms of second order, for an input slightly longer than 1, and for the
    rounding of what follows.
    """
    terms = stencil.taps * stencil.in_channels + 2
    return complex_gamma(terms, UNIT_DOUBLE) * layer_size(weight, stencil)


def layer_size(weight: Array, stencil: Stencil) -> float:
    """A bound on the norm of the layer with the sizes of its taps.

    That is a convolution after an extension that repeats each site at most `repeats`
    times, once if it is by zeros. The norm of the former is at most that of its symbol
    at frequency 0, sum over t of |W_t|.
    """
    xp = namespace(weight)
    sums = xp.sum(xp.abs(weight), axis=tuple(range(2, weight.ndim)))
    repeats = 1
    if not boundary_of(stencil.boundary).is_zero:
        repeats = math.prod(1 + max_padding for max_padding in stencil.max_padding)
    return math.sqrt(float(xp.sum(sums * sums)) * repeats)


def of_cut(sites: Sequence[int], points: Sequence[int]) -> Allowance:
    """For B diag(a) B^T, with waves on `sites` of a torus with so many `points`.

    On d axes B is a product of d bases. A factor of t - A shows that the computed A is
    at most t (1 + certified): see `certificate`, where G is A, whose diagonal is a sum
    of products that are not negative. `absolute` is over the largest a. Entries of a
    basis are at most sqrt(2 / points) and, but for this factor, off by 30 u at most:
    the angle by 21.4 u (see `symbol_entries`), a cosine of it by 4 units in its last
    place, the factor by 2 u, and the product by one. So each of the two in a product
    costs 31 u, and another 2 u are for terms of second order; the product with a, or of
    both, costs one, the inner product gamma(points) by (1): in all gamma(points + 65)
    on each axis. An entry of A is off by no more than that times 2^d max(a), and the
    norm by the number of sites times as much.
    """
    axes, side = len(sites), math.prod(sites)
    return Allowance(
        certified=_by_trace(side, UNIT_DOUBLE),
        gain=math.inf,
        absolute=2**axes * side * gamma(sum(points) + 65 * axes, UNIT_DOUBLE),
    )


def interpolation_error(terms: int, lebesgue: float) -> float:
    """What an interpolated Gram matrix may be off by in single precision, in norm.

    Relative to the largest Frobenius norm at a node. A number is a real sum of weights
    times values at nodes, with at most `terms` of both axes' sums (1). Values are
    rounded once, weights once per sum, of which there are at most two: 3 u. One more u
    is for weights: what they are off by in double precision, some n (n + 100) u_d in
    all for n nodes, is below u for n < 20000. One more u is for the values: what they
    are off by in double precision, gram_entries * sqrt(side) + 2 symbol_entries *
    sqrt(taps * side) over the Frobenius norm (whose maximum is at least that of the
    kernel, by Parseval), is below u as long as columns * sqrt(side) < 1e8.

    Real and imaginary parts are off by at most gamma times sum |weight| |value|, so
    that the Frobenius norm of the error is at most gamma * (sum |weight|) * (largest
    Frobenius norm at a node), and the sum of the sizes of the weights is at most the
    Lebesgue constant.
    """
    return gamma(terms + 5, UNIT_SINGLE) * lebesgue * UP


def lebesgue_constant(nodes: np.ndarray) -> float:
    """The largest sum of the sizes of Dirichlet kernels, for n nodes on each axis.

    For odd n it is attained midway between two nodes. Proof on one axis: between two
    nodes the kernels keep their signs. With these signs their sum is a trigonometric
    polynomial of degree d = (n - 1) / 2 that is 1 or -1 at the nodes: 1 at both ends of
    the interval, alternating elsewhere. So it changes its sign 2 d times outside of the
    interval, has no other zeros, and its derivative has one zero between any two of
    them. In the arc around the interval that zero is the middle, by symmetry.

    Midway, all |sin(n x / 2)| are 1, and |D(x)| = 1 / (n |sin(x / 2)|). On several
    axes kernels are products, and so are the sums.
    """
    constant = 1.0
    for n in nodes:
        sines = np.sin(np.pi * (2 * np.arange(n) + 1) / (2 * n))
        constant *= float(np.mean(1 / sines))
    return constant
