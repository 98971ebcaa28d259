"""Theorem 6: a layer's singular values are those of one small matrix per frequency.

Claims. (1) On a torus, the values of the transformed kernel are those of the layer's
full matrix, also with unequal channels, rectangular grids and rectangular kernels
(sections 2 and 4, footnote 2). (2) About half of the m n^2 values are distinct
(section 1): frequencies f and -f share theirs, unless f = -f.

Kernels are standard normal. The judge is `numpy.linalg.svd` of `dense_matrix` in
double precision. Judged are the paper's lines in NumPy, and `singular_values` in double
and in single precision. Among the cases are those of the paper's own tests. One of
these, 64 to 256 channels on 32x32, has a full matrix of 137 GB: there ours are judged
by the paper's lines, and by the sum of squares, which is the number of sites times the
kernel's own.

Where a kernel is larger than its grid, the paper's lines crop it instead of wrapping it
round. The paper excludes that case; the record shows what comes out.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import convspectra as cs

from .claims import Claim
from .figure import new_figure, save
from .options import Options
from .record import Record
from .units import run_units

NAME, SEED = "theorem", 0
MOST_ENTRIES = 2**26  # of a full matrix: half a gigabyte
ALLOWED = 100  # differences, in units of the precision times the largest value
DISTINCT = 1e-9  # values closer than this, relative to the largest, count as one


@dataclass(frozen=True, slots=True)
class Case:
    """A circular layer with a kernel of random numbers, or with the one stated."""

    out: int
    into: int
    kernel: tuple[int, ...]
    grid: tuple[int, ...]
    entries: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Channels, kernel and grid in one phrase."""
        kernel, grid = ("x".join(map(str, x)) for x in (self.kernel, self.grid))
        stated = f" {list(self.entries)}" if self.entries else ""
        return f"{self.into} to {self.out}, {kernel}{stated} on {grid}"

    @property
    def fits(self) -> bool:
        """Whether the kernel is nowhere larger than the grid."""
        return all(k <= n for k, n in zip(self.kernel, self.grid))

    @property
    def entries_of_matrix(self) -> int:
        """The number of entries of the full matrix."""
        return self.out * self.into * math.prod(self.grid) ** 2

    def weight(self) -> np.ndarray:
        """The kernel in double precision, (out, in, *kernel)."""
        shape = (self.out, self.into, *self.kernel)
        if self.entries:
            return np.array(self.entries).reshape(shape)
        return np.random.default_rng(SEED).standard_normal(shape)


PAPER_TESTS = (  # of the code that the paper publishes
    Case(1, 1, (3,), (20,), (2.0, 7.0, -1.0)),
    Case(3, 2, (3, 4), (32, 32)),
    Case(256, 64, (3, 4), (32, 32)),
)
SMALL = (
    Case(1, 1, (3, 3), (8, 8)),
    Case(4, 4, (3, 3), (8, 8)),
    Case(4, 4, (3, 3), (9, 9)),
    Case(16, 16, (3, 3), (8, 8)),
    Case(5, 2, (3, 3), (8, 8)),
    Case(3, 7, (3, 3), (8, 8)),
    Case(3, 3, (5, 3), (6, 10)),
    Case(2, 4, (2, 4), (12, 5)),
    Case(4, 4, (8, 8), (8, 8)),
    Case(3, 3, (5, 5), (3, 4)),  # larger than the grid
    *PAPER_TESTS,
)
LARGE = (
    *SMALL,
    Case(8, 8, (3, 3), (16, 16)),
    Case(16, 16, (3, 3), (16, 16)),
    Case(32, 16, (3, 5), (12, 14)),
    Case(3, 3, (11, 11), (32, 32)),
)
CASES = {"small": SMALL, "paper": LARGE}


