"""What does it cost to bound a network while it trains, in each framework?"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import convspectra as cs

from ..cases import RESNET, Case, Task
from ..machine import load, machine
from ..page import say
from ..record import write

# By the module here that has its network; the first is also timed beside the paper.
FRAMEWORKS = {"torch": "in_torch", "Keras": "in_keras", "Flax": "in_flax"}
MAX_NORM, EVERY = 0.5, 100
ALLOWED = 1e-4  # error of a clipped kernel, relative to its largest entry


@dataclass(frozen=True, slots=True)
class Setup:
    """A residual network for small images, its batches, and how often it is timed."""

    widths: tuple[int, ...] = (36, 72, 144)
    blocks: int = 5  # of two layers, for each width: 32 layers with 2.4 million numbers
    batch: int = 128
    side: int = 32  # of the images, which have three channels
    rounds: int = 5
    steps: int = 2  # in a round

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Images of noise, channels last, and labels."""
        rng = np.random.default_rng(0)
        shape = (self.batch, self.side, self.side, 3)
        labels = rng.integers(10, size=self.batch)
        return rng.standard_normal(shape, dtype=np.float32), labels


class Trainer(Protocol):
    """A network with its optimizer, and what bounds it."""

    @property
    def parameters(self) -> int: ...

    def layers(self) -> Sequence[cs.Layer]:
        """As `layers` of the framework finds them."""
        ...

    def step(self) -> None:
        """One step of training, without a bound."""
        ...

    def bound(self) -> None:
        """One pass of the method "clip"."""
        ...

    def restore(self) -> None:
        """Go back to the weights of the beginning."""
        ...


def training(folder: Path, setup: Setup = Setup()) -> dict[str, Any]:  # noqa: B008
    """Time steps of training and passes in each framework, and the paper's clip.

    Every kernel of a pass is checked against the paper's clip first. Every pass starts
    from the same weights, with about half of the values above the bound. The folder
    gets training.json, with the other frameworks under "others".
    """
    folder.mkdir(parents=True, exist_ok=True)
    first, *rest = FRAMEWORKS
    result = {"machine": machine(), "load": load()} | measured(first, setup, paper=True)
    result["others"] = [measured(framework, setup) for framework in rest]
    write(folder / "training.json", json.dumps(result, indent=2).encode())
    return result


def measured(framework: str, setup: Setup, *, paper: bool = False) -> dict[str, Any]:
    """Times and errors of one framework."""
    from .in_torch import paper_clip

    module = import_module(f".{FRAMEWORKS[framework]}", __package__)
    trainer: Trainer = module.trainer(setup)
    tasks = [_task(layer) for layer in trainer.layers() if layer.weight.ndim == 4]
    runs: dict[str, Callable[[], Any]] = {
        "step": lambda: [trainer.step() for _ in range(setup.steps)],
        "pass": trainer.bound,
    }
    if paper:
        runs["paper"] = lambda: [paper_clip(task) for task in tasks]
    trainer.step()  # which compiles, in some frameworks
    trainer.restore()
    trainer.bound()
    errors = _errors(trainer, [paper_clip(task) for task in tasks])
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(setup.rounds):
        say(f"{framework}, round {i + 1} of {setup.rounds}")
        for name, run in runs.items():
            times[name].append(_seconds(run) / (setup.steps if name == "step" else 1))
            trainer.restore()
    median = {name: statistics.median(each) for name, each in times.items()}
    result = {
        "framework": framework,
        "parameters": trainer.parameters,
        "kernels": len(tasks),
        "batch": setup.batch,
        "max_norm": MAX_NORM,
        "every": EVERY,
        "error": max(errors),
        "right": all(error <= ALLOWED for error in errors),
        "seconds": times,
        "median_seconds": median,
        "share": median["pass"] / (EVERY * median["step"] + median["pass"]),
    }
    if paper:
        result["paper_over_ours"] = median["paper"] / median["pass"]
    return result


def _task(layer: cs.Layer) -> Task:
    out, channels, kernel, _ = layer.weight.shape
    grid, stride = layer.geometry.grid, layer.geometry.stride
    assert isinstance(grid, tuple)
    assert isinstance(stride, tuple)
    case = Case(RESNET, channels, out, kernel, grid[0], stride[0])
    return Task(case, np.array(layer.weight), MAX_NORM)


def _errors(trainer: Trainer, wanted: Sequence[np.ndarray]) -> list[float]:
    """How far every kernel of the model is from the paper's clip of what it was."""
    kernels = [np.asarray(x.weight) for x in trainer.layers() if x.weight.ndim == 4]
    return [
        float(np.abs(kernel - want).max() / np.abs(want).max())
        for kernel, want in zip(kernels, wanted, strict=True)
    ]


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
