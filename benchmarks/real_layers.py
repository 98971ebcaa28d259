"""Norms of layers as networks have them: zero padding, real grids and strides.

Every distinct convolution of ResNet-18, ResNet-50, MobileNet and a CIFAR ResNet, with
random kernels. Others estimate the norm from below, or bound it from above; only
convspectra does both. The iterations of others stop as soon as they are within their
tolerance of the norm, which they could not know.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, svds
from torch.nn import functional

import convspectra as cs

from .cases import SEED, Suite, resnets
from .machine import load, machine, source_digest
from .measuring import in_turn
from .page import say
from .record import saved, write

RESULTS = "real_layers.json"
ADVICE = "Take another folder with -o, or remove that file."
RTOL = 1e-3  # that norms are certified to
NEAR, CLOSE = 1e-3, 1e-6  # of the norm, where power iteration may stop
PATIENCE = 20.0  # seconds that an iteration of others may take
LARGE = 28  # sides of a grid from which on a compression alone is close
GRAM_STEPS = 3  # of the published bound
ROUNDING = 1e-5  # relative error of single precision
# Repeats of what takes less than a second or so; what takes longer is run twice.
SUITE = Suite("real layers", (), (), repeats=5, budget=2.0, patience=PATIENCE)


@dataclass(frozen=True, slots=True)
class RealLayer:
    """A convolution with zero padding, of a network's channels, grid and stride."""

    network: str
    in_channels: int
    out_channels: int
    kernel: int
    grid: int
    stride: int = 1
    groups: int = 1

    @property
    def name(self) -> str:
        """Channels, kernel, grid and stride in one phrase."""
        channels = f"{self.in_channels} to {self.out_channels}"
        if self.groups > 1:
            channels = f"{self.in_channels} depthwise"
        k, n = self.kernel, self.grid
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{channels}, {k}x{k} on {n}x{n}{stride}"

    @property
    def kind(self) -> str:
        """What decides how the norm of a layer is best bounded."""
        if self.kernel == 1:
            return "1x1"
        if self.groups > 1:
            return "depthwise"
        return f"on {LARGE}x{LARGE} and more" if self.grid >= LARGE else "on less"

    def geometry(self, boundary: Any = "zeros") -> cs.Geometry:
        """The layer without its weight; as torch pads it, or of a torus."""
        return cs.Geometry(
            grid=(self.grid, self.grid),
            stride=self.stride,
            groups=self.groups,
            padding=self.kernel // 2,
            boundary=boundary,
        )

    def weight(self) -> np.ndarray:
        """N(0, 1) / sqrt(in * taps) in float32, the same numbers every time."""
        fan_in = self.in_channels // self.groups
        shape = (self.out_channels, fan_in, self.kernel, self.kernel)
        drawn = np.random.default_rng(SEED).standard_normal(shape, dtype=np.float32)
        return drawn / np.float32(math.sqrt(fan_in * self.kernel**2))


def real_layers() -> tuple[RealLayer, ...]:
    """The distinct convolutions of the networks, each named by the first to have it."""
    found = [
        RealLayer("ResNet", c.in_channels, c.out_channels, c.kernel, c.grid, c.stride)
        for c in resnets()
    ]
    return tuple(dict.fromkeys([*_cifar_resnet(), *found, *_mobilenet()]))


