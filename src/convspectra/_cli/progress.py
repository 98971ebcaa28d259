"""What is being worked on, and how long will the rest take? Said on stderr."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from .._base import require
from .._checkpoint.select import StoredLayer
from .._layer.geometry import per_axis
from .._text import cell
from .render import say

T = TypeVar("T")
PATIENCE = 1.0  # seconds of work before anything is said
INTERVAL = 10.0  # seconds between lines where stderr is no terminal


class Progress:
    """A bar on a terminal with rich; elsewhere a line every ten seconds.

    `begin` says what is being done, `of` goes through items of known costs. Nothing is
    said of work that is done within a second.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.doing = ""
        self.total = self.done = self.ahead = 0.0
        self.start = time.monotonic()

    def begin(self, doing: str, cost: float = 0.0) -> None:
        """Say what is being done from now on, and its part in the total cost."""
        self.doing, self.ahead = doing, cost

    def of(
        self,
        items: Sequence[T],
        name: Callable[[T], str],
        cost: Callable[[T], float] = lambda _: 1.0,
    ) -> Iterator[T]:
        """Yield the items, and say which one is being worked on."""
        costs = [cost(item) for item in items]
        self.total, self.done, self.start = sum(costs), 0.0, time.monotonic()
        for i, (item, each) in enumerate(zip(items, costs), 1):
            self.begin(f"{i} of {len(items)}, {cell(name(item))}", each)
            yield item
            self.done, self.ahead = self.done + each, 0.0

    def count(self, total: int) -> Callable[[], None]:
        """Return what says that one more of so many files is done."""
        self.total = float(total)
        self.begin(f"0 of {total} files")

        def advance() -> None:
            self.done += 1
            self.begin(f"{self.done:.0f} of {total} files")

        return advance

    def line(self) -> str:
        """What is being done, and the time left if that can be told."""
        seconds = time.monotonic() - self.start
        left = ""
        # The item at hand is taken to be half done.
        behind = self.done + self.ahead / 2
        if self.done and seconds > PATIENCE:
            rest = seconds * (self.total - behind) / behind
            left = f", about {_duration(rest)} left"
        return f"{self.label}: {self.doing}{left}"


@contextmanager
def progress(label: str, doing: str = "starting") -> Iterator[Progress]:
    """Say on stderr what is going on, as long as it goes on."""
    found = Progress(label)
    found.begin(doing)
    rich = _rich_progress() if sys.stderr.isatty() else None
    if rich is not None:
        with _bar(rich, found):
            yield found
        return
    ended = threading.Event()

    def talk() -> None:
        pause = PATIENCE
        while not ended.wait(pause):
            say(found.line())
            pause = INTERVAL

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


@contextmanager
def _bar(rich: Any, found: Progress) -> Iterator[None]:
    console = require("rich.console", extra="cli").Console(stderr=True)
    escape = require("rich.markup", extra="cli").escape

    class Column(rich.ProgressColumn):
        """The line that is said elsewhere, asked for at each refresh."""

        def render(self, task: Any) -> str:
            task.completed = found.done
            task.total = found.total or None
            return escape(found.line())

    columns = (Column(), rich.BarColumn(), rich.SpinnerColumn())
    bar = rich.Progress(*columns, console=console, transient=True)
    bar.add_task(found.label, total=None)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def name_of(layer: StoredLayer) -> str:
    """What a layer is called."""
    return layer.name


def work_of(layer: StoredLayer) -> float:
    """About how much work a layer is, beside others."""
    shape, grid = layer.kernel.shape, layer.geometry.grid
    short, long = sorted(shape[:2])
    sites = 1000 if grid is None else math.prod(per_axis(grid, len(shape) - 2))
    return 1e7 + sites * math.prod(shape[2:]) * short * (short + 30.0) * long


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{round(whole / 60)} min"


def _rich_progress() -> Any:
    """rich's progress bars, None where it is not installed: lines do as well."""
    try:
        return require("rich.progress", extra="cli")
    except ModuleNotFoundError:
        return None
