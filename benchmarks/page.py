"""What people read: tables, results.md, and lines on stderr."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .contenders import JOBS

Row = Mapping[str, Any]

# The keys of the rows that each table shows.
RATIOS = "case job our_seconds paper_ratio best_ratio best_other bound_ratio"
MEANS = "cases job count paper_mean paper_least best_mean best_least"
EXPONENTS = "along job contender exponent"
SHARES = "case job operations_per_second share_of_products"
TIMES = """
    contender status median least most repeats megabytes kind error against reason
"""
REAL_LAYERS = """
    layer our_seconds method gap circular power power_close svds gram gram_excess
"""
REAL_MEANS = "kind layers our_seconds widest_gap circular power power_close svds"
NETWORKS = """
    network arguments size layers named grids bounded gap widest values seconds
    processor megabytes over
"""
TRAINING = "framework kernels step pass paper paper_over_ours share error"
NOTE = """\
Times are in seconds. Ratios are times of others over the time of convspectra with NumPy
arrays: above 1 they are slower. The best other is the fastest that gives the same
answer; bounds are apart. Means are geometric. Errors are relative; docs/benchmark.md
says how each is taken."""


def say(text: str) -> None:
    """Write a line to stderr, where it does not mix with data."""
    sys.stderr.write(f"benchmarks: {text}\n")


def markdown(document: Mapping[str, Any], summary: Mapping[str, Sequence[Row]]) -> str:
    """Return results.md."""
    about = document["machine"] | {
        "complex64 matrix products": f"{document['gemm_rate'] / 1e9:.0f} GFlop/s",
        "suite": f"{document['settings']['suite']}, begun {document['date']} "
        f"at a load of {_cell(document['load'])}",
    }
    lines = [f"- {key}: {_cell(value)}" for key, value in about.items()]
    parts = ["# Benchmark of convspectra", "\n".join(lines), NOTE]
    parts += ["## Means", table(MEANS, summary["means"])]
    for job in JOBS:
        if rows := [row for row in summary["ratios"] if row["job"] == job]:
            parts += [f"## Ratios: {job}", table(RATIOS, rows)]
    parts += ["## Exponents", table(EXPONENTS, summary["exponents"])]
    parts += ["## Share of the rate of matrix products"]
    parts += [table(SHARES, summary["shares"]), "## Everything"]
    for result in document["results"]:
        rows = [_with_megabytes(entry) for entry in result["entries"]]
        parts += [f"### {result['job']}: {result['name']}", table(TIMES, rows)]
    return "\n\n".join(parts) + "\n"


def _with_megabytes(entry: Row) -> Row:
    memory = entry.get("memory")
    return {**entry, "megabytes": None if memory is None else memory / 1e6}


def table(columns: str, rows: Sequence[Row]) -> str:
    """Rows as an aligned table in Markdown: these keys of each row."""
    if not rows:
        return "No results."
    keys = columns.split()
    lines = [[_cell(row.get(key)) for key in keys] for row in rows]
    lines.insert(0, [key.replace("_", " ") for key in keys])
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])])
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:])]
    return f"| {' | '.join([first, *rest])} |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return str(value).replace("|", "/")
