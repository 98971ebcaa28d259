"""How do plain text and tables show numbers, names and errors?"""

import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

DIGITS = 4  # significant ones of a number
WEIGHTS = ("weight", "kernel")  # last parts of names that belong to the part before


class Upper(float):
    """An upper bound: people see it rounded up."""


class Lower(float):
    """A lower bound: people see it rounded down."""


def number(value: float) -> str:
    """Return four significant digits of a number: the nearest, but for bounds.

    Of an upper bound they stand for a number that is not below it, of a lower bound for
    one that is not above it.
    """
    near = f"{value:.{DIGITS}g}"
    if isinstance(value, Upper) and float(near) < value:
        return _rounded(value, ROUND_CEILING)
    if isinstance(value, Lower) and float(near) > value:
        return _rounded(value, ROUND_FLOOR)
    return near


def _rounded(value: float, way: str) -> str:
    exact = Context(DIGITS, way).create_decimal_from_float(float(value))
    return f"{float(exact):.{DIGITS}g}"


def cell(value: Any) -> str:
    """Return a value as a table shows it: `number` for floats, sizes joined by x."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (tuple, list)):
        return "x".join(map(str, value))
    text = str(value)
    # Names come from files: no control characters on a terminal.
    return text if text.isprintable() else ascii(text)


def sentence_of(error: Exception) -> str:
    """What an error says, without the number and the path of one from the system."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    return str(error) or type(error).__name__


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as plain text: first column to the left, others to the right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if i else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def cells(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
    """The cells of rows, under the headings of `columns`."""
    return [[cell(row[key]) for key in columns.values()] for row in rows]


def tree(lines: Sequence[list[str]]) -> list[list[str]]:
    """Lines of cells that begin with dotted names, as a tree by module.

    Where two lines or more share the beginning of their names, a line of its own says
    it, and theirs are indented below. Each module comes once, where its first line was.
    """
    return _branches([(_parts(line[0]), line[1:]) for line in lines], "")


def _parts(name: str) -> list[str]:
    """The parts of a name, each with the dot or slash after it."""
    parts = re.split(r"(?<=[./])", name)
    if len(parts) > 1 and parts[-1].partition(":")[0] in WEIGHTS:
        parts[-2:] = ["".join(parts[-2:])]
    return parts


def _branches(named: list[tuple[list[str], list[str]]], indent: str) -> list[list[str]]:
    found: list[list[str]] = []
    by_module: dict[str, list[tuple[list[str], list[str]]]] = {}
    for parts, rest in named:
        by_module.setdefault(parts[0], []).append((parts, rest))
    for alike in by_module.values():
        shared = _shared([parts for parts, _ in alike])
        if len(alike) == 1 or not shared:
            for parts, rest in alike:
                found.append([indent + "".join(parts), *rest])
            continue
        module = "".join(alike[0][0][:shared]).rstrip("./")
        found.append([indent + module, *[""] * len(alike[0][1])])
        below = [(parts[shared:], rest) for parts, rest in alike]
        found.extend(_branches(below, indent + "  "))
    return found


def _shared(names: list[list[str]]) -> int:
    """How many parts all names begin with, so that each has one left."""
    count = 0
    while all(len(name) > count + 1 for name in names) and (
        len({name[count] for name in names}) == 1
    ):
        count += 1
    return count
