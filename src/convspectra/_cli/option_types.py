"""From the text of an option to its value, for argparse."""

import argparse
import math
from typing import Any

from .._base import positive


def sizes(text: str) -> int | tuple[int, ...]:
    """32 as a number for every axis, 32x16 as a tuple."""
    try:
        found = [int(part) for part in text.split("x")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a whole number, or one per axis like 32x16, got {text!r}"
        ) from None
    return tuple(found) if len(found) > 1 else found[0]


def all_sizes(text: str) -> tuple[int, ...]:
    """As `sizes`, always as a tuple."""
    found = sizes(text)
    return found if isinstance(found, tuple) else (found,)


def count(text: str) -> int:
    """A whole number that is not below 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"must be a whole number, at least 1, got {text!r}"
        )
    return int(text)


def shard(text: str) -> tuple[int, int]:
    """3/16 as a pair, the first within the second."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 0 < int(number) <= int(count)):
        raise argparse.ArgumentTypeError(
            f"must be like 3/16, the third of sixteen, got {text!r}"
        )
    return int(number), int(count)


def sizes_or_none(text: str) -> int | tuple[int, ...] | None:
    """As `sizes`, and "none" for every size."""
    return None if text == "none" else sizes(text)


def padding(text: str) -> Any:
    """As `Geometry` takes it: a word, a number, or a pair for every axis."""
    if text in ("same", "valid"):
        return text
    try:
        sides = [[int(n) for n in part.split(":")] for part in text.split("x")]
    except ValueError:
        sides = [[]]
    if any(len(pair) not in (1, 2) for pair in sides):
        raise argparse.ArgumentTypeError(
            "must be same, valid, a number, one per axis like 1x2, or before:after on "
            f"each axis like 0:1x0:1, got {text!r}"
        )
    if len(sides) == 1 and len(sides[0]) == 1:
        return sides[0][0]
    return tuple((pair[0], pair[-1]) for pair in sides)


def seconds(text: str) -> float:
    """A positive number of seconds."""
    try:
        return positive("--budget", float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a positive number of seconds, got {text!r}"
        ) from None


def finite_number(text: str) -> float:
    """A finite number to compare norms with."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text!r}")
    return found
