"""What does it cost to bound a network while it trains, and by the paper's clip?"""

import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from convspectra.torch import SpectralClip, layers

from .cases import RESNET, Case, Task
from .contenders.in_torch import paper_clip
from .machine import load, machine
from .page import say
from .record import write

WIDTHS, BLOCKS = (36, 72, 144), 5  # 32 layers with 2.4 million parameters
BATCH, IMAGE = 128, (3, 32, 32)
MAX_NORM, EVERY = 0.5, 100
ROUNDS, STEPS = 5, 2
ALLOWED = 1e-4  # error of a clipped kernel, relative to its largest entry


def training(folder: Path) -> dict[str, Any]:
    """Time steps of training, passes of `SpectralClip`, and the paper's clip, in turn.

    Every kernel of a pass is checked against the paper's clip first. Every pass starts
    from the same weights, with about half of the values above the bound. The folder
    gets training.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = resnet()
    x, labels = torch.randn(BATCH, *IMAGE), torch.randint(10, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    found = layers(model, x[:1])
    bound = SpectralClip(model, MAX_NORM, example=found)
    tasks = [_task(layer) for layer in found if layer.weight.ndim == 4]
    start = copy.deepcopy(model.state_dict())
    bound.apply()
    errors = _errors(model, tasks)

    def steps() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()

    times: dict[str, list[float]] = {"step": [], "pass": [], "paper": []}
    for i in range(ROUNDS):
        say(f"training, round {i + 1} of {ROUNDS}")
        times["step"].append(_seconds(steps) / STEPS)
        model.load_state_dict(start)
        times["pass"].append(bound.apply().seconds)
        model.load_state_dict(start)
        times["paper"].append(_seconds(lambda: [clip(task) for task in tasks]))
    median = {name: statistics.median(each) for name, each in times.items()}
    result = {
        "machine": machine(),
        "load": load(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "kernels": len(tasks),
        "batch": BATCH,
        "max_norm": MAX_NORM,
        "every": EVERY,
        "error": max(errors),
        "right": all(error <= ALLOWED for error in errors),
        "seconds": times,
        "median_seconds": median,
        "share": median["pass"] / (EVERY * median["step"] + median["pass"]),
        "paper_over_ours": median["paper"] / median["pass"],
    }
    write(folder / "training.json", json.dumps(result, indent=2).encode())
    return result


def resnet() -> nn.Module:
    """A residual network for small images, of 32 layers."""
    channels = WIDTHS[0]
    parts: list[nn.Module] = [_convolution(3, channels, 3, 1), nn.ReLU()]
    for stage, width in enumerate(WIDTHS):
        for block in range(BLOCKS):
            parts.append(Block(channels, width, 2 if stage and not block else 1))
            channels = width
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    )


class Block(nn.Module):
    """Two 3x3 layers with a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(channels, out, 3, stride)
        self.second = _convolution(out, out, 3, 1)
        same = channels == out and stride == 1
        shortcut = nn.Identity() if same else _convolution(channels, out, 1, stride)
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x).relu())
        return (y + self.shortcut(x)).relu()


def clip(task: Task) -> torch.Tensor:
    """The paper's clip; of a 1x1 kernel, that of its one matrix."""
    weight = torch.from_numpy(task.weight)
    if task.case.kernel > 1:
        return paper_clip(weight, task)
    u, s, vh = torch.linalg.svd(weight[:, :, 0, 0], full_matrices=False)
    return (u * s.clamp(max=task.max_norm) @ vh)[:, :, None, None]


def _convolution(channels: int, out: int, kernel: int, stride: int) -> nn.Module:
    layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out))


def _task(layer: Any) -> Task:
    out, channels, kernel, _ = layer.weight.shape
    grid, stride = layer.geometry.grid[0], layer.geometry.stride[0]
    case = Case(RESNET, channels, out, kernel, grid, stride)
    return Task(case, layer.weight.clone().numpy(), MAX_NORM)


def _errors(model: nn.Module, tasks: list[Task]) -> list[float]:
    """How far every kernel of the model is from the paper's clip of what it was."""
    found = layers(model, torch.zeros(1, *IMAGE))
    kernels = [layer.weight for layer in found if layer.weight.ndim == 4]
    wanted = [clip(task) for task in tasks]
    return [
        float((kernel - want).abs().max() / want.abs().max())
        for kernel, want in zip(kernels, wanted, strict=True)
    ]


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
