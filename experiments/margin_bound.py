"""The margin bound of Bartlett, Foster and Telgarsky (2017), from certified norms.

Their theorem 1.1: with high probability over n examples, for every margin g,

    test error <= share of examples with a margin below g
                  + O~(|X| R / (g n) + n^(-1/2))

    R = (product of s_i) * (sum of (b_i / s_i)^(2/3))^(3/2)

|X| is the Frobenius norm of the examples, s_i the operator norm of layer i, and b_i the
(2,1) norm of its transpose minus a fixed reference matrix: the sum over outputs of the
Euclidean norm of the weights into each. A residual network is a chain of layers that
carry the shortcut along:

    x                  ->  (x, D1 x)             then ReLU of the second part
    (x, h)             ->  (x or S h, D2 W1 h)   then ReLU of the second part
    (x, g)             ->  x + W2 g

with convolutions W1, W2, S and the BatchNorms D1, D2 as factors in evaluation mode. The
reference has the identity where x is carried, and zeros elsewhere. Shifts are left out,
as in the theorem.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

import convspectra as cs
from convspectra.torch import layers

from .images import Images
from .network import Block, ResNet

AT_ONCE = 500  # images shown to a network


@dataclass(frozen=True, slots=True)
class Step:
    """A layer of the chain.

    Attributes
    ----------
    norm : float
        An upper bound of its operator norm.
    distance : float
        The (2,1) norm of its transpose minus the reference.
    """

    norm: float
    distance: float


def complexity(steps: list[Step]) -> float:
    """The logarithm, to the base 10, of R."""
    product = math.fsum(math.log10(step.norm) for step in steps)
    total = math.fsum((step.distance / step.norm) ** (2 / 3) for step in steps)
    return product + 1.5 * math.log10(total)


def steps_of(network: ResNet, example: Tensor) -> list[Step]:
    """The chain of a residual network in evaluation mode, for inputs like `example`."""
    found = {layer.name: layer for layer in layers(network, example)}
    stem = _convolution(found["stem"])
    steps = [stem]
    for name, block in network.blocks.named_children():
        if isinstance(block, Block):
            steps += _block(block, f"blocks.{name}", found)
    # The mean over the sites of the last grid has the norm 1 / sqrt(sites).
    last = found[f"blocks.{len(network.blocks) - 1}.conv2"]
    sites = math.prod(last.geometry.out_grid(last.weight.shape[2:]))
    norm = _scaling(network.norm, network.head.in_features, sites)
    steps.append(Step(norm.norm / math.sqrt(sites), norm.distance / math.sqrt(sites)))
    head = network.head.weight.detach().double()
    largest = float(
        cs.operator_norm(found["head"].weight, found["head"].geometry).upper
    )
    return [*steps, Step(largest, float(head.norm(dim=1).sum()))]


def margins(network: nn.Module, images: Images) -> Tensor:
    """The logit of the right class minus the largest other, for every image."""
    found = []
    parts = zip(images.pixels.split(AT_ONCE), images.labels.split(AT_ONCE))
    with torch.no_grad():
        for pixels, labels in parts:
            logits = network(pixels)
            right = logits.gather(1, labels[:, None])[:, 0]
            others = logits.scatter(1, labels[:, None], -math.inf).amax(1)
            found.append(right - others)
    return torch.cat(found)


def rows_norm(weight: Tensor, geometry: cs.Geometry) -> float:
    """The (2,1) norm of the transpose of a zero-padded layer's matrix.

    The weights into an output are the taps that read inside of the input: the sum of
    their squares is a convolution of squares with ones.
    """
    grid, padding = geometry.grid, geometry.padding
    if not (isinstance(grid, tuple) and isinstance(padding, tuple)) or (
        geometry.boundary != "zeros"
    ):
        raise ValueError(
            f"A layer must state its grid and zero padding, got {geometry}."
        )
    squares = weight.detach().double().square().sum(1, keepdim=True)  # (out, 1, *k)
    ones = torch.ones(1, 1, *grid, dtype=torch.float64)
    pads = [before for before, _ in padding]
    return float(conv2d(ones, squares, None, geometry.stride, pads).sqrt().sum())


def _block(block: Block, name: str, found: dict[str, cs.Layer]) -> list[Step]:
    first, second = found[f"{name}.conv1"], found[f"{name}.conv2"]
    grid = first.geometry.grid
    sites = math.prod(grid) if isinstance(grid, tuple) else 1
    into = _scaling(block.norm1, block.conv1.in_channels, sites)
    inner = _convolution(first, _gains(block.norm2, block.conv1.out_channels))
    outer = _convolution(second)
    last = Step(math.hypot(1, outer.norm), outer.distance)
    if block.shortcut is None:
        carried = Step(math.hypot(1, into.norm), into.distance)
        return [carried, Step(max(1, inner.norm), inner.distance), last]
    side = _convolution(found[f"{name}.shortcut"])
    both = Step(math.hypot(side.norm, inner.norm), side.distance + inner.distance)
    return [into, both, last]


def _convolution(layer: cs.Layer, gains: Tensor | None = None) -> Step:
    weight = layer.weight
    if gains is not None:
        weight = weight * gains[:, None, None, None]
    upper = float(cs.operator_norm(weight, layer.geometry).upper)
    return Step(upper, rows_norm(weight, layer.geometry))


def _scaling(norm: nn.Module, channels: int, sites: int) -> Step:
    """A BatchNorm as a diagonal layer; the identity is its own reference."""
    if isinstance(norm, nn.Identity):
        return Step(1.0, 0.0)
    gains = _gains(norm, channels).double().abs()
    return Step(float(gains.max()), sites * float(gains.sum()))


def _gains(norm: nn.Module, channels: int) -> Tensor:
    if not isinstance(norm, nn.BatchNorm2d):
        return torch.ones(channels)
    assert norm.running_var is not None
    return (norm.weight / torch.sqrt(norm.running_var + norm.eps)).detach()