def paper_values(weight: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
    """The paper's two lines, for any number of axes."""
    kernel = np.moveaxis(weight, (0, 1), (-2, -1))  # (*kernel, out, in)
    transforms = np.fft.fftn(kernel, grid, axes=range(len(grid)))
    return np.linalg.svd(transforms, compute_uv=False)


def judge(case: Case) -> dict[str, Any]:
    """The largest differences, in units of the precision times the largest value."""
    weight, geometry = case.weight(), cs.Geometry(grid=case.grid)
    ours = cs.singular_values(weight, geometry)
    single = cs.singular_values(weight.astype(np.float32), geometry)
    papers = paper_values(weight, case.grid)
    by_matrix = case.entries_of_matrix <= MOST_ENTRIES
    want = papers
    if by_matrix:
        want = np.linalg.svd(cs.dense_matrix(weight, geometry), compute_uv=False)
    squares = math.prod(case.grid) * float(np.sum(weight**2))
    return {
        "judge": "full matrix" if by_matrix else "the paper's lines",
        "fits": case.fits,
        "values": int(ours.size),
        "largest": float(want.max()),
        "distinct": distinct(ours),
        "ours": difference(ours, want, np.float64),
        "ours in single precision": difference(single, want, np.float32),
        "the paper's lines": difference(papers, want, np.float64),
        "sum of squares": float(np.sum(ours**2) / squares - 1),
    }


def difference(got: np.ndarray, want: np.ndarray, dtype: type) -> float:
    """Between values in order, in units of the precision times the largest of them."""
    a, b = (np.sort(x, axis=None)[::-1].astype(float) for x in (got, want))
    rank = min(a.size, b.size)  # a matrix that is not square has no more values
    unit = float(np.finfo(dtype).eps) * b[0]
    return float(np.abs(a[:rank] - b[:rank]).max() / unit)


def distinct(values: np.ndarray) -> int:
    """How many values differ by more than rounding."""
    flat = np.sort(values, axis=None)
    return 1 + int(np.sum(np.diff(flat) > DISTINCT * flat[-1]))


def pairs(case: Case) -> int:
    """How many values are distinct if conjugate frequencies share theirs."""
    alone = math.prod(1 if n % 2 else 2 for n in case.grid)  # frequencies f = -f
    return min(case.out, case.into) * (math.prod(case.grid) + alone) // 2


def run(options: Options) -> list[Claim]:
    """Judge every case, and say whether the claims hold."""
    cases = {case.name: case for case in CASES[options.scale]}
    settings = {"scale": options.scale, "seed": SEED, "allowed": ALLOWED}
    record = Record(options.folder(NAME), settings)
    run_units(options, record, cases, judge)
    _draw(record.results, options)
    return record.conclude(claims_on(cases, record.results))


def claims_on(cases: dict[str, Case], results: dict[str, Any]) -> list[Claim]:
    """The verdicts on the cases whose results are there."""
    found_on = [results[name] for name in cases]
    by_matrix = [x for x in found_on if x["judge"] == "full matrix"]
    wrapped = [x for x in found_on if not x["fits"]]
    squares = [abs(x["sum of squares"]) for x in found_on if x["fits"]]
    published = "agree in unit tests"
    claims = []
    for who, judged, note in (
        ("the paper's lines", [x for x in by_matrix if x["fits"]], _beyond(wrapped)),
        ("ours", found_on, ""),
        ("ours in single precision", found_on, ""),
    ):
        worst = max(x[who] for x in judged)
        found = f"at most {worst:.2g} units of rounding, {len(judged)} cases"
        statement = f"values are those of the full matrix: {who}"
        claims.append(Claim(statement, published, found, worst <= ALLOWED, note))
    random = [name for name, case in cases.items() if not case.entries]
    right = [results[name]["distinct"] == pairs(cases[name]) for name in random]
    shares = [results[name]["distinct"] / results[name]["values"] for name in random]
    found = f"{min(shares):.1%} to {max(shares):.1%}: as pairs predict in {sum(right)}"
    found += f" of {len(right)} cases"
    claims.append(
        Claim("half of the values are distinct", "m n^2 / 2", found, all(right))
    )
    worst = max(squares)
    return [
        *claims,
        Claim(
            "squares of the values add up to those of the full matrix's entries",
            "follows",
            f"to a relative {worst:.1g}",
            worst <= ALLOWED * float(np.finfo(float).eps),
            f"the full matrix judges {len(by_matrix)} of {len(found_on)} cases, the "
            "paper's lines the one that is too large for it",
        ),
    ]


def _beyond(wrapped: list[dict[str, Any]]) -> str:
    if not wrapped:
        return ""
    worst = max(x["the paper's lines"] for x in wrapped) * float(np.finfo(float).eps)
    return (
        f"a kernel larger than its grid is cropped, and values are off by {worst:.0%} "
        "of the largest; the paper excludes that case"
    )


def _draw(results: dict[str, Any], options: Options) -> None:
    figure, (ax,) = new_figure()
    names = list(results)
    for who, marker in (
        ("the paper's lines", "s"),
        ("ours", "o"),
        ("ours in single precision", "x"),
    ):
        points = [
            (max(results[name][who], 1e-2), row)
            for row, name in enumerate(names)
            if results[name]["judge"] != who
        ]
        ax.plot(*zip(*points), marker, label=who, fillstyle="none")
    ax.axvline(ALLOWED, color="0.4", linestyle="--", linewidth=1, label="allowed")
    ax.set_yticks(range(len(names)), names, fontsize="x-small")
    ax.set_xscale("log")
    ax.set_xlabel("largest difference, in units of rounding")
    ax.legend(fontsize="x-small", frameon=False)
    save(figure, options.folder(NAME), NAME)