def _cifar_resnet() -> Iterator[RealLayer]:
    yield RealLayer("CIFAR ResNet", 3, 16, 3, 32)
    for width, grid in (16, 32), (32, 16), (64, 8):
        if width > 16:
            yield RealLayer("CIFAR ResNet", width // 2, width, 3, 2 * grid, 2)
        yield RealLayer("CIFAR ResNet", width, width, 3, grid)


def _mobilenet() -> Iterator[RealLayer]:
    """MobileNet v1: a strided layer, then depthwise and 1x1 layers in turn."""
    yield RealLayer("MobileNet", 3, 32, 3, 224, 2)
    channels, grid = 32, 112
    widths = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    for out, stride in zip(widths, strides, strict=True):
        yield RealLayer("MobileNet", channels, channels, 3, grid, stride, channels)
        grid //= stride
        yield RealLayer("MobileNet", channels, out, 1, grid)
        channels = out


class Convolution:
    """A layer and its transpose by torch's own convolutions, on flat vectors."""

    def __init__(self, layer: RealLayer, weight: torch.Tensor) -> None:
        self.weight, n, k = weight, layer.grid, layer.kernel
        rows = (n + 2 * (k // 2) - k) // layer.stride + 1
        self.options: dict[str, Any] = {
            "stride": layer.stride,
            "padding": k // 2,
            "groups": layer.groups,
        }
        self.unread = n - ((rows - 1) * layer.stride - 2 * (k // 2) + k)
        self.input = (1, layer.in_channels, n, n)
        self.output = (1, layer.out_channels, rows, rows)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """The layer of an input."""
        return functional.conv2d(x, self.weight, **self.options)

    def transpose(self, y: torch.Tensor) -> torch.Tensor:
        """The layer's transpose of an output."""
        return functional.conv_transpose2d(
            y, self.weight, output_padding=self.unread, **self.options
        )

    def largest_value(self, tol: float) -> float:
        """By ARPACK's Lanczos iteration, until it believes to be within `tol`."""

        def on(shape: tuple[int, ...], of: Callable[[Any], Any]) -> Any:
            return lambda v: of(torch.from_numpy(v.reshape(shape))).numpy().ravel()

        shape = math.prod(self.output), math.prod(self.input)
        matvec, rmatvec = on(self.input, self.apply), on(self.output, self.transpose)
        make: Any = LinearOperator  # whose stubs do not know its arguments
        operator = make(shape, matvec, rmatvec, dtype=np.float32)
        start = np.random.default_rng(SEED).standard_normal(min(shape))
        values: Any = svds  # nor that a tolerance is no whole number
        options = {"tol": tol, "v0": start.astype(np.float32)}
        return float(values(operator, 1, return_singular_vectors=False, **options)[0])

    def power_steps(self, target: float, deadline: Callable[[], bool]) -> int | None:
        """How many steps bring |A x| to `target` for a unit x; None if too many."""
        x = torch.randn(self.input, generator=torch.Generator().manual_seed(SEED))
        for step in range(1, 10**6):
            y = self.apply(x / x.norm())
            if y.norm() >= target:
                return step
            if deadline():
                return None
            x = self.transpose(y)
        return None

    def power_iteration(self, steps: int) -> float:
        """The norm that this many steps attain."""
        x = torch.randn(self.input, generator=torch.Generator().manual_seed(SEED))
        for _ in range(steps - 1):
            x = self.transpose(self.apply(x / x.norm()))
        return float(self.apply(x / x.norm()).norm())


def gram_bound(weight: torch.Tensor) -> float:
    """Delattre, Barthélemy and Allauzen (2024): an upper bound for zero padding.

    The kernel of the layer's Gram matrix is squared repeatedly; a root of the largest
    sum of absolute entries over an output channel bounds the norm on every grid. It has
    neither strides nor groups.
    """
    kernel = weight if len(weight) <= weight.shape[1] else weight.transpose(0, 1)
    log = 0.0  # of what was divided out of the kernel, as the Gram matrix has it
    for _ in range(GRAM_STEPS):
        size = float(kernel.norm())
        kernel = kernel / size
        log = 2 * (log + math.log(size))
        kernel = functional.conv2d(kernel, kernel, padding=kernel.shape[-1] - 1)
    largest = float(kernel.abs().sum((1, 2, 3)).max())
    return math.exp((math.log(largest) + log) / 2**GRAM_STEPS)


def measure_real_layers(folder: Path) -> dict[str, Any]:
    """Check and time every layer that real_layers.json does not have yet.

    Returns its document; a layer whose interval does not contain the norm that ARPACK
    finds is not timed, and not `right`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, about = folder / RESULTS, machine()
    settings = {"rtol": RTOL, "seed": SEED, "source": source_digest()}
    settings |= {key: about[key] for key in about if key != "blas"}
    document: dict[str, Any] = {"settings": settings, "machine": about, "load": load()}
    document["results"] = {}
    if path.exists():
        document = saved(path, settings, ADVICE)
    every = real_layers()
    for i, layer in enumerate(every, 1):
        if layer.name in document["results"]:
            continue
        say(f"{i} of {len(every)}: {layer.name}")
        document["results"][layer.name] = measure_layer(layer)
        write(path, json.dumps(document, indent=1).encode())
    return document


def measure_layer(layer: RealLayer) -> dict[str, Any]:
    """Seconds of all contenders, and what they found, as a row of the table."""
    weight, geometry = layer.weight(), layer.geometry()
    tensor = torch.from_numpy(weight)
    convolution = Convolution(layer, tensor)
    norm = convolution.largest_value(CLOSE)
    found = cs.operator_norm(weight, geometry, RTOL)
    lower, upper = float(found.lower), float(found.upper)
    row: dict[str, Any] = {
        "layer": layer.name,
        "network": layer.network,
        "norm": norm,
        "gap": found.gap,
        "method": found.method,
        "right": lower <= norm * (1 + ROUNDING) and norm * (1 - ROUNDING) <= upper,
    }
    if not row["right"]:
        return row | {"lower": lower, "upper": upper}
    runs: dict[str, Callable[[], Any]] = {
        "zeros": lambda: cs.operator_norm(weight, geometry, RTOL),
        "circular": lambda: cs.operator_norm(weight, layer.geometry("circular"), RTOL),
        "svds": lambda: convolution.largest_value(NEAR),
    }
    for name, tol in ("power", NEAR), ("power_close", CLOSE):
        steps = convolution.power_steps(norm * (1 - tol), _clock(PATIENCE))
        if steps is not None:
            runs[name] = lambda steps=steps: convolution.power_iteration(steps)
    if layer.stride == layer.groups == 1:
        bound = gram_bound(tensor)
        if bound >= norm * (1 - ROUNDING):
            row["gram_excess"] = bound / norm - 1
            runs["gram"] = lambda: gram_bound(tensor)
    samples = in_turn(runs, SUITE)
    return row | {"seconds": {name: min(each) for name, (each, _) in samples.items()}}


def rows_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table: our seconds and gap, and the times of others over ours."""
    rows = []
    for result in document["results"].values():
        seconds = result.get("seconds", {})
        ratios = {
            name: seconds[name] / seconds["zeros"]
            for name in seconds
            if name != "zeros"
        }
        rows.append({**result, "our_seconds": seconds.get("zeros"), **ratios})
    return rows


def means_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means over the layers of each kind, and the widest gap among them."""
    kinds = {layer.name: layer.kind for layer in real_layers()}
    means = []
    for kind in dict.fromkeys(kinds[row["layer"]] for row in rows):
        own = [row for row in rows if kinds[row["layer"]] == kind]
        mean = {"kind": kind, "layers": len(own)}
        mean["widest_gap"] = max(row["gap"] for row in own)
        for key in ("our_seconds", "circular", "power", "power_close", "svds"):
            found = [row[key] for row in own if row.get(key)]
            mean[key] = geometric_mean(found) if found else None
        means.append(mean)
    return means


def _clock(seconds: float) -> Callable[[], bool]:
    """A function that says whether so many seconds have passed."""
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() > end
