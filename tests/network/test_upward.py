"""Sums, products and roots are never too small, and no larger than they must be."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convspectra._network import upward

NUMBERS = st.floats(1e-100, 1e100)


@given(square=st.fractions(Fraction(1, 10**40), 10**40))
def test_a_root_is_the_smallest_that_will_do(square):
    root = upward.root(square)
    assert Fraction(root) ** 2 >= square > Fraction(math.nextafter(root, 0)) ** 2


@given(first=NUMBERS, second=NUMBERS)
def test_a_product_is_the_smallest_that_will_do(first, second):
    found, exact = upward.product(first, second), Fraction(first) * Fraction(second)
    assert Fraction(found) >= exact > Fraction(math.nextafter(found, 0))


@given(values=st.lists(NUMBERS, min_size=1))
def test_a_sum_is_the_smallest_that_will_do(values):
    found, exact = upward.total(values), sum(map(Fraction, values))
    assert Fraction(found) >= exact > Fraction(math.nextafter(found, 0))


@given(value=NUMBERS)
def test_the_norm_of_one_number_is_that_number(value):
    assert upward.root_of_squares([value, 0.0]) == value


@pytest.mark.parametrize("square", [Fraction(1, 10**9000), Fraction(5, 10**324)])
def test_a_tiny_root_is_found_at_once_and_not_too_small(square):
    assert Fraction(upward.root(square)) ** 2 >= square


def test_what_exceeds_all_numbers_is_infinite():
    assert upward.root(10**9000) == math.inf
    assert upward.product(1e300, 1e300) == math.inf
    assert upward.product(math.inf, 0.0) == math.inf
    assert upward.total([1e308, 1e308]) == math.inf
    assert upward.root_of_squares([math.inf, 1.0]) == math.inf
