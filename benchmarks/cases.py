"""Which layers are measured, and how often each."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

import convspectra as cs

SEED = 0
FIGURE, GRIDS, RESNET, POINTWISE = "figure 1", "grids", "ResNet", "ResNet 1x1"
PAPER_CHANNELS = (4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
SWEEP_CHANNELS = 32  # of the sweep of grids, with a 3x3 kernel


@dataclass(frozen=True, slots=True)
class Case:
    """A circular layer on a square grid, `grid` being the size of its input."""

    group: str
    in_channels: int
    out_channels: int
    kernel: int
    grid: int
    stride: int = 1

    @property
    def name(self) -> str:
        """Channels, kernel, grid and stride in one phrase."""
        k, n = self.kernel, self.grid
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{self.in_channels} to {self.out_channels}, {k}x{k} on {n}x{n}{stride}"

    @property
    def geometry(self) -> cs.Geometry:
        """The layer without its weight, as convspectra takes it."""
        return cs.Geometry(grid=(self.grid, self.grid), stride=self.stride)

    @property
    def frequencies(self) -> int:
        """The number of matrices that the Fourier transform makes of the layer."""
        return (self.grid // self.stride) ** 2

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of the matrix at one frequency."""
        return self.out_channels, self.in_channels * self.stride**2

    def weight(self) -> np.ndarray:
        """N(0, 1) / sqrt(in * taps) in float32, the same numbers every time."""
        shape = (self.out_channels, self.in_channels, self.kernel, self.kernel)
        drawn = np.random.default_rng(SEED).standard_normal(shape, dtype=np.float32)
        return drawn / np.float32(math.sqrt(self.in_channels * self.kernel**2))

    def with_half_the_channels(self) -> "Case":
        """The case before this one in a panel of figure 1."""
        half = self.in_channels // 2, self.out_channels // 2
        return replace(self, in_channels=half[0], out_channels=half[1])


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A case with its weight (out, in, kernel, kernel), and the bound of a clip."""

    case: Case
    weight: np.ndarray
    max_norm: float = 0.0


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases, and how much time each contender gets for each of them."""

    name: str
    cases: tuple[Case, ...]
    memory: tuple[Case, ...]  # whose peak memory is measured, in processes of their own
    repeats: int  # samples of each contender
    budget: float  # seconds that more than `least_repeats` samples may take
    patience: float  # seconds; what should take longer is left out, if ratios allow it
    least_repeats: int = 2
    once_above: float = 10.0  # seconds; what takes longer is run once

    def repeats_for(self, seconds: float) -> int:
        """The number of samples of a run that takes so long."""
        affordable = int(self.budget / max(seconds, 1e-9))
        return max(self.least_repeats, min(self.repeats, affordable))


def figure_one(kernel: int, grid: int, most: int) -> tuple[Case, ...]:
    """One panel of the paper's figure, with its numbers of channels, up to `most`."""
    channels = [c for c in PAPER_CHANNELS if c <= most]
    return tuple(Case(FIGURE, c, c, kernel, grid) for c in channels)


def sweep(*grids: int) -> tuple[Case, ...]:
    """The same kernel on several grids; the paper's 16x16 is in figure 1 already."""
    return tuple(Case(GRIDS, SWEEP_CHANNELS, SWEEP_CHANNELS, 3, n) for n in grids)


def resnets() -> tuple[Case, ...]:
    """The distinct convolutions of ResNet-18 and ResNet-50 on 224x224 images."""
    return tuple(dict.fromkeys([*_resnet((2, 2, 2, 2), 1), *_resnet((3, 4, 6, 3), 4)]))


def _resnet(blocks: tuple[int, ...], expansion: int) -> Iterator[Case]:
    """The layers of a network in order, from its number of blocks per stage.

    A block has two 3x3 layers if `expansion` is 1; it is a bottleneck otherwise.
    """
    yield _layer(3, 64, 7, 224, 2)
    channels, grid = 64, 56  # after the pooling that follows the stem
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            out, after = width * expansion, grid // stride
            if expansion == 1:
                yield _layer(channels, width, 3, grid, stride)
                yield _layer(width, width, 3, after)
            else:
                yield _layer(channels, width, 1, grid)
                yield _layer(width, width, 3, grid, stride)
                yield _layer(width, out, 1, after)
            if not block and (stride > 1 or channels != out):
                yield _layer(channels, out, 1, grid, stride)  # the shortcut
            channels, grid = out, after


def _layer(channels: int, out: int, kernel: int, grid: int, stride: int = 1) -> Case:
    group = POINTWISE if kernel == 1 else RESNET
    return Case(group, channels, out, kernel, grid, stride)


_SMALL, _LARGE = figure_one(3, 16, 1024), figure_one(11, 64, 256)
_RESNETS = resnets()
_POINTWISE = next(case for case in _RESNETS if case.kernel == 1)

QUICK = Suite(
    name="quick",
    cases=(*_SMALL[:5], _LARGE[0], _LARGE[2], *sweep(8, 32), _POINTWISE),
    memory=_SMALL[4:5],  # 64 channels
    repeats=3,
    budget=1.0,
    patience=10.0,
)
FULL = Suite(
    name="full",
    # 1024 channels take half of the time, and come last.
    cases=(*_SMALL[:-1], *_LARGE, *sweep(8, 32, 64, 128), *_RESNETS, _SMALL[-1]),
    memory=(*_SMALL[4:], *_LARGE[4:]),
    repeats=21,
    budget=3.0,
    patience=150.0,
)
