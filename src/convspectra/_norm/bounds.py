"""What every way to bound a norm returns."""

from collections.abc import Callable
from dataclasses import dataclass

from .._arrays.array import Array
from .._route.records import Method


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Both bounds of a norm, and the derivative of the upper one by the weight.

    With the method that has certified the upper one.
    """

    lower: float
    upper: float
    derivative: Callable[[], Array]
    method: Method
