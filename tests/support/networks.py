"""Small networks of PyTorch, and the matrices of what they do."""

import numpy as np
import torch
from torch import nn


def matrix_of(function, shape):
    """The matrix of a linear function of inputs of this shape, column by column."""
    basis = torch.eye(int(np.prod(shape)), dtype=torch.float64)
    with torch.no_grad():
        zero = function(torch.zeros(1, *shape, dtype=torch.float64))
        outputs = [function(e.reshape(1, *shape)) - zero for e in basis]
    return torch.stack([y.reshape(-1) for y in outputs], dim=1).numpy()


class Residual(nn.Module):
    """A block with a shortcut, batch norms, and a module that is used twice."""

    def __init__(self, channels=4):
        super().__init__()
        self.inner = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.shortcut = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        y = self.norm(self.inner(x)).relu()
        return self.shortcut(x) + self.inner(nn.functional.avg_pool2d(y, 2)).mean()


def small(seed=0, channels=4):
    """A convolution, a residual block, a strided convolution and a Linear."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, channels, 3, padding=1, padding_mode="circular"),
        Residual(channels),
        nn.Conv2d(channels, channels, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(channels * 16, 3),
    )


EXAMPLE = (2, 2, 8, 8)


def train(model, optimizer, steps, *, seed=0, first=0):
    """Some steps on noise that depends on the number of the step only."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(seed * 1000 + step)
        x = torch.randn(EXAMPLE, generator=generator)
        optimizer.zero_grad()
        (-model(x).tanh().square().mean()).backward()  # which makes all norms grow
        optimizer.step()
