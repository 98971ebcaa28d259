"""Train one network by one recipe; a killed run goes on to the same numbers."""

import contextlib
import io
import math
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import convspectra as cs
from benchmarks.record import write

from .clipping import Clipper, Clipping, Watch, convolutions
from .clock import clock_of
from .images import CLASSES, Images
from .looking import batches, error_of, error_with_fresh_statistics
from .network import ResNet, made
from .processes import device_of, is_first, world_size
from .talk import duration, live

# The error of a result that BatchNorm's running statistics have no part in.
FRESH = "error with fresh statistics"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what a training gives, on one machine.

    The rate is multiplied by `factor` at each of `milestones`, fractions of all steps.
    Images are shifted by up to `shift` pixels and perhaps mirrored. The error is
    measured after every `evaluate_every` epochs, and after each of the last `averaged`,
    of which it is the mean: 6 in the paper's plots, whose errors are multiples of 1 in
    60000 with 10000 test images.
    """

    seed: int
    widths: tuple[int, ...]
    blocks: int
    batch_norm: bool
    shift: int
    epochs: int
    batch: int
    rate: float
    milestones: tuple[float, ...]
    factor: float
    clipping: Clipping | None
    momentum: float = 0.9
    weight_decay: float = 2e-4
    evaluate_every: int = 1
    averaged: int = 6


class Training:
    """A network and what its training needs, from its first weights or from a file.

    Parameters
    ----------
    recipe : Recipe
    train, test : Images
        As `images.prepared` gives them.
    saved : Path, optional
        Written after every epoch, and read if it is there.
    watch : callable, optional
        See `Clipper`.
    """

    def __init__(
        self,
        recipe: Recipe,
        train: Images,
        test: Images,
        *,
        saved: Path | None = None,
        device: str = "cpu",
        watch: Watch | None = None,
    ) -> None:
        self.recipe, self.saved, self.device = recipe, saved, device_of(device)
        self.train, self.test = (_placed(part, self.device) for part in (train, test))
        if self.device.type == "cpu":
            torch.set_num_threads(1)  # the same bits, and seconds, however many run
        self.clock = clock_of(self.device)
        self.rng = torch.Generator().manual_seed(recipe.seed)
        network: Any = made(
            recipe.widths, recipe.blocks, recipe.batch_norm, recipe.seed
        )
        self.layout = layout_of(recipe.widths)
        network.to(self.device, memory_format=self.layout)
        self.network: ResNet = network
        self.steps_per_epoch = -(-len(train.labels) // recipe.batch)
        _check_shares(len(train.labels), recipe.batch)
        self.log: list[dict[str, Any]] = []
        self.clipper = None
        if recipe.clipping is not None:
            example = self.test.pixels[:1]
            parts = (self.network, recipe.clipping, example, self.clock, watch)
            self.clipper = Clipper(*parts)
        kernels = [p for p in self.network.parameters() if p.ndim > 1]
        others = [p for p in self.network.parameters() if p.ndim == 1]
        groups: list[dict[str, Any]] = [{"params": kernels}, {"params": others}]
        groups[0]["weight_decay"] = recipe.weight_decay
        self.optimizer = torch.optim.SGD(groups, recipe.rate, recipe.momentum)
        if saved is not None and saved.exists():
            self._load(saved)
        self.model: nn.Module = self.network
        if dist.is_initialized():
            self.model = nn.parallel.DistributedDataParallel(self.network)

    def run(self, name: str) -> dict[str, Any]:
        """Train to the last epoch, and return what came out; a live line tells."""
        recipe, start, before = self.recipe, time.perf_counter(), len(self.log)
        while len(self.log) < recipe.epochs and not self._has_diverged():
            self.log.append(self._epoch())
            self._save()
            done, line = len(self.log), self.log[-1]
            spent = (time.perf_counter() - start) / (done - before)
            left = duration(spent * (recipe.epochs - done))
            live(f"{name}: epoch {done} of {recipe.epochs}, {_seen(line)}, {left} left")
        return self.result()

    def result(self) -> dict[str, Any]:
        """What the training gave: the error, the norms of the layers, and the log.

        Norms are certified upper bounds of the circular layers, "with stride 1" as the
        paper has them. A training that diverged has the error of guessing. FRESH is of
        the last epoch, and None without BatchNorm.
        """
        errors = [line["error"] for line in self.log if line["error"] is not None]
        diverged = self._has_diverged()
        by_guess = 1 - 1 / CLASSES
        return {
            "error": by_guess
            if diverged
            else statistics.fmean(errors[-self.recipe.averaged :]),
            "last_error": by_guess if diverged else errors[-1],
            FRESH: None if diverged else self._error_with_fresh_statistics(),
            "loss": None if diverged else self.log[-1]["loss"],
            "diverged": diverged,
            "seconds": sum(line["seconds"] for line in self.log),
            "clip_seconds": sum(line["clip_seconds"] for line in self.log),
            "norms": None if diverged else self._norms(as_paper=False),
            "norms with stride 1": None if diverged else self._norms(as_paper=True),
            "log": self.log,
        }

    def _epoch(self) -> dict[str, Any]:
        """See every image once; what is logged of it."""
        epoch, wall, start = len(self.log) + 1, time.perf_counter(), self.clock()
        clip_start = self.clipper.seconds if self.clipper else 0.0
        self.model.train()
        loss = self.steps()
        seconds = self.clock() - start
        last = epoch > self.recipe.epochs - self.recipe.averaged
        due = last or epoch % self.recipe.evaluate_every == 0
        error = error_of(self.network, self.test) if due else None
        return {
            "epoch": epoch,
            "loss": loss,
            "error": error,
            "seconds": round(seconds, 3),  # without the evaluation
            "clip_seconds": round(self.clipper.seconds - clip_start, 4)
            if self.clipper
            else 0.0,
            "wall_seconds": round(time.perf_counter() - wall, 2),
        }

    def steps(self) -> float | None:
        """Make the steps of an epoch; return the mean loss, None if it diverged.

        The processes of a torchrun share every batch.
        """
        recipe, total = self.recipe, torch.zeros((), device=self.device)
        rank, world = (0, 1)
        if dist.is_initialized():
            rank, world = dist.get_rank(), dist.get_world_size()
        half = torch.autocast(self.device.type, torch.bfloat16)
        step, steps = len(self.log) * self.steps_per_epoch, self._total_steps()
        for x, labels in batches(self.train, recipe.batch, recipe.shift, self.rng):
            passed = sum(step >= m * steps for m in recipe.milestones)
            for group in self.optimizer.param_groups:
                group["lr"] = recipe.rate * recipe.factor**passed
            x = x[rank::world].contiguous(memory_format=self.layout)
            labels = labels[rank::world]
            with half if self.device.type != "cpu" else contextlib.nullcontext():
                loss = cross_entropy(self.model(x), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.clipper is not None:
                self.clipper.step()
            total += loss.detach() * len(labels)
            step += 1
            if world == 1 and self.device.type == "cpu" and not total.isfinite():
                break  # no weight will be finite again
        if world > 1:
            dist.all_reduce(total)
        finite = all(bool(p.isfinite().all()) for p in self.network.parameters())
        mean = float(total) / len(self.train.labels)
        return mean if finite and math.isfinite(mean) else None

    def _total_steps(self) -> int:
        return self.recipe.epochs * self.steps_per_epoch

    def _has_diverged(self) -> bool:
        return bool(self.log) and self.log[-1]["loss"] is None

    def _error_with_fresh_statistics(self) -> float | None:
        if not self.recipe.batch_norm:
            return None
        return error_with_fresh_statistics(self.network, self.train, self.test)

    def _norms(self, *, as_paper: bool) -> dict[str, float]:
        network = self.network.to("cpu").eval()
        example = self.test.pixels[:1].cpu()
        found = convolutions(network, example, as_paper=as_paper)
        norms = {
            layer.name: float(cs.operator_norm(layer.weight, layer.geometry).upper)
            for layer in found
        }
        self.network.to(self.device)
        return norms

    def _save(self) -> None:
        """Save what a resumed run needs; of a finished one, the network and its log."""
        if self.saved is None or not is_first():
            return
        state: dict[str, Any] = {
            "recipe": asdict(self.recipe),
            "log": self.log,
            "network": self.network.state_dict(),
        }
        if len(self.log) < self.recipe.epochs:
            state |= {"optimizer": self.optimizer.state_dict()}
            state |= {"rng": self.rng.get_state()}
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.saved.parent.mkdir(parents=True, exist_ok=True)
        write(self.saved, buffer.getvalue())

    def _load(self, saved: Path) -> None:
        state = _read(saved)
        if state["recipe"] != asdict(self.recipe):
            raise ValueError(
                f"{str(saved)!r} must be of the recipe {asdict(self.recipe)}, got "
                f"{state['recipe']}. Name another folder with --out, or remove it."
            )
        self.log = state["log"]
        self.network.load_state_dict(state["network"])
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
            self.rng.set_state(state["rng"])
        if self.clipper is not None:
            self.clipper.steps = len(self.log) * self.steps_per_epoch


def _check_shares(images: int, batch: int) -> None:
    """Refuse processes that can't have equal parts of every batch, the last included.

    A step takes the mean over processes of the means over their parts.
    """
    processes = world_size()
    if batch % processes or images % processes:
        raise ValueError(
            f"The number of processes must divide batches of {batch} and the {images} "
            f"images, got {processes}. Start torchrun with another --nproc-per-node."
        )


def layout_of(widths: tuple[int, ...]) -> torch.memory_format:
    """Channels last, a sixth faster on a CPU, if all widths are multiples of 8.

    With 4 channels, the backward pass of torch 2.13's strided 1x1 convolution writes
    beyond its memory in that layout (seen with MALLOC_CHECK_=3 on AVX2).
    """
    fits = all(width % 8 == 0 for width in widths)
    return torch.channels_last if fits else torch.contiguous_format


def is_finished(saved: Path) -> bool:
    """Whether this is the file of a training that is at its end."""
    return saved.exists() and "optimizer" not in _read(saved)


def load_network(saved: Path) -> ResNet:
    """The network of a training's file, in evaluation mode."""
    state = _read(saved)
    recipe = state["recipe"]
    network = ResNet(recipe["widths"], recipe["blocks"], recipe["batch_norm"])
    network.load_state_dict(state["network"])
    return network.eval()


def _seen(line: dict[str, Any]) -> str:
    loss = "diverged" if line["loss"] is None else f"loss {line['loss']:.3f}"
    return loss + (f", error {100 * line['error']:.2f} %" if line["error"] else "")


def _placed(images: Images, device: torch.device) -> Images:
    return Images(images.pixels.to(device), images.labels.to(device))


def _read(saved: Path) -> dict[str, Any]:
    return torch.load(saved, weights_only=True, map_location="cpu")
