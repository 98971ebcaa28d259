"""What does the paper say? Its plotted points and its numbers, each with its source."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

POINTS = Path(__file__).parent / "data" / "paper_points.json"


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of the paper, and where it stands."""

    experiment: str
    where: str
    text: str
    value: Any  # None where the paper states a direction, not a number
    unit: str


def curve(figure: str, legend: str) -> np.ndarray:
    """The plotted points of a curve, (points, 2), by its figure and legend entry."""
    return np.array(_document()["figures"][figure]["curves"][legend], dtype=float)


def curves(figure: str) -> dict[str, np.ndarray]:
    """Every curve of a figure, by legend entry."""
    legends = _document()["figures"][figure]["curves"]
    return {legend: curve(figure, legend) for legend in legends}


def claim(name: str) -> Claim:
    """A statement by its name in the data file."""
    return Claim(**_document()["claims"][name])


def _document() -> dict[str, Any]:
    return json.loads(POINTS.read_text(encoding="utf-8"))
