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
        kernel = whole(rng.integers(1, size + 1, axes))
        stride = whole(rng.integers(1, 4, axes))
        dilation = whole(rng.integers(1, 4, axes))
        times = stride if rng.random() < 0.6 else (1,) * axes
        grid = tuple(
            n * s for n, s in zip(whole(rng.integers(1, size + 1, axes)), times)
        )
        groups = int(rng.choice([1, 1, 2, 3]))
        transposed = bool(rng.random() < 0.3)
        extra = tuple(int(rng.integers(0, s)) for s in stride)
        padding = any_padding(rng, kernel, dilation)
        shape = (groups * int(rng.integers(1, 5)), int(rng.integers(1, 5)), *kernel)
        geometry = Geometry(
            grid=grid,
            stride=stride,
            dilation=dilation,
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
        if rng.random() < 0.3:
            weight = flattened(weight, stride, groups)
        return weight, geometry


def draw_past_borders(rng):
    """A layer of few sites, most of whose rows read zeros beyond its borders.

    With strides that mostly do not divide the kernel's size - 1, and a kernel that is
    made for a torus that is too small: see `flattened`.
    """
    axes = int(rng.choice([1, 1, 2, 2, 3]))
    stride = whole(rng.integers(2 if axes == 1 else 1, 3 if axes == 3 else 4, axes))
    times = whole(rng.integers(1, 4 if axes == 1 else 3, axes))
    kernel = tuple(n * s for n, s in zip(times, stride))
    geometry = Geometry(
        grid=tuple(int(rng.integers(1, 2 * s + 1)) for s in stride),
        stride=stride,
        padding=tuple(
            whole(rng.permutation([rng.integers(k - 1, k + 2), rng.integers(k + 2)]))
            for k in kernel
        ),
        boundary="zeros",
    )
    shape = (int(rng.integers(1, 5)), int(rng.integers(1, 3)), *kernel)
    return flattened(rng.standard_normal(shape), stride, groups=1), geometry


def any_padding(rng, kernel, dilation):
    """One of the kinds that can be stated; up to rows that read no column at all."""
    kind = rng.choice(["same", "valid", "one number", "pairs", "full"])
    if kind == "one number":
        return int(rng.integers(0, 3))
    if kind in ("same", "valid"):
        return str(kind)
    reaches = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    least = [n - 1 if kind == "full" else 0 for n in reaches]
    return tuple(whole(rng.integers(a, n + 2, 2)) for a, n in zip(least, reaches))


def flattened(weight, stride, groups):
    """A kernel whose symbol is an isometry at as many frequencies as it has shifts.

    There its norm is 1, and in between it is larger: a bound by too few frequencies is
    too small. As far as its sizes are multiples of the stride; other axes stay.
    """
    kernel, axes = weight.shape[2:], range(weight.ndim - 2)
    steps = [s if k % s == 0 else 1 for k, s in zip(kernel, stride)]
    split = [n for k, s in zip(kernel, steps) for n in (k // s, s)]
    shifts = [3 + 2 * a for a in axes]
    phases = [4 + 2 * a for a in axes]
    taps = weight.reshape(groups, -1, weight.shape[1], *split)
    symbol = np.fft.fftn(taps, axes=shifts).transpose(*shifts, 0, 1, 2, *phases)
    shape = symbol.shape
    left, _, right = np.linalg.svd(
        symbol.reshape(*shape[: len(shifts) + 2], -1), full_matrices=False
    )
    flat = (left @ right).reshape(shape)
    flat = flat.transpose(np.argsort([*shifts, 0, 1, 2, *phases]))
    found = np.fft.ifftn(flat, axes=shifts).reshape(weight.shape)
    return found if np.iscomplexobj(weight) else found.real


def whole(numbers):
    return tuple(map(int, numbers))
