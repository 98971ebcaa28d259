"""What follows from the results: ratios, their means, exponents and rates."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .cases import FIGURE, GRIDS, POINTWISE, RESNET, SWEEP_CHANNELS, Case
from .contender import LOWER, UPPER
from .contenders import OURS, PAPER

Row = dict[str, Any]
FEW = 16  # channels, below which a case counts apart


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows of plain numbers, by their keys.

    Attributes
    ----------
    ratios : list of dict
        For each job on each case, how many times the seconds of convspectra with NumPy
        arrays others take: `paper` the paper's NumPy lines, `best` the fastest other
        that gives the same answer (named by `best_name`), `bound` the fastest bound.
    means : list of dict
        Geometric mean and minimum of these over groups of cases.
    exponents : list of dict
        Slopes of log seconds, in the channels and in the number of frequencies.
    shares : list of dict
        The rate of `operations` over that of complex64 matrix products.
    """

    ratios: list[Row]
    means: list[Row]
    exponents: list[Row]
    shares: list[Row]


def summarize(document: Mapping[str, Any]) -> Summary:
    """Reduce the document of results.json to what follows from it."""
    results = document["results"]
    found = [row for result in results if (row := _ratio(result)) is not None]
    return Summary(
        ratios=found,
        means=means(found),
        exponents=exponents(results),
        shares=shares(results, document["gemm_rate"]),
    )


def geometric_mean(numbers: Iterable[float]) -> float:
    """The mean of the logarithms, taken back."""
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs))


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line nearest to points (x, y), both by their logarithms."""
    x = [math.log(point[0]) for point in points]
    y = [math.log(point[1]) for point in points]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - middle_x) ** 2 for a in x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y)) / across


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


def seconds_of(result: Mapping[str, Any]) -> dict[str, float]:
    """The median seconds of every contender that was timed."""
    entries = result["entries"]
    return {e["contender"]: e["median"] for e in entries if e["status"] == "timed"}


def _ratio(result: Mapping[str, Any]) -> Row | None:
    seconds = seconds_of(result)
    if OURS not in seconds:
        return None
    kinds = {entry["contender"]: entry["kind"] for entry in result["entries"]}
    others = [name for name in seconds if not name.startswith("convspectra")]
    bounds = [name for name in others if kinds[name] in (UPPER, LOWER)]
    rivals = [name for name in others if name not in bounds]
    # Nobody knows the best where somebody was not waited for.
    unknown = any(
        "expected" in e and kinds[e["contender"]] not in (UPPER, LOWER)
        for e in result["entries"]
    )
    best = None if unknown else min(rivals, key=seconds.__getitem__, default=None)
    bound = min((seconds[name] for name in bounds), default=None)
    ours, case = seconds[OURS], result["case"]
    return {
        "case": result["name"],
        "group": case["group"],
        "channels": max(case["into"], case["out"]),
        "job": result["job"],
        "seconds": ours,
        "paper": seconds[PAPER] / ours if PAPER in seconds else None,
        "best": seconds[best] / ours if best else None,
        "best_name": best,
        "bound": bound / ours if bound else None,
    }


def means(ratios: Sequence[Row]) -> list[Row]:
    """Geometric means and minima for each job, over figure 1 and the ResNets."""
    groups = {
        f"figure 1, {FEW} channels up": lambda r: (
            r["group"] == FIGURE and r["channels"] >= FEW
        ),
        "figure 1, 4 and 8 channels": lambda r: (
            r["group"] == FIGURE and r["channels"] < FEW
        ),
        "ResNets, 3x3 and 7x7": lambda r: r["group"] == RESNET,
        "ResNets, 1x1": lambda r: r["group"] == POINTWISE,
    }
    rows = []
    for group, belongs in groups.items():
        for job in dict.fromkeys(row["job"] for row in ratios):
            chosen = [row for row in ratios if row["job"] == job and belongs(row)]
            if not chosen:
                continue
            row: Row = {"cases": group, "job": job, "count": len(chosen)}
            for key in ("paper", "best"):
                numbers = [one[key] for one in chosen if one[key] is not None]
                row[f"{key}_mean"] = geometric_mean(numbers) if numbers else None
                row[f"{key}_least"] = min(numbers, default=None)
            rows.append(row)
    return rows


def exponents(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Slopes for the paper's NumPy lines and for convspectra, for each job and sweep.

    In the channels from 16 up, for each panel of figure 1; and in the number of
    frequencies, for 3x3 kernels with 32 channels.
    """
    rows = []
    for along, series in _series(results).items():
        for name in (PAPER, OURS):
            for job in dict.fromkeys(result["job"] for _, result in series):
                points = [
                    (x, seconds_of(result)[name])
                    for x, result in series
                    if result["job"] == job and name in seconds_of(result)
                ]
                if len(points) > 1:
                    row = {"along": along, "contender": name, "job": job}
                    rows.append(row | {"exponent": exponent(points)})
    return rows


def _series(
    results: Sequence[Mapping[str, Any]],
) -> dict[str, list[tuple[float, Mapping[str, Any]]]]:
    """Results by what grows in them, each with how much there is of it."""
    series: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for result in results:
        case = Case(**result["case"])
        k, n = case.kernel, case.grid
        if case.group == FIGURE and case.into >= FEW:
            name = f"channels, {k}x{k} on {n}x{n}"
            series.setdefault(name, []).append((case.into, result))
        swept = case.group in (FIGURE, GRIDS) and case.into == SWEEP_CHANNELS
        if swept and k == 3:
            name = f"frequencies, 3x3 with {SWEEP_CHANNELS} channels"
            series.setdefault(name, []).append((case.frequencies, result))
    return series


def shares(results: Sequence[Mapping[str, Any]], gemm_rate: float) -> list[Row]:
    """How much of the rate of matrix products convspectra reaches on figure 1."""
    rows = []
    for result in results:
        case, seconds = Case(**result["case"]), seconds_of(result)
        if case.group == FIGURE and OURS in seconds:
            rate = operations(case, result["job"]) / seconds[OURS]
            row = {"case": case.name, "job": result["job"]}
            rows.append(row | {"rate": rate, "share": rate / gemm_rate})
    return rows
