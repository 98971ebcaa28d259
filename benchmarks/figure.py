"""figure.png: seconds over channels, a panel for each job and grid, as in the paper."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .cases import FIGURE, Case
from .contenders import JOBS
from .summary import seconds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = list[tuple[int, float]]
# Ours in strong colors, the paper's in black, all others in between.
STYLES = {
    "convspectra, NumPy": {"color": "#c1121f", "marker": "o", "linewidth": 2.4},
    "convspectra, torch": {"color": "#f28482", "marker": "o", "linewidth": 1.8},
    "convspectra, JAX": {"color": "#f4b6a6", "marker": "v", "linewidth": 1.8},
    "convspectra, TensorFlow": {"color": "#e8a33d", "marker": "<", "linewidth": 1.8},
    "paper, NumPy": {"color": "black", "marker": "s"},
    "paper, torch": {"color": "#1d6fb8", "marker": "^"},
    "paper, JAX": {"color": "#2a9d8f", "marker": "v"},
    "paper, TensorFlow": {"color": "#8a6d3b", "marker": "<"},
    "full matrix, NumPy": {"color": "0.55", "marker": "x"},
    "Gram iteration, torch": {"color": "#8f5fbf", "marker": "d", "linestyle": ":"},
    "power and QR, torch": {"color": "#d99a2b", "marker": "d", "linestyle": ":"},
}


def png(document: Mapping[str, Any]) -> bytes:
    """The cases of figure 1 of a run, drawn."""
    from matplotlib.figure import Figure

    figure, buffer = Figure(figsize=(12, 7.5), layout="constrained"), io.BytesIO()
    draw(document["results"], figure)
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def draw(results: Sequence[Mapping[str, Any]], figure: "Figure") -> None:
    """Draw a row of panels for each grid, and a panel for each job, on `figure`."""
    panels = panels_of(results)
    if not panels:
        return
    grids = list(dict.fromkeys(grid for grid, _ in panels))
    jobs = [job for job in JOBS if any(found == job for _, found in panels)]
    all_axes = figure.subplots(len(grids), len(jobs), squeeze=False, sharex="row")
    handles = {}
    for row, grid in zip(all_axes, grids):
        for ax, job in zip(row, jobs):
            handles |= _draw_panel(ax, f"{job}, {grid}", panels.get((grid, job), {}))
        row[0].set_ylabel("seconds")
    for ax in all_axes[-1]:
        ax.set_xlabel("channels")
    names = [name for name in STYLES if name in handles]
    shown = [handles[name] for name in names]
    figure.legend(shown, names, loc="outside lower center", ncols=4, frameon=False)


def panels_of(
    results: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str], dict[str, Line]]:
    """The lines of each panel: (channels, seconds) by contender, by (grid, job)."""
    panels: dict[tuple[str, str], dict[str, Line]] = {}
    for result in results:
        case = Case(**result["case"])
        if case.group != FIGURE:
            continue
        grid = f"{case.kernel}x{case.kernel} on {case.grid}x{case.grid}"
        panel = panels.setdefault((grid, result["job"]), {})
        for name, seconds in seconds_of(result).items():
            panel.setdefault(name, []).append((case.in_channels, seconds))
    return panels


def _draw_panel(ax: "Axes", title: str, lines: Mapping[str, Line]) -> dict[str, Any]:
    """Draw the lines, and return what the legend shows of each."""
    handles = {}
    for name, style in STYLES.items():
        if name in lines:
            (handles[name],) = ax.plot(
                *zip(*sorted(lines[name])), markersize=4, **style
            )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.set_title(title)
    ax.grid(True, which="major", color="0.9", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    return handles
