"""Geometries that someone gets wrong, and answers computed another way."""

import math

import numpy as np

from convspectra import Geometry, dense_matrix

# name: (shape of the weight, geometry). Circular unless said otherwise.
TORUS = {
    "plain": ((3, 3, 3, 3), {"grid": (6, 5)}),
    "more-in-than-out": ((2, 5, 3, 3), {"grid": 4}),
    "more-out-than-in": ((5, 2, 3, 3), {"grid": 4}),
    "one-by-one": ((4, 3, 1, 1), {"grid": (5, 4)}),
    "kernel-past-grid": ((2, 2, 5, 5), {"grid": 3}),
    "even-kernel": ((2, 3, 2, 4), {"grid": (4, 6)}),
    "rectangular-kernel": ((2, 2, 1, 5), {"grid": (3, 7)}),
    "grid-of-one": ((3, 2, 3, 3), {"grid": 1}),
    "strided": ((4, 2, 3, 3), {"grid": 6, "stride": 2}),
    "strided-unevenly": ((2, 2, 3, 3), {"grid": (4, 6), "stride": (1, 3)}),
    "stride-past-kernel": ((5, 2, 1, 1), {"grid": 6, "stride": 3}),
    "stride-is-grid": ((2, 2, 3, 3), {"grid": 4, "stride": 4}),
    "dilated": ((2, 3, 3, 3), {"grid": 7, "dilation": 2}),
    "dilated-common-divisor": ((2, 2, 3, 3), {"grid": 4, "dilation": 2}),
    "dilated-strided": ((3, 2, 3, 2), {"grid": 6, "dilation": (3, 2), "stride": 2}),
    "grouped": ((6, 2, 3, 3), {"grid": 4, "groups": 3}),
    "depthwise": ((4, 1, 3, 3), {"grid": 5, "groups": 4}),
    "depthwise-multiplied": ((6, 1, 3, 3), {"grid": 4, "groups": 3}),
    "depthwise-strided": ((4, 1, 3, 3), {"grid": 6, "groups": 4, "stride": 2}),
    "transposed": ((3, 2, 3, 3), {"grid": 4, "transposed": True}),
    "transposed-strided": ((3, 2, 4, 4), {"grid": 3, "stride": 2, "transposed": True}),
    "transposed-grouped": (
        (4, 3, 2, 2),
        {"grid": 3, "stride": 2, "groups": 2, "transposed": True},
    ),
    "transposed-output-padding": (
        (3, 2, 3, 3),
        {
            "grid": 4,
            "stride": 2,
            "padding": 1,
            "output_padding": 1,
            "transposed": True,
        },
    ),
    "one-channel-many-taps": ((1, 1, 20), {"grid": 12}),
    "one-dimensional": ((3, 4, 5), {"grid": 9}),
    "three-dimensional": ((2, 2, 2, 3, 2), {"grid": (3, 2, 4), "stride": (1, 2, 1)}),
    "transposed-one-by-one": ((3, 4, 1, 1), {"grid": 4, "transposed": True}),
    "patches": ((4, 2, 2, 2), {"grid": 6, "stride": 2, "boundary": "zeros"}),
    "one-by-one-zeros": (
        (3, 2, 1, 1),
        {"grid": 4, "stride": 2, "padding": 0, "boundary": "reflect"},
    ),
    "padding-to-one-side": ((2, 2, 3, 3), {"grid": 5, "padding": ((2, 0), (0, 2))}),
}
OTHERS = {
    "circular-rows-repeated": ((2, 2, 3, 3), {"grid": 4, "padding": 2}),
    "circular-even-kernel": ((2, 2, 2, 2), {"grid": 4, "padding": 1}),
    "circular-valid": ((2, 2, 3, 3), {"grid": 5, "padding": "valid"}),
    "circular-stride-not-dividing": ((2, 2, 3, 3), {"grid": (5, 7), "stride": 2}),
    "patches-shifted": (
        (2, 2, 2, 2),
        {"grid": 4, "stride": 2, "padding": ((1, 0), (1, 0)), "boundary": "zeros"},
    ),
    "zeros": ((3, 2, 3, 3), {"grid": 5, "boundary": "zeros"}),
    "zeros-even-kernel": ((2, 2, 4, 2), {"grid": (5, 4), "boundary": "zeros"}),
    "zeros-kernel-past-grid": ((2, 2, 5, 5), {"grid": 3, "boundary": "zeros"}),
    "zeros-wide": ((2, 2, 3, 3), {"grid": 4, "boundary": "zeros", "padding": 4}),
    "zeros-one-side": (
        (2, 2, 3, 3),
        {"grid": 5, "boundary": "zeros", "padding": ((0, 1), (2, 0))},
    ),
    "zeros-strided": ((4, 2, 3, 3), {"grid": (7, 6), "boundary": "zeros", "stride": 2}),
    "zeros-valid-dilated": (
        (2, 2, 3, 3),
        {"grid": 7, "boundary": "zeros", "padding": "valid", "dilation": (2, 3)},
    ),
    "zeros-depthwise": ((3, 1, 3, 3), {"grid": 5, "boundary": "zeros", "groups": 3}),
    "zeros-transposed": (
        (3, 2, 3, 3),
        {
            "grid": 4,
            "boundary": "zeros",
            "stride": 2,
            "padding": 1,
            "output_padding": 1,
            "transposed": True,
        },
    ),
    "zeros-transposed-dilated": (
        (2, 2, 3),
        {
            "grid": 4,
            "boundary": "zeros",
            "dilation": 3,
            "padding": 2,
            "output_padding": 2,
            "transposed": True,
        },
    ),
    "reflect": ((2, 2, 3, 3), {"grid": (5, 4), "boundary": "reflect"}),
    "reflect-strided": ((2, 3, 5), {"grid": 8, "boundary": "reflect", "stride": 3}),
    "replicate": ((2, 2, 3, 3), {"grid": (4, 5), "boundary": "replicate"}),
    "replicate-wide": ((2, 2, 3), {"grid": 4, "boundary": "replicate", "padding": 3}),
    "three-dimensional-zeros": (
        (2, 1, 2, 2, 3),
        {"grid": (2, 3, 3), "boundary": "zeros"},
    ),
}
CASES = TORUS | OTHERS
IN_TORCH = [
    case
    for case, (_, geometry) in CASES.items()
    # torch transposes zero padding only, and pads a torus once round at most
    if not (geometry.get("transposed") and geometry.get("boundary") != "zeros")
    and case not in ("grid-of-one", "kernel-past-grid")
]


