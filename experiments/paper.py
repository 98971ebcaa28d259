"""What does the paper say in words and numbers, and where?"""

import json
from dataclasses import dataclass
from typing import Any

from .figure import POINTS


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of the paper, and where it stands."""

    experiment: str
    where: str
    text: str
    value: Any  # None where the paper states a direction, not a number
    unit: str


def published(name: str) -> Any:
    """The number of a statement."""
    return statements()[name].value


def statements() -> dict[str, Statement]:
    """Every statement of the paper that an experiment tries, by name."""
    claims = json.loads(POINTS.read_text(encoding="utf-8"))["claims"]
    return {name: Statement(**claim) for name, claim in claims.items()}
