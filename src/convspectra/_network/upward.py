"""Sums, products and roots of floating-point numbers that are never too small.

Exact rational arithmetic decides, so that what is exact stays as it is.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

# Products below this are taken for it: numbers have all their digits above.
SMALLEST = 1e-290


def root(square: Fraction | int) -> float:
    """The smallest number whose square is at least this."""
    if square <= 0:
        return 0.0
    above, below = Fraction(square).as_integer_ratio()
    # As a whole multiple of 2^-places, the root has 63 binary digits or more.
    places = max(0, 64 + (below.bit_length() - above.bit_length()) // 2)
    scaled = -(-(above << 2 * places) // below)
    return _float(Fraction(math.isqrt(scaled - 1) + 1, 1 << places))


def product(first: float, second: float) -> float:
    """The product of two numbers that are not negative; infinite if one is."""
    if math.isinf(first) or math.isinf(second):
        return math.inf
    return _float(Fraction(first) * Fraction(second))


def total(values: Iterable[float]) -> float:
    """The sum of numbers that are not negative."""
    found = list(values)
    if any(map(math.isinf, found)):
        return math.inf
    return _float(sum(map(Fraction, found), Fraction(0)))


def root_of_squares(values: Iterable[float]) -> float:
    """The norm of a vector."""
    found = list(values)
    if any(map(math.isinf, found)):
        return math.inf
    return root(sum((Fraction(value) ** 2 for value in found), Fraction(0)))


def _float(exact: Fraction) -> float:
    """The smallest number that is at least this."""
    if exact == 0:
        return 0.0
    try:
        near = float(exact)
    except OverflowError:
        return math.inf
    if near < SMALLEST:
        return SMALLEST
    return near if Fraction(near) >= exact else math.nextafter(near, math.inf)
