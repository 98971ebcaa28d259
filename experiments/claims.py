"""Claims and their verdicts, and intervals for what is measured with several seeds."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# The 97.5 % point of Student's t by degrees of freedom, from any table of it.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of the paper, what it published, what was found, and the verdict.

    Attributes
    ----------
    statement : str
    published, found : str
        The paper's number and ours, as a table shows them.
    holds : bool or None
        None if this scale can't show it either way.
    note : str
        What the scale can't show, or how it differs from the paper's setting.
    """

    statement: str
    published: str
    found: str
    holds: bool | None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The claim as `json` writes it."""
        return asdict(self)


def exit_code(claims: Sequence[Claim]) -> int:
    """0 if every claim that could be tried holds, 1 if one does not, 2 if none could.

    A claim that is None could not be tried at this scale.
    """
    tried = [claim.holds for claim in claims if claim.holds is not None]
    return int(not all(tried)) if tried else 2


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds with its 95 % interval; with one seed there is no interval."""

    mean: float
    low: float | None
    high: float | None
    count: int

    def text(self, unit: str = "", digits: int = 2) -> str:
        """Return the mean, the interval and the number of seeds, as a table shows them.

        With `unit` "%", all numbers are multiplied by a hundred.
        """
        factor = 100 if unit == "%" else 1
        shown = [
            "-" if x is None else f"{factor * x:.{digits}f}"
            for x in (self.mean, self.low, self.high)
        ]
        number = f"{shown[0]} {unit}".rstrip()
        if self.low is None:
            return f"{number} (1 seed)"
        return f"{number} [{shown[1]}, {shown[2]}] ({self.count} seeds)"


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent values and its 95 % interval, by Student's t."""
    count, mean = len(values), statistics.fmean(values)
    if count < 2:
        return Interval(mean, None, None, count)
    factor = STUDENT[count - 2] if count - 2 < len(STUDENT) else 2.2
    half = factor * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def bootstrap(
    values: Sequence[float], statistic: Callable[[np.ndarray], float], seed: int = 0
) -> Interval:
    """A statistic of the values and its 95 % percentile interval over resamples."""
    data, rng = np.asarray(values, float), np.random.default_rng(seed)
    drawn = rng.integers(len(data), size=(RESAMPLES, len(data)))
    found = [statistic(data[row]) for row in drawn]
    low, high = np.quantile(found, [0.025, 0.975])
    return Interval(float(statistic(data)), float(low), float(high), len(data))