def make(case, rng, dtype="float64"):
    """Weight and geometry of a named case."""
    shape, geometry = CASES[case]
    weight = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        weight = weight + 1j * rng.standard_normal(shape)
    return weight.astype(dtype), Geometry(**geometry)


def values_by_matrix(weight, geometry):
    """Every singular value of the dense matrix in double precision, descending."""
    double = "complex128" if np.iscomplexobj(weight) else "float64"
    matrix = dense_matrix(weight.astype(double), geometry)
    return np.linalg.svd(matrix, compute_uv=False)


def norm_by_matrix(weight, geometry):
    return values_by_matrix(weight, geometry)[0]


def tolerance(values, dtype):
    """What a backward stable method may be off by: a few eps of the largest value."""
    return 40 * float(np.finfo(dtype).eps) * max(1.0, float(np.max(values)))


def descending(values):
    return np.sort(np.asarray(values), axis=None)[::-1]


def basis(shape):
    """Every unit image of `shape`, one after another."""
    return np.eye(math.prod(shape)).reshape(-1, *shape)


def input_shape(weight, geometry):
    channels = weight.shape[0] if geometry.transposed else weight.shape[1]
    full = geometry.broadcast_to(weight.ndim - 2)
    times = 1 if geometry.transposed else geometry.groups
    return (channels * times, *full.grid)


def pads(weight, geometry):
    """(before, after) on each axis, read off the definition of the output size."""
    full = geometry.broadcast_to(weight.ndim - 2)
    if full.padding != "same":
        return full.padding
    found = []
    for n, k, s, d in zip(full.grid, weight.shape[2:], full.stride, full.dilation):
        columns = n * s if geometry.transposed else n
        outputs = n if geometry.transposed else -(-n // s)
        total = max((outputs - 1) * s + d * (k - 1) + 1 - columns, 0)
        found.append((total // 2, total - total // 2))
    return tuple(found)


def torch_matrix(torch, weight, geometry):
    """The layer as torch computes it, one column per unit image."""
    full, axes = geometry.broadcast_to(weight.ndim - 2), weight.ndim - 2
    kernel = torch.asarray(weight)
    x = torch.asarray(basis(input_shape(weight, geometry)))
    sides = pads(weight, geometry)
    functional = torch.nn.functional
    if geometry.transposed:
        convolve = getattr(functional, f"conv_transpose{axes}d")
        before = [a for a, _ in sides]
        y = convolve(
            x, kernel, None, full.stride, 0, 0, full.groups, full.dilation
        )  # everything, to be cropped and extended by hand
        for axis, (size, skip) in enumerate(
            zip(geometry.out_grid(weight.shape[2:]), before), start=2
        ):
            missing = max(skip + size - y.shape[axis], 0)
            shape = list(y.shape)
            shape[axis] = missing
            y = torch.cat([y, y.new_zeros(shape)], dim=axis).narrow(axis, skip, size)
    else:
        flat = [side for pair in reversed(sides) for side in pair]
        mode = "constant" if full.boundary == "zeros" else full.boundary
        y = functional.pad(x, flat, mode=mode)
        convolve = getattr(functional, f"conv{axes}d")
        y = convolve(y, kernel, None, full.stride, 0, full.dilation, full.groups)
    return y.flatten(1).T.numpy()
