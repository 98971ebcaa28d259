"""results.md: the tables of a run, for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from .contender import JOBS
from .summary import Row, Summary

RATIOS = {
    "case": "case",
    "job": "job",
    "ours, s": "seconds",
    "paper / ours": "paper",
    "best other / ours": "best",
    "best other": "best_name",
    "bound / ours": "bound",
}
MEANS = {
    "cases": "cases",
    "job": "job",
    "count": "count",
    "paper / ours, mean": "paper_mean",
    "least": "paper_least",
    "best other / ours, mean": "best_mean",
    "least ": "best_least",
}
TRAINING = {
    "kernels": "kernels",
    "step, s": "step",
    "pass, s": "pass",
    "paper's clip, s": "paper",
    "paper / ours": "paper_over_ours",
    "share of 100 steps": "share",
    "error": "error",
}
EXPONENTS = {"along": "along", "job": "job", "contender": "contender"} | {
    "exponent": "exponent"
}
SHARES = {
    "case": "case",
    "job": "job",
    "operations per s": "rate",
    "of matrix products": "share",
}
TIMES = {
    "contender": "contender",
    "status": "status",
    "median, s": "median",
    "least": "least",
    "most": "most",
    "repeats": "repeats",
    "memory, MB": "megabytes",
    "answer": "kind",
    "error": "error",
    "checked by": "against",
    "note": "reason",
}
NOTE = """\
Ratios are seconds of others over seconds of convspectra with NumPy arrays: above 1 they
are slower. The best other is the fastest that gives the same answer; bounds are apart.
Means are geometric. Errors are relative; docs/benchmark.md says how each is taken."""


def markdown(document: Mapping[str, Any], summary: Summary) -> str:
    """Return the page of a run."""
    about = document["machine"]
    lines = [f"- {key}: {_cell(value)}" for key, value in about.items()]
    rate = f"- complex64 matrix products: {document['gemm_rate'] / 1e9:.0f} GFlop/s"
    plan = (
        f"- plan: {document['settings']['plan']}, begun {document['date']} "
        f"at a load of {_cell(document['load'])}"
    )
    parts = ["# Benchmark of convspectra", "\n".join([*lines, rate, plan]), NOTE]
    parts += ["## Means", _table(MEANS, summary.means)]
    for job in JOBS:
        rows = [row for row in summary.ratios if row["job"] == job]
        if rows:
            parts += [f"## Ratios: {job}", _table(RATIOS, rows)]
    parts += ["## Exponents", _table(EXPONENTS, summary.exponents)]
    parts += ["## Share of the rate of matrix products", _table(SHARES, summary.shares)]
    parts += ["## Everything"]
    for result in document["results"]:
        rows = [_with_megabytes(entry) for entry in result["entries"]]
        parts += [f"### {result['job']}: {result['name']}", _table(TIMES, rows)]
    return "\n\n".join(parts) + "\n"


def _with_megabytes(entry: Row) -> Row:
    memory = entry.get("memory")
    return {**entry, "megabytes": None if memory is None else memory / 1e6}


def _table(columns: Mapping[str, str], rows: Sequence[Row]) -> str:
    if not rows:
        return "Nothing to tell."
    lines = [[_cell(row.get(key)) for key in columns.values()] for row in rows]
    rule = ["---"] + ["---:"] * (len(columns) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [columns, rule, *lines])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return str(value).replace("|", "/")
