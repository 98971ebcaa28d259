"""A small untrained network, so that there is something to look at right away."""

import math
from typing import Any

import numpy as np

from ._geometry import Geometry
from ._layer import Layer


def demo_layers(seed: int = 0) -> list[Layer]:
    """Return the convolutions of a residual network on 32 x 32 images, as initialized.

    They are padded by zeros, as PyTorch's are by default. Strides, a depthwise, a
    dilated and a transposed one are among them. The weights are He's: independent
    normal, with a variance of 2 / (inputs per output), in single precision.
    """
    rng = np.random.default_rng(seed)

    def layer(
        name: str, out: int, into: int, kernel: int, grid: int, **geometry: Any
    ) -> Layer:
        shape = (out, into, kernel, kernel)
        scale = math.sqrt(2 / (into * kernel**2))
        weight = (scale * rng.standard_normal(shape)).astype(np.float32)
        geometry.setdefault("padding", (kernel - 1) // 2)
        where = Geometry(grid=(grid, grid), boundary="zeros", **geometry)
        return Layer(name, weight, where)

    scale = math.sqrt(2 / (64 * 2 * 2))  # two by two of the sixteen taps meet an output
    up = (scale * rng.standard_normal((64, 32, 4, 4))).astype(np.float32)
    transposed = Geometry(
        grid=(8, 8), stride=2, padding=1, boundary="zeros", transposed=True
    )
    return [
        layer("stem", 16, 3, 3, 32),
        layer("block1.conv1", 16, 16, 3, 32),
        layer("block1.conv2", 16, 16, 3, 32),
        layer("block2.conv1", 32, 16, 3, 32, stride=2),
        layer("block2.conv2", 32, 32, 3, 16),
        layer("block2.shortcut", 32, 16, 1, 32, stride=2),
        layer("block3.depthwise", 32, 1, 3, 16, groups=32),
        layer("block3.pointwise", 64, 32, 1, 16),
        layer("block4.dilated", 64, 64, 3, 16, dilation=2, padding=2),
        layer("block4.down", 64, 64, 3, 16, stride=2),
        Layer("head.up", up, transposed),
    ]
