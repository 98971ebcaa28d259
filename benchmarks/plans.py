"""What a quick and a full run measure, and how often."""

from dataclasses import dataclass

from .cases import Case, figure_one, resnets, sweep


@dataclass(frozen=True, slots=True)
class Plan:
    """Cases, and the patience to have with each contender.

    Attributes
    ----------
    name : str
    cases : tuple of Case
    memory : tuple of Case
        The cases whose peak memory is measured, in a process for each contender.
    repeats, least_repeats : int
        Samples of each contender, and of one that takes long.
    budget : float
        Seconds that more than `least_repeats` samples may take.
    once_above : float
        Seconds; what takes longer is run once.
    patience : float
        Seconds; what is expected to take longer is not run, unless ratios need it.
    """

    name: str
    cases: tuple[Case, ...]
    memory: tuple[Case, ...]
    repeats: int
    least_repeats: int
    budget: float
    once_above: float
    patience: float

    def repeats_of(self, seconds: float) -> int:
        """How many samples to take of what runs for so long."""
        affordable = int(self.budget / max(seconds, 1e-9))
        return max(self.least_repeats, min(self.repeats, affordable))


_SMALL, _LARGE = figure_one(3, 16, 1024), figure_one(11, 64, 256)
_RESNETS = resnets()

QUICK = Plan(
    name="quick",
    cases=(
        *_SMALL[:5],  # up to 64 channels
        _LARGE[0],
        _LARGE[2],
        *sweep(8, 32),
        next(case for case in _RESNETS if case.kernel == 1),
    ),
    memory=_SMALL[4:5],
    repeats=3,
    least_repeats=2,
    budget=1.0,
    once_above=10.0,
    patience=10.0,
)
FULL = Plan(
    name="full",
    # The one that takes half of the time comes last.
    cases=(*_SMALL[:-1], *_LARGE, *sweep(8, 32, 64, 128), *_RESNETS, _SMALL[-1]),
    memory=(*_SMALL[4:], *_LARGE[4:]),
    repeats=21,
    least_repeats=2,
    budget=3.0,
    once_above=10.0,
    patience=150.0,
)
