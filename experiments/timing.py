"""Figure 1: how long do all singular values of a layer take, by which method?

Claims. (1) The paper's lines in NumPy are faster than an SVD of the full matrix by
orders of magnitude: 0.19 s to 1023 s for 3x3 kernels with 64 channels on 16x16. Here,
by at least a hundred. (2) "For small
tensors, the NumPy code was faster than TensorFlow": with 4 and with 8 channels.
(3) "For larger tensors, the TensorFlow code was able to exploit the parallelism in the
algorithm and run much faster on a GPU", which takes a GPU to try. The paper's right
panel, 11x11 on 64x64, has TensorFlow ahead at every size, against (2).

Kernels are standard normal, in single precision. The benchmark's own functions check
every answer before it is timed, and time the contenders in turn. Ours is timed beside
them. Both scales are the same: an hour of two cores, and half of it for the full matrix
with 64 channels. Keep this for a quiet machine: the record has its load.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.cases import FIGURE, SEED, Case, Suite, Task
from benchmarks.contenders import OURS, PAPER, Contender, contender
from benchmarks.machine import load
from benchmarks.measuring import FAILED, TIMED, measure

from .claims import Claim
from .figure import draw_paper, new_figure, paper_curves, save
from .options import Options
from .record import Record
from .talk import say

NAME = "timing"
MATRIX, TENSORFLOW = "full matrix, NumPy", "paper, TensorFlow"
CURVES = {MATRIX: "full matrix", PAPER: "NumPy", TENSORFLOW: "TensorFlow"}
COLORS = {"full matrix": "0.4", "NumPy": "#2166ac", "TensorFlow": "#1b7837"}
PANELS = {"timing 3x3": (3, 16), "timing 11x11": (11, 64)}
LEFT = (4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
RIGHT = (4, 8, 16, 32, 64, 128, 192, 256)
ORDERS = 100.0  # how much faster "orders of magnitude" is, at least
FEW = (4, 8)  # channels of "small tensors"


MOST = 64  # channels of the full matrix, in the left panel

SUITE = Suite(
    name="timing", cases=(), memory=(), repeats=7, budget=3.0, patience=math.inf
)


@dataclass(frozen=True, slots=True)
class Drawn(Case):
    """A case of the benchmark with the paper's kernels, which are not scaled down."""

    def weight(self) -> np.ndarray:
        """N(0, 1) in float32, the same numbers every time."""
        shape = (self.out_channels, self.in_channels, self.kernel, self.kernel)
        return np.random.default_rng(SEED).standard_normal(shape, dtype=np.float32)


def run(options: Options) -> list[Claim]:
    """Time every size that is not in the record yet, and judge the claims."""
    others, on_gpu = tensorflow()
    who = contenders(others)
    names = [one.name for one in who]
    settings = {"seed": SEED, "contenders": names, "gpu": on_gpu}
    record = Record(options.folder(NAME), settings)
    for case in cases():
        if case.name not in record.results:
            say(case.name)
            busy = load()
            entries = measure(case, "values", who, SUITE, {}, {})
            found = {entry["contender"]: entry for entry in entries}
            record.keep(case.name, {"load": busy, "entries": found})
    seconds = {
        panel: table(cases(), record.results, kernel)
        for panel, (kernel, _) in PANELS.items()
    }
    _draw(seconds, options)
    claims = claims_on(seconds, record.results, on_gpu=on_gpu)
    return record.conclude(claims, summary(seconds))


def cases() -> list[Drawn]:
    """Both panels, from few channels to many."""
    return [
        Drawn(FIGURE, channels, channels, kernel, grid)
        for (kernel, grid), panel in zip(PANELS.values(), (LEFT, RIGHT))
        for channels in panel
    ]


def tensorflow() -> tuple[tuple[Contender, ...], bool]:
    """The paper's lines in TensorFlow, none if it is not installed; is there a GPU?"""
    try:
        found = contender(TENSORFLOW)
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        say("TensorFlow is not installed: its lines are not in this run.")
        return (), False
    import tensorflow as tf

    return (found,), bool(tf.config.list_physical_devices("GPU"))


def contenders(others: tuple[Contender, ...]) -> list[Contender]:
    """The full matrix up to its size, the paper's lines, and ours."""
    jobs = {"values": matrix_values}
    matrix = replace(contender(MATRIX), jobs=jobs, refuses=_too_large)
    return [matrix, contender(PAPER), *others, contender(OURS)]


def _too_large(case: Case) -> str:
    is_left = case.kernel == PANELS["timing 3x3"][0]
    return "" if is_left and case.in_channels <= MOST else "it would take too long"


