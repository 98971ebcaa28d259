"""Figures as PNG and SVG, with the paper's own curves drawn underneath."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .processes import is_first

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = Path(__file__).parent / "data" / "paper_points.json"
PAPER: dict[str, Any] = {"linewidth": 5, "alpha": 0.22, "zorder": 1}


def paper_curves(figure: str) -> dict[str, list[tuple[float, float]]]:
    """The points that the paper plots in a figure, by curve.

    The file is `{"source": ..., "figures": {figure: {curve: [[x, y], ...]}}}`, with the
    figures "timing 3x3", "timing 11x11" (curves "full matrix", "NumPy", "TensorFlow"),
    "cifar10 loss", "cifar10 error" and "cifar10 error over seconds" (curves "none",
    "0.5", "1.0").
    """
    document = json.loads(POINTS.read_text(encoding="utf-8"))
    curves = document["figures"][figure]
    return {name: [(x, y) for x, y in points] for name, points in curves.items()}


def draw_paper(
    ax: "Axes", figure: str, colors: dict[str, str], stretch: float = 1.0
) -> None:
    """Draw the paper's curves of a figure on `ax`: broad, pale, below all else.

    Their x is multiplied by `stretch`: a small run has fewer epochs.
    """
    for name, points in paper_curves(figure).items():
        x, y = zip(*points)
        label = f"published, {name}"
        ax.plot([stretch * v for v in x], y, color=colors[name], label=label, **PAPER)


def new_figure(columns: int = 1, rows: int = 1) -> tuple["Figure", list["Axes"]]:
    """A figure and its panels, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6 * columns, 4.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for ax in panels:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="0.92", linewidth=0.8)
    return figure, list(figure.axes)


def save(figure: "Figure", folder: Path, name: str) -> None:
    """Write NAME.png and NAME.svg into the folder."""
    if not is_first():  # of the processes of a torchrun
        return
    import matplotlib as mpl

    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=150)
    # No date, and the same identifiers every time: the same numbers, the same file.
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
