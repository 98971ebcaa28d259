"""What does each way to bound a network cost, as a multiple of plain training?"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from convspectra.torch import SpectralClip, bounded, layers, penalty

from .machine import machine, source_digest
from .record import ADVICE, saved, write

BATCH, IMAGE = 64, (3, 32, 32)
MAX_NORM = 1.0
METHODS = ("clip", "scale", "project")
# Steps from one pass to the next, and the number of passes that are timed so.
PASSES = {1: 3, 10: 2, 100: 1}
ROUNDS = 5  # of steps by each way in turn, of which the quickest counts


def ways(width: int, path: Path, *, fresh: bool) -> dict[str, Any]:
    """Processor time of steps by each way, and of the passes of each method.

    The network is a ResNet-18 of this width for small images, padded with zeros. The
    first pass is not among the others: it compiles, and moves the weights furthest.
    What is at `path` already is kept; every part is written there when it is done.
    """
    settings = {
        "width": width,
        "batch": BATCH,
        "source": source_digest(),
        "passes": {str(n): PASSES[n] for n in PASSES},
    }
    found: dict[str, Any] = {
        "settings": settings,
        "machine": machine(),
        "results": {"passes": {}},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not fresh:
        found = saved(path, settings, ADVICE)
    results = found["results"]
    if "steps" not in results:
        results["steps"] = _steps(width)
        write(path, json.dumps(found, indent=2).encode())
    for method in METHODS:
        if method not in results["passes"]:
            results["passes"][method] = _passes(width, method)
            write(path, json.dumps(found, indent=2).encode())
    return results


def multiples(results: dict[str, Any]) -> dict[str, float]:
    """The time of each way as a multiple of plain training."""
    steps = results["steps"]
    rows = {way: steps[way] / steps["plain"] for way in steps if way != "plain"}
    for method, passes in results["passes"].items():
        for every, seconds in passes["later"].items():
            share = min(seconds) / (int(every) * steps["plain"])
            rows[f"SpectralClip, {method}, every {every}"] = 1 + share
    return rows


def _steps(width: int) -> dict[str, float]:
    """The quickest step by each way, all in turn."""
    steps = {name: _stepping(width, change)[0] for name, change in WAYS.items()}
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(ROUNDS):
        for name, step in steps.items():
            best[name] = min(best[name], _processor_seconds(step))
    return best


def _passes(width: int, method: str) -> dict[str, Any]:
    """The time of the first pass, and of later ones by the steps in between."""
    step, model = _stepping(width, lambda model, x: None)  # noqa: ARG005
    bound = SpectralClip(model, MAX_NORM, method=method, example=_image())
    first = _processor_seconds(bound.apply)
    later: dict[str, list[float]] = {}
    for every, count in PASSES.items():
        for _ in range(count):
            for _ in range(every):
                step()
            seconds = _processor_seconds(bound.apply)
            later.setdefault(str(every), []).append(seconds)
    bound.detach()
    return {"first": first, "later": later}


def _stepping(
    width: int, change: Callable[[nn.Module, torch.Tensor], Any]
) -> tuple[Callable[[], None], nn.Module]:
    """A step of training, after the first one, with a model changed by a way."""
    torch.manual_seed(0)
    model, x = resnet18(width), torch.randn(BATCH, *IMAGE)
    labels = torch.randint(10, (BATCH,))
    extra: Any = change(model, x[:1])
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        if extra is not None:  # what is added to the loss
            loss = loss + extra()
        loss.backward()
        optimizer.step()

    step()
    return step, model


def _by_bounded(model: nn.Module, x: torch.Tensor) -> None:
    bounded(model, MAX_NORM, example=x)


def _by_certified(model: nn.Module, x: torch.Tensor) -> None:
    bounded(model, MAX_NORM, example=x, certify="always")


def _by_spectral_norm(model: nn.Module, _x: torch.Tensor) -> None:
    for module in list(model.modules()):
        if isinstance(module, nn.Conv2d):
            nn.utils.parametrizations.spectral_norm(module)


def _by_penalty(model: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    found = layers(model, x)
    return lambda: 0.1 * penalty(model, MAX_NORM, found)


WAYS = {
    "plain": lambda model, x: None,  # noqa: ARG005
    "torch's spectral_norm": _by_spectral_norm,
    "bounded": _by_bounded,
    'bounded, certify="always"': _by_certified,
    "penalty with the result of layers": _by_penalty,
}


def _image() -> torch.Tensor:
    return torch.zeros(1, *IMAGE)


def _processor_seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def resnet18(width: int) -> nn.Module:
    """Four stages of two blocks: 11.2 million parameters at width 64."""
    parts: list[nn.Module] = [*_convolution(3, width, 3, 1), nn.ReLU()]
    channels = width
    for stage in range(4):
        for block in range(2):
            out, stride = width * 2**stage, 2 if stage and not block else 1
            parts.append(Block(channels, out, stride))
            channels = out
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    )


class Block(nn.Module):
    """Two 3x3 layers with a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        first, second = (
            _convolution(channels, out, 3, stride),
            _convolution(out, out, 3, 1),
        )
        self.inner = nn.Sequential(*first, nn.ReLU(), *second)
        same = channels == out and stride == 1
        shortcut = nn.Sequential(*_convolution(channels, out, 1, stride))
        self.shortcut = nn.Identity() if same else shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x) + self.shortcut(x)).relu()


def _convolution(channels: int, out: int, kernel: int, stride: int) -> list[nn.Module]:
    layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
    return [layer, nn.BatchNorm2d(out)]
