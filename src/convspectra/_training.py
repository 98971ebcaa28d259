"""What do the training sides of all frameworks say and ask in the same way?"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

from ._base import positive
from ._layer.layer import Layer
from ._text import Upper, aligned, cell

Norm = float | Callable[[], float]
Log = Callable[[str, float, int], Any]
Use = TypeVar("Use")  # of a kernel, by a framework
Bounds = float | Mapping[str, float | None]
# Seconds before a first pass says how far it is, and between two such lines.
PATIENCE, INTERVAL = 2.0, 10.0


@dataclass(frozen=True, slots=True, eq=False)
class FoundLayers(Sequence[Layer], Generic[Use]):
    """The layers of a model, as a sequence, with what each framework calls them."""

    found: tuple[Layer, ...]
    skipped: dict[str, str]
    uses: tuple[Use, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.found)

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Layer, ...]: ...
    def __getitem__(self, index: int | slice) -> Layer | tuple[Layer, ...]:
        return self.found[index]


class Change:
    """The certified upper bounds on one layer's norm before and after a pass.

    With the method "clip" they are computed on first access, with a relative gap of
    0.01: a clip takes less time than its norms. In training, so is that before a
    projection, to the last digit. In PyTorch, if a kernel has hardly
    moved since its norm was computed, the bound may be 5 % too high.

    Attributes
    ----------
    name : str
    before, after : float
    max_norm : float
    """

    name: str
    max_norm: float

    def __init__(self, name: str, before: Norm, after: Norm, max_norm: float) -> None:
        self.name, self.max_norm = name, max_norm
        self._before, self._after = before, after

    @cached_property
    def before(self) -> float:
        return self._before() if callable(self._before) else self._before

    @cached_property
    def after(self) -> float:
        return self._after() if callable(self._after) else self._after

    def compute(self) -> None:
        """Compute the norms now."""
        _ = self.before, self.after

    def __repr__(self) -> str:
        return f"Change({self.name!r}, {self.before}, {self.after}, {self.max_norm})"


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass did to the layers of a model; `print` shows it as a table.

    Attributes
    ----------
    changes : tuple of Change
        One for each kernel, including those that already satisfied their bound.
    skipped : dict of str to str
        The names of layers that were left unchanged, and the reasons.
    seconds : float
    """

    changes: tuple[Change, ...]
    skipped: dict[str, str]
    seconds: float

    def __str__(self) -> str:
        rows = [
            [c.name, cell(Upper(c.before)), cell(Upper(c.after)), str(c.max_norm)]
            for c in self.changes
        ]
        table = aligned(["layer", "norm before", "after", "bound"], rows)
        notes = [f"{name}: left unchanged, {why}" for name, why in self.skipped.items()]
        return "\n".join([table, *notes])


def log_pass(done: Pass, log: Log, share: float, step: int) -> None:
    """Send the norms of a pass, and the share of the time, to a user's logger."""
    for change in done.changes:
        log(f"norm/{change.name}", change.after, step)
        log(f"norm_before/{change.name}", change.before, step)
    log("spectral_clip/share_of_time", share, step)


def progress_of(count: int) -> Callable[[], None]:
    """Return what is called after each of so many layers: it says so on stderr."""
    start = time.monotonic()
    done, due = 0, start + PATIENCE

    def advance() -> None:
        nonlocal done, due
        done, now = done + 1, time.monotonic()
        if now >= due and done < count:
            due = now + INTERVAL
            sys.stderr.write(
                f"SpectralClip: the first pass has bounded {done} of {count} layers "
                f"after {now - start:.0f} s\n"
            )

    return advance


def check_bounds(max_norm: Bounds) -> Mapping[str, float | None]:
    """The bounds by name patterns; one number is for all names."""
    bounds = max_norm if isinstance(max_norm, Mapping) else {"*": max_norm}
    for pattern in bounds:
        if not isinstance(pattern, str):
            raise TypeError(f"Patterns of `max_norm` must be strings, got {pattern!r}.")
    return {
        pattern: None if bound is None else positive("max_norm", bound)
        for pattern, bound in bounds.items()
    }


def bounds_of(
    names: Sequence[str],
    max_norm: Bounds,
    skipped: Mapping[str, str],
    *,
    dense: str,
    left_out: Sequence[bool],
) -> list[float | None]:
    """The bound of each name: that of the first pattern that it matches, if any.

    Errors say of the layers that are `skipped` why they are; `dense` is what the
    framework calls its layers without sites. Whether `linear=False` leaves a name out,
    being such a layer, is `left_out`: an error if no others are to be bounded.
    """
    bounds = check_bounds(max_norm)
    reasons = "".join(f" {name}: {why}." for name, why in skipped.items())
    if not names:
        raise ValueError(
            f"The model must have convolutions or {dense} layers, but it has none."
            + reasons
        )
    for pattern in bounds:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"Every pattern of `max_norm` must match a layer, but {pattern!r} "
                f"matches none of {', '.join(dict.fromkeys(names))}." + reasons
            )
    found = [
        next((b for pattern, b in bounds.items() if fnmatchcase(name, pattern)), None)
        for name in names
    ]
    of_bounded = [out for bound, out in zip(found, left_out) if bound is not None]
    if of_bounded and all(of_bounded):
        raise ValueError(
            f"There must be layers to bound, but there are only {dense} layers, and "
            "`linear` is False. Pass `linear=True` to bound these." + reasons
        )
    return found
