"""Claims and their verdicts, and intervals for what is measured with several seeds."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .talk import table

RESAMPLES = 10_000
# The part of an error up to which a change of it is little. In the paper, clipping at
# 0.1 changes it by 8 % ("surprisingly" little), and at 0.5, its main result, by 15 %.
LITTLE = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of the paper, what it published, what was found, and the verdict.

    Attributes
    ----------
    statement : str
    published, found : str
        The paper's number and ours, as a table shows them.
    holds : bool or None
        None if it is undecided: this scale can't show it either way.
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
    """0 if every decided claim holds, 1 if one does not, 2 if none is decided."""
    decided = [claim.holds for claim in claims if claim.holds is not None]
    return int(not all(decided)) if decided else 2


def all_hold(found: Sequence[bool | None]) -> bool | None:
    """Whether all of these hold: no if one does not, and else None if one is None."""
    return False if False in found else None if None in found else True


def verdicts(claims: Sequence[Claim]) -> str:
    """The claims as a table: what is said, published, found, and whether it holds."""
    words = {True: "holds", False: "does not hold", None: "undecided"}
    rows = [[c.statement, c.published, c.found, words[c.holds]] for c in claims]
    notes = [f"{c.statement}: {c.note}" for c in claims if c.note]
    return "\n".join([table(["claim", "paper", "here", "verdict"], rows), "", *notes])


@dataclass(frozen=True, slots=True)
class Interval:
    """A number with its 95 % interval, over `count` seeds or, if that is None, choices.

    With one seed there is no interval.
    """

    mean: float
    low: float | None
    high: float | None
    count: int | None

    def text(self, unit: str = "", digits: int = 2) -> str:
        """Return the mean, the interval and the number of seeds, as a table shows them.

        With `unit` "%" or "points", all numbers are multiplied by a hundred; points,
        the unit of a difference, have signs.
        """
        factor = 100 if unit in ("%", "points") else 1
        sign = "+" if unit == "points" else ""
        shown = [
            "-" if x is None else f"{factor * x:{sign}.{digits}f}"
            for x in (self.mean, self.low, self.high)
        ]
        text = f"{shown[0]} {unit}".rstrip()
        if self.low is not None:
            text += f" [{shown[1]}, {shown[2]}]"
        if self.count is None:
            return text
        return f"{text} ({self.count} {'seed' if self.count == 1 else 'seeds'})"


def interval(values: Sequence[float]) -> Interval:
    """The mean of independent values and its 95 % interval, by Student's t."""
    count, mean = len(values), statistics.fmean(values)
    if count < 2:
        return Interval(mean, None, None, count)
    half = student(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def difference(
    a: Sequence[float], b: Sequence[float], *others: Sequence[float]
) -> Interval:
    """The mean of `a` minus that of `b`, and its 95 % interval, by Student's t.

    The spread over seeds is taken to be the same in both, and in the `others`, which
    serve to estimate it: an arm with one or two seeds has none worth the name.
    """
    arms = (a, b, *others)
    freedom = sum(len(values) - 1 for values in arms)
    means = [statistics.fmean(values) for values in arms]
    mean, count = means[0] - means[1], min(len(a), len(b))
    if not freedom:
        return Interval(mean, None, None, count)
    squares = sum((x - m) ** 2 for values, m in zip(arms, means) for x in values)
    half = student(freedom) * math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))
    return Interval(mean, mean - half, mean + half, count)


def is_below_zero(found: Interval) -> bool | None:
    """Whether a difference is negative; None if its interval does not tell."""
    if found.low is None or found.high is None or found.low <= 0 <= found.high:
        return None
    return found.mean < 0


def is_little(found: Interval, most: float) -> bool | None:
    """Whether a difference is at most so large; None if its interval does not tell."""
    if found.low is None or found.high is None:
        return None
    if -most <= found.low and found.high <= most:
        return True
    return None if found.low <= most and found.high >= -most else False


def is_little_more(found: Interval, most: float) -> bool | None:
    """Whether a difference is positive and at most so large; None if it is not told."""
    below, little = is_below_zero(found), is_little(found, most)
    if below or little is False:
        return False
    return None if below is None or little is None else True


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t, by the expansion of Cornish and Fisher.

    Of two degrees of freedom and of one, from a table: the expansion is off there.
    """
    if freedom < 3:
        return (12.706, 4.303)[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**k for k, term in enumerate(terms, start=1))


def bootstrap(
    values: Sequence[float],
    statistic: Callable[[np.ndarray], np.ndarray],
    seed: int = 0,
) -> Interval:
    """A statistic of the values and its 95 % percentile interval over resamples.

    `statistic` reduces the last axis of an array: every row is a resample.
    """
    data, rng = np.asarray(values, float), np.random.default_rng(seed)
    drawn = rng.integers(len(data), size=(RESAMPLES, len(data)))
    low, high = np.quantile(statistic(data[drawn]), [0.025, 0.975])
    return Interval(float(statistic(data)), float(low), float(high), None)
