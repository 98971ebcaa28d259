"""The layers that are measured: the paper's figure 1, a sweep of grids, two ResNets."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

import convspectra as cs

SEED = 0
FIGURE, GRIDS, RESNET, POINTWISE = "figure 1", "grids", "ResNet", "ResNet 1x1"
SWEEP_CHANNELS = 32  # of the sweep of grids, with a 3x3 kernel


@dataclass(frozen=True, slots=True)
class Case:
    """A circular layer on a square grid, `grid` being the size of its input."""

    group: str
    into: int
    out: int
    kernel: int
    grid: int
    stride: int = 1

    @property
    def name(self) -> str:
        """What the layer is, in one phrase."""
        k, n = self.kernel, self.grid
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{self.into} to {self.out}, {k}x{k} on {n}x{n}{stride}"

    @property
    def geometry(self) -> cs.Geometry:
        """The layer without its weights, as convspectra takes it."""
        return cs.Geometry(grid=(self.grid, self.grid), stride=self.stride)

    @property
    def with_half_the_channels(self) -> "Case":
        """The case before this one in a panel of figure 1."""
        return replace(self, into=self.into // 2, out=self.out // 2)

    @property
    def frequencies(self) -> int:
        """How many matrices the Fourier transform makes of the layer."""
        return (self.grid // self.stride) ** 2

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of the matrix of a frequency."""
        return self.out, self.into * self.stride**2


def kernel_of(case: Case) -> np.ndarray:
    """Return N(0, 1) / sqrt(in * taps) in single precision: (out, in, kernel, kernel).

    The same numbers every time.
    """
    shape = (case.out, case.into, case.kernel, case.kernel)
    drawn = np.random.default_rng(SEED).standard_normal(shape, dtype=np.float32)
    return drawn / np.float32(math.sqrt(case.into * case.kernel**2))


def figure_one(kernel: int, grid: int, most: int) -> tuple[Case, ...]:
    """One panel of the paper's figure: 4, 8, ... channels, up to `most`."""
    channels = [2**i for i in range(2, most.bit_length())]
    return tuple(Case(FIGURE, c, c, kernel, grid) for c in channels)


def sweep(*grids: int) -> tuple[Case, ...]:
    """The same kernel on several grids; the paper's 16x16 is in figure 1 already."""
    c = SWEEP_CHANNELS
    return tuple(Case(GRIDS, c, c, 3, n) for n in grids)


def resnets() -> tuple[Case, ...]:
    """The distinct convolutions of ResNet-18 and ResNet-50 on 224x224 images."""
    return tuple(dict.fromkeys([*_resnet((2, 2, 2, 2), 1), *_resnet((3, 4, 6, 3), 4)]))


def _resnet(blocks: tuple[int, ...], expansion: int) -> Iterator[Case]:
    """The layers of a network in order, from its blocks per stage.

    Blocks are of two 3x3 layers where `expansion` is 1, else bottlenecks.
    """
    yield _layer(3, 64, 7, 224, 2)
    into, grid = 64, 56  # what the pooling after the stem leaves
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            out, after = width * expansion, grid // stride
            if expansion == 1:
                yield _layer(into, width, 3, grid, stride)
                yield _layer(width, width, 3, after)
            else:
                yield _layer(into, width, 1, grid)
                yield _layer(width, width, 3, grid, stride)
                yield _layer(width, out, 1, after)
            if not block and (stride > 1 or into != out):
                yield _layer(into, out, 1, grid, stride)  # the shortcut
            into, grid = out, after


def _layer(into: int, out: int, kernel: int, grid: int, stride: int = 1) -> Case:
    return Case(POINTWISE if kernel == 1 else RESNET, into, out, kernel, grid, stride)
