"""The clips that are compared: the paper's, the layer's own, that of the reshaped."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

import convspectra as cs
from convspectra.torch import layers

from .clock import Clock

KINDS = ("paper", "layer", "reshaped")
Watch = Callable[[int, cs.Layer, Tensor], object]


@dataclass(frozen=True, slots=True)
class Clipping:
    """Clip every convolution at `max_norm`, every `every` steps.

    With `kind` "paper", as the paper does it: a strided layer as if its stride were 1,
    all on a circular grid of the input's size. With "layer", each with its own stride.
    With "reshaped", the singular values of the kernel as an out x (in * taps) matrix.
    """

    max_norm: float
    every: int
    kind: str = "paper"


class Clipper:
    """Clips the convolutions of a model, as a `Clipping` says, after steps of training.

    `watch(step, layer, before)` is called for every layer after each clip, with the
    clipped layer and the kernel that it had before.
    """

    def __init__(
        self,
        model: nn.Module,
        clipping: Clipping,
        example: Tensor,
        clock: Clock,
        watch: Watch | None = None,
    ) -> None:
        self.clipping, self.watch, self.clock = clipping, watch, clock
        self.layers = convolutions(model, example, as_paper=clipping.kind != "layer")
        self.weights = [
            model.get_submodule(layer.name).get_parameter("weight")
            for layer in self.layers
        ]
        self.steps, self.seconds = 0, 0.0
        for layer, weight in zip(self.layers, self.weights):
            clipped(weight.detach(), layer.geometry, clipping)  # compiles what it needs

    def step(self) -> None:
        """Count a step, and clip if it is time."""
        self.steps += 1
        if self.steps % self.clipping.every == 0:
            start = self.clock()
            self.clip()
            self.seconds += self.clock() - start

    @torch.no_grad()
    def clip(self) -> None:
        """Clip every layer once, unless training has diverged."""
        if not all(bool(weight.isfinite().all()) for weight in self.weights):
            return
        for layer, weight in zip(self.layers, self.weights):
            before = weight.clone()
            weight.copy_(clipped(before, layer.geometry, self.clipping))
            if dist.is_initialized():
                dist.broadcast(weight, 0)  # replicas stay the same to the last bit
            if self.watch is not None:
                after = cs.Layer(layer.name, weight.detach().clone(), layer.geometry)
                self.watch(self.steps, after, before)


def clipped(weight: Tensor, geometry: cs.Geometry, clipping: Clipping) -> Tensor:
    """The kernel after one clip."""
    if clipping.kind == "reshaped":
        u, s, vh = torch.linalg.svd(weight.flatten(1), full_matrices=False)
        return (u * s.clamp(max=clipping.max_norm) @ vh).reshape(weight.shape)
    return cs.clip(weight, geometry, clipping.max_norm)


def convolutions(
    model: nn.Module, example: Tensor, *, as_paper: bool
) -> list[cs.Layer]:
    """The convolutions of a model on circular grids, with their strides or with 1."""
    found = [layer for layer in layers(model, example) if layer.weight.ndim == 4]
    return [
        cs.Layer(layer.name, layer.weight, _circular(layer, as_paper))
        for layer in found
    ]


def _circular(layer: cs.Layer, as_paper: bool) -> cs.Geometry:
    if as_paper:
        return cs.Geometry(layer.geometry.grid)
    return layer.geometry.torus(layer.weight.shape[2:])
