"""Residual networks for small images, as in He et al. (2016), "Identity mappings"."""

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from .images import CLASSES


class Block(nn.Module):
    """Two 3x3 convolutions, each after a BatchNorm and a ReLU, beside a shortcut.

    The shortcut is the identity, or a 1x1 convolution where the shapes differ.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, norm: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(inputs, norm), _norm(outputs, norm)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = None
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = relu(self.norm1(x))
        if self.shortcut is not None:
            x = self.shortcut(h)
        return x + self.conv2(relu(self.norm2(self.conv1(h))))


class ResNet(nn.Module):
    """A 3x3 stem, a stage of blocks per width, the mean over the grid, a linear layer.

    Every stage but the first halves the grid. With 5 blocks in each of three stages
    it has 32 layers. Without `batch_norm` nothing is in the place of the BatchNorms.
    """

    def __init__(self, widths: tuple[int, ...], blocks: int, batch_norm: bool) -> None:
        super().__init__()
        channels, parts = widths[0], []
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                parts.append(Block(channels, width, stride, norm=batch_norm))
                channels = width
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.blocks = nn.Sequential(*parts)
        self.norm = _norm(channels, batch_norm)
        self.head = nn.Linear(channels, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))


def made(widths: tuple[int, ...], blocks: int, batch_norm: bool, seed: int) -> ResNet:
    """A network with first weights from `seed`; other random numbers are unaffected."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ResNet(widths, blocks, batch_norm)


def _norm(channels: int, norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm else nn.Identity()
