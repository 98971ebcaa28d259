"""Random layers in which every option may be on, small enough for a dense matrix."""

import numpy as np

from convspectra import Geometry
from convspectra._layer.boundary import BOUNDARIES

ENTRIES = 200_000  # of the largest dense matrix that is drawn


def draw(rng):
    """A weight and a geometry that have an output; every option may be on."""
    while True:
        axes = int(rng.choice([1, 1, 2, 2, 2, 3]))
        size = {1: 7, 2: 5, 3: 3}[axes]
        kernel = tuple(int(k) for k in rng.integers(1, size + 1, axes))
        stride = tuple(int(s) for s in rng.integers(1, 4, axes))
        times = stride if rng.random() < 0.6 else (1,) * axes
        grid = tuple(int(n) * s for n, s in zip(rng.integers(1, size + 1, axes), times))
        groups = int(rng.choice([1, 1, 2, 3]))
        explicit = tuple((int(a), int(b)) for a, b in rng.integers(0, 4, (axes, 2)))
        transposed = bool(rng.random() < 0.3)
        extra = tuple(int(rng.integers(0, s)) for s in stride)
        padding = ["same", "valid", int(rng.integers(0, 3)), explicit][rng.choice(4)]
        shape = (groups * int(rng.integers(1, 5)), int(rng.integers(1, 5)), *kernel)
        geometry = Geometry(
            grid=grid,
            stride=stride,
            dilation=tuple(int(d) for d in rng.integers(1, 4, axes)),
            groups=groups,
            padding=padding,
            boundary=str(rng.choice(["circular", *BOUNDARIES])),
            transposed=transposed,
            output_padding=extra if transposed and padding != "same" else 0,
        )
        try:
            out = geometry.out_grid(kernel)
        except ValueError:
            continue
        channels = shape[0] * shape[1] * groups
        if channels * np.prod(grid) * np.prod(out) > ENTRIES:
            continue
        weight = rng.standard_normal(shape)
        if rng.random() < 0.2:
            weight = weight + 1j * rng.standard_normal(shape)
        return weight, geometry
