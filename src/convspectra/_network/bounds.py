"""What is known of the Lipschitz constant of a network, and of its parts."""

import math
from dataclasses import dataclass

from .._text import Lower, Upper, aligned, cell, number


@dataclass(frozen=True, slots=True)
class LipschitzPart:
    """A part of a network that changes the size of what goes through it.

    Attributes
    ----------
    name, operator : str
    norm : float or None
        A certified upper bound of its own Lipschitz constant, infinite if none is
        known; None if it does nothing but join several arrays.
    total : float
        The same of everything from the network's input to here.
    method : str
        How that is known; see `lipschitz`.
    """

    name: str
    operator: str
    norm: float | None
    total: float
    method: str


@dataclass(frozen=True, slots=True)
class LipschitzBounds:
    """A lower and an upper bound on the Lipschitz constant of a network.

    The constant is the largest |f(x) - f(y)| / |x - y| over all inputs x and y of one
    size, in Euclidean norms, where f is the network in exact arithmetic.

    Attributes
    ----------
    lower : float
        The quotient of two inputs, computed in double precision; 0 if none were tried.
    upper : float
        Certified for all inputs; infinite if a part is unknown.
    method : str
        What the bounds come from.
    parts : tuple of LipschitzPart
        In the order of computation.
    unknown : dict of str to str
        The names of parts without a bound, and why there is none.
    """

    lower: float
    upper: float
    method: str
    parts: tuple[LipschitzPart, ...]
    unknown: dict[str, str]

    def __str__(self) -> str:
        """Both bounds with four digits, rounded outward, and what they come from."""
        text = "Lipschitz constant"
        if self.lower > 0:
            text = f"{number(Lower(self.lower))} <= {text}"
        if math.isinf(self.upper):
            return f"{text}, without an upper bound ({self.method})"
        return f"{text} <= {number(Upper(self.upper))} ({self.method})"

    def table(self) -> str:
        """The parts as a table: each one's own bound, and that of all up to it."""
        header = ["part", "operator", "norm", "so far", "method"]
        rows = [
            [
                cell(part.name),
                part.operator,
                cell(None if part.norm is None else Upper(part.norm)),
                cell(Upper(part.total)),
                part.method,
            ]
            for part in self.parts
        ]
        return aligned(header, rows)
