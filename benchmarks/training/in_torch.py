"""The network in PyTorch, and the paper's clip there."""

import copy

import numpy as np
import torch
from torch import nn

from convspectra.torch import Layers, SpectralClip, layers

from ..cases import Task
from ..contenders.in_torch import paper_clip as clip_by_frequency
from . import MAX_NORM, Setup


class Trainer:
    """A network with SGD, and a SpectralClip."""

    def __init__(self, setup: Setup) -> None:
        torch.manual_seed(0)
        self._model = resnet(setup)
        images, labels = setup.data()
        self._x = torch.from_numpy(images).movedim(-1, 1).contiguous()
        self._labels = torch.from_numpy(labels)
        parameters = self._model.parameters()
        self._optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        self._bound = SpectralClip(self._model, MAX_NORM, example=self.layers())
        self._start = copy.deepcopy(self._model.state_dict())

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(p.numel() for p in self._model.parameters())

    def layers(self) -> Layers:
        """The layers of the network."""
        return layers(self._model, self._x[:1])

    def step(self) -> None:
        """Make a step, without a pass."""
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._model(self._x), self._labels).backward()
        self._optimizer.step()

    def bound(self) -> None:
        """Make a pass."""
        self._bound.apply()

    def restore(self) -> None:
        """Take the weights of the beginning."""
        self._model.load_state_dict(self._start)


trainer = Trainer


def resnet(setup: Setup) -> nn.Module:
    """A residual network for small images."""
    channels = setup.widths[0]
    parts: list[nn.Module] = [_convolution(3, channels, 3, 1), nn.ReLU()]
    for stage, width in enumerate(setup.widths):
        for block in range(setup.blocks):
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


def paper_clip(task: Task) -> np.ndarray:
    """The paper's clip; of a 1x1 kernel, that of its one matrix."""
    weight = torch.from_numpy(task.weight)
    if task.case.kernel > 1:
        return clip_by_frequency(weight, task).numpy()
    u, s, vh = torch.linalg.svd(weight[:, :, 0, 0], full_matrices=False)
    return (u * s.clamp(max=task.max_norm) @ vh)[:, :, None, None].numpy()


def _convolution(channels: int, out: int, kernel: int, stride: int) -> nn.Module:
    layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out))