def matrix_values(weight: np.ndarray, task: Task) -> np.ndarray:
    """Write the layer as one matrix of any size, and take its singular values."""
    out, channels, *kernel = weight.shape
    n = task.case.grid
    matrix = np.zeros((out, n, n, channels, n, n), weight.dtype)
    i, j = np.indices((n, n))
    for a, b in np.ndindex(*kernel):
        matrix[:, i, j, :, (i + a) % n, (j + b) % n] += weight[:, :, a, b]
    return np.linalg.svd(matrix.reshape(out * n * n, -1), compute_uv=False)


def table(
    cases: list[Drawn], results: Mapping[str, Any], kernel: int
) -> dict[str, dict[int, float]]:
    """Median seconds of a panel, by contender and number of channels."""
    found: dict[str, dict[int, float]] = {}
    for case in cases:
        for who, entry in results[case.name]["entries"].items():
            if case.kernel == kernel and entry["status"] == TIMED:
                found.setdefault(who, {})[case.in_channels] = entry["median"]
    return found


def claims_on(
    seconds: Mapping[str, dict[str, dict[int, float]]],
    results: Mapping[str, Any],
    *,
    on_gpu: bool,
) -> list[Claim]:
    """The verdicts, from the seconds of both panels."""
    left, right = seconds["timing 3x3"], seconds["timing 11x11"]
    wrong = [
        f"{who}, {name}: {entry['reason']}"
        for name, result in results.items()
        for who, entry in result["entries"].items()
        if entry["status"] == FAILED
    ]
    most = max(left[MATRIX])
    ratio = left[MATRIX][most] / left[PAPER][most]
    published = paper_ratios("timing 3x3", "full matrix", "NumPy")
    claims = [
        Claim(
            f"NumPy is faster than the full matrix, {most} channels",
            f"{published[most]:.0f} times ({published[64]:.0f} with 64)",
            f"{ratio:.0f} times",
            ratio >= ORDERS,
            f"not timed: {'; '.join(wrong)}"
            if wrong
            else "every answer passed its check",
        )
    ]
    if not left.get(TENSORFLOW, {}).keys() >= set(FEW) or TENSORFLOW not in right:
        statement = "NumPy or TensorFlow is faster, by the size of the tensor"
        note = "TensorFlow was not timed; `pip install -e '.[keras]'` brings it"
        return [*claims, Claim(statement, "figure 1", "-", None, note)]
    here = {c: left[TENSORFLOW][c] / left[PAPER][c] for c in sorted(left[TENSORFLOW])}
    there = paper_ratios("timing 3x3", "TensorFlow", "NumPy")
    claims.append(
        Claim(
            "for small tensors NumPy is faster than TensorFlow",
            ", ".join(f"{there[c]:.1f} times with {c} channels" for c in FEW),
            ", ".join(f"{here[c]:.1f} times" for c in FEW),
            all(here[c] > 1 for c in FEW),
        )
    )
    device = "GPU" if on_gpu else "CPU"
    for panel, found in (("timing 3x3", left), ("timing 11x11", right)):
        most = max(found[TENSORFLOW])
        ahead = {c: found[PAPER][c] / s for c, s in found[TENSORFLOW].items()}
        published = paper_ratios(panel, "NumPy", "TensorFlow")
        claims.append(
            Claim(
                f"TensorFlow is faster for large tensors, {panel.split()[1]}",
                f"{published[most]:.1f} times with {most} channels, on a GPU",
                f"{ahead[most]:.1f} times, on a {device}; ahead at "
                f"{sum(x > 1 for x in ahead.values())} of {len(ahead)} sizes",
                ahead[most] > 1 if on_gpu else None,
                "" if on_gpu else "there is no GPU here",
            )
        )
    return claims


def paper_ratios(panel: str, slow: str, fast: str) -> dict[int, float]:
    """The paper's seconds of one curve over those of another, by channels."""
    curves = paper_curves(panel)
    below = dict(curves[fast])
    return {int(c): s / below[c] for c, s in curves[slow]}


def summary(seconds: Mapping[str, dict[str, dict[int, float]]]) -> dict[str, Any]:
    """Seconds of the others over ours, by panel and channels."""
    return {
        panel: {
            who: {str(c): s / found[OURS][c] for c, s in of.items()}
            for who, of in found.items()
            if who != OURS
        }
        for panel, found in seconds.items()
    }


def _draw(seconds: Mapping[str, dict[str, dict[int, float]]], options: Options) -> None:
    figure, panels = new_figure(columns=2)
    for ax, (panel, found) in zip(panels, seconds.items()):
        draw_paper(ax, panel, COLORS)
        for who, of in found.items():
            color = COLORS.get(CURVES.get(who, ""), "#b2182b")
            ax.plot(list(of), list(of.values()), "o-", color=color, ms=3, label=who)
        ax.set(xscale="log", yscale="log", xlabel="channels", ylabel="seconds")
        kernel, grid = PANELS[panel]
        ax.set_title(f"{kernel}x{kernel} on {grid}x{grid}; broad and pale: the paper's")
        ax.legend(frameon=False, fontsize="x-small")
    save(figure, options.folder(NAME), NAME)
