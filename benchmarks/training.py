"""What bounding a network costs while it trains, beside the paper's clip in torch."""

import copy
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from convspectra._files import replacing
from convspectra._render import progress
from convspectra.torch import SpectralClip, layers
from .by_torch import fft_clip
from .cases import RESNET, Case
from .contender import Task
from .machine import load, machine

WIDTHS, BLOCKS = (36, 72, 144), 5  # 32 layers with 2.4 million parameters
BATCH, IMAGE = 128, (3, 32, 32)
MAX_NORM, EVERY = 0.5, 100
ROUNDS, STEPS = 5, 2
ALLOWED = 1e-4  # error of a clipped kernel, relative to its largest entry


def training(folder: Path) -> dict[str, Any]:
    """Time steps of training, passes of `SpectralClip`, and the paper's clip, in turn.

    Every kernel of a pass is checked against the paper's clip first. Every pass starts
    from the same weights, with about half of the values above the bound.

    Parameters
    ----------
    folder : Path
        Gets training.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = resnet()
    x, labels = torch.randn(BATCH, *IMAGE), torch.randint(10, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    found = layers(model, x[:1])
    bound = SpectralClip(model, MAX_NORM, example=found)
    start = copy.deepcopy(model.state_dict())
    tasks = [_task(layer) for layer in found if layer.weight.ndim == 4]
    error = _error(model, bound, tasks)
    times: dict[str, list[float]] = {"step": [], "pass": [], "paper": []}
    for _ in progress(range(ROUNDS), "bench, training"):
        begin = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()
        times["step"].append((time.perf_counter() - begin) / STEPS)
        model.load_state_dict(start)
        times["pass"].append(bound.apply().seconds)
        model.load_state_dict(start)
        begin = time.perf_counter()
        for task in tasks:
            _paper(task)
        times["paper"].append(time.perf_counter() - begin)
    result = _result(model, times, error, len(tasks))
    with replacing(folder / "training.json") as partial:
        partial.write_text(json.dumps(result, indent=2), encoding="utf-8")
    return result


def resnet() -> nn.Module:
    """A residual network for small images, of 32 layers."""
    parts: list[nn.Module] = [_convolution(3, WIDTHS[0], 3, 1), nn.ReLU()]
    into = WIDTHS[0]
    for stage, width in enumerate(WIDTHS):
        for block in range(BLOCKS):
            parts.append(Block(into, width, 2 if stage and not block else 1))
            into = width
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 10)
    )


class Block(nn.Module):
    """Two 3x3 layers with a shortcut."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(into, out, 3, stride)
        self.second = _convolution(out, out, 3, 1)
        same = into == out and stride == 1
        self.shortcut = nn.Identity() if same else _convolution(into, out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x).relu())
        return (y + self.shortcut(x)).relu()


def _convolution(into: int, out: int, kernel: int, stride: int) -> nn.Module:
    layer = nn.Conv2d(into, out, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out))


def _task(layer: Any) -> Task:
    out, into, kernel, _ = layer.weight.shape
    grid, stride = layer.geometry.grid[0], layer.geometry.stride[0]
    case = Case(RESNET, into, out, kernel, grid, stride)
    return Task(case, layer.weight.clone().numpy(), MAX_NORM)


def _paper(task: Task) -> torch.Tensor:
    if task.case.kernel > 1:
        return fft_clip(task)()
    matrix = torch.from_numpy(task.weight)[:, :, 0, 0]
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return (u * s.clamp(max=MAX_NORM) @ vh)[:, :, None, None]


def _error(model: nn.Module, bound: SpectralClip, tasks: list[Task]) -> float:
    """How far our clips are from the paper's, at most."""
    bound.apply()
    found = layers(model, torch.zeros(1, *IMAGE))
    kernels = [layer.weight for layer in found if layer.weight.ndim == 4]
    return max(
        float((kernel - want).abs().max() / want.abs().max())
        for kernel, want in zip(kernels, map(_paper, tasks), strict=True)
    )


def _result(
    model: nn.Module, times: dict[str, list[float]], error: float, count: int
) -> dict[str, Any]:
    middle = {name: statistics.median(each) for name, each in times.items()}
    return {
        "machine": machine(),
        "load": load(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "kernels": count,
        "batch": BATCH,
        "max_norm": MAX_NORM,
        "every": EVERY,
        "error": error,
        "right": error <= ALLOWED,
        "seconds": times,
        "median_seconds": middle,
        "share": middle["pass"] / (EVERY * middle["step"] + middle["pass"]),
        "paper_over_ours": middle["paper"] / middle["pass"],
    }
