"""What follows from the results: ratios, their means, exponents and rates."""

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import geometric_mean, linear_regression
from typing import Any

from .cases import FIGURE, GRIDS, POINTWISE, RESNET, SWEEP_CHANNELS, Case
from .contenders import BOUNDS, OURS, PAPER

Row = dict[str, Any]
Result = Mapping[str, Any]
FEW = 16  # channels; cases with fewer have means of their own

MEANS_OVER = {  # the group of a case, and whether it has few channels
    (FIGURE, False): f"figure 1, {FEW} channels up",
    (FIGURE, True): "figure 1, 4 and 8 channels",
    (RESNET, False): "ResNets, 3x3 and 7x7",
    (POINTWISE, False): "ResNets, 1x1",
}


def summarize(document: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Reduce the document of results.json to what follows from it.

    Returns
    -------
    ratios
        For each job on each case, how many times the seconds of convspectra with NumPy
        arrays others take: `paper_ratio` for the paper's NumPy lines, `best_ratio` for
        `best_other`, the fastest that gives the same answer, `bound_ratio` for the
        fastest bound.
    means
        Geometric mean and minimum of these over groups of cases.
    exponents
        Slopes of log seconds, in the channels and in the number of frequencies.
    shares
        The rate of `operations` over that of complex64 matrix products, on figure 1.
    """
    results = document["results"]
    ratios = [_ratios(result) for result in results if OURS in seconds_of(result)]
    return {
        "ratios": ratios,
        "means": _means(ratios),
        "exponents": _exponents(results),
        "shares": _shares(results, document["gemm_rate"]),
    }


def seconds_of(result: Result) -> dict[str, float]:
    """The median seconds of every contender that was timed."""
    entries = result["entries"]
    return {e["contender"]: e["median"] for e in entries if e["status"] == "timed"}


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the least squares line through points, in logarithms."""
    x, y = zip(*((math.log(x), math.log(y)) for x, y in points))
    return linear_regression(x, y).slope


def operations(case: Case, job: str) -> float:
    """Real operations that a job is counted as, the same however it is done.

    Per frequency, on half of them because the rest are conjugate, for a matrix whose
    sides are m >= n; complex arithmetic counts as 4 times the real one. Values: to
    bidiagonal form, 4 (4 m n^2 - 4/3 n^3). Norm: a Gram matrix and its Cholesky factor,
    4 (m n^2 + n^3 / 3). Clip: a Gram matrix, its eigenvectors, and two products,
    4 (3 m n^2 + 10 n^3).
    """
    n, m = sorted(case.matrix)
    each = {
        "values": 4 * m * n**2 - 4 / 3 * n**3,
        "norm": m * n**2 + n**3 / 3,
        "clip": 3 * m * n**2 + 10 * n**3,
    }[job]
    return 4 * each * math.ceil(case.frequencies / 2)


def _ratios(result: Result) -> Row:
    case, seconds = Case(**result["case"]), seconds_of(result)
    others = [e for e in result["entries"] if not e["contender"].startswith("convsp")]
    rivals = {e["contender"]: e for e in others if e["kind"] not in BOUNDS}
    bounds = [e["median"] for e in others if e["kind"] in BOUNDS and "median" in e]
    # If a rival was not waited for, the best of them is unknown.
    waited = not any("expected" in entry for entry in rivals.values())
    timed = [name for name in rivals if name in seconds]
    best = min(timed, key=seconds.__getitem__, default=None) if waited else None
    ours = seconds[OURS]
    return {
        "case": case.name,
        "group": case.group,
        "channels": max(case.in_channels, case.out_channels),
        "job": result["job"],
        "our_seconds": ours,
        "paper_ratio": seconds[PAPER] / ours if PAPER in seconds else None,
        "best_ratio": seconds[best] / ours if best else None,
        "best_other": best,
        "bound_ratio": min(bounds) / ours if bounds else None,
    }


def _means(ratios: Sequence[Row]) -> list[Row]:
    """Geometric means and minima for each group and job."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for cases, row in itertools.product(MEANS_OVER, ratios):
        if (row["group"], row["channels"] < FEW) == cases:
            groups.setdefault((MEANS_OVER[cases], row["job"]), []).append(row)
    means = []
    for (cases, job), rows in groups.items():
        mean: Row = {"cases": cases, "job": job, "count": len(rows)}
        for key in ("paper", "best"):
            found = [r for row in rows if (r := row[f"{key}_ratio"]) is not None]
            mean[f"{key}_mean"] = geometric_mean(found) if found else None
            mean[f"{key}_least"] = min(found, default=None)
        means.append(mean)
    return means


def _exponents(results: Sequence[Result]) -> list[Row]:
    """Slopes for the paper's NumPy lines and for convspectra, for each sweep and job.

    In the channels from 16 up, for each panel of figure 1; and in the number of
    frequencies, for 3x3 kernels with 32 channels.
    """
    series: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for result in results:
        case, seconds = Case(**result["case"]), seconds_of(result)
        k, n, channels = case.kernel, case.grid, case.in_channels
        sizes = {}
        if case.group == FIGURE and channels >= FEW:
            sizes[f"channels, {k}x{k} on {n}x{n}"] = channels
        if case.group in (FIGURE, GRIDS) and (channels, k) == (SWEEP_CHANNELS, 3):
            sizes[f"frequencies, 3x3 with {channels} channels"] = case.frequencies
        for along, size in sizes.items():
            for name in {PAPER, OURS} & set(seconds):
                points = series.setdefault((along, name, result["job"]), [])
                points.append((size, seconds[name]))
    return [
        {"along": along, "contender": name, "job": job, "exponent": exponent(points)}
        for (along, name, job), points in sorted(series.items())
        if len(points) > 1
    ]


def _shares(results: Sequence[Result], gemm_rate: float) -> list[Row]:
    """Which part of the rate of matrix products convspectra reaches on figure 1."""
    rows = []
    for result in results:
        case, seconds = Case(**result["case"]), seconds_of(result)
        if case.group == FIGURE and OURS in seconds:
            rate = operations(case, result["job"]) / seconds[OURS]
            row = {"case": case.name, "job": result["job"]}
            row |= {"operations_per_second": rate}
            rows.append(row | {"share_of_products": rate / gemm_rate})
    return rows
