"""Layers of Flax that someone gets wrong, and the matrices of what they do."""

import math

import numpy as np
from flax import nnx

# name: (class, shape of the input without the batch, arguments).
FLAT, IMAGE, SOLID = (7, 4), (5, 6, 4), (3, 4, 3, 4)
UP = "ConvTranspose"
CASES = {
    "same": ("Conv", IMAGE, {"strides": 2}),
    "same-dilated": ("Conv", IMAGE, {"strides": (3, 1), "kernel_dilation": (1, 2)}),
    "same-lower": ("Conv", IMAGE, {"strides": 2, "padding": "same_lower"}),
    "valid": ("Conv", IMAGE, {"padding": "VALID", "kernel_dilation": 2}),
    "causal": ("Conv", FLAT, {"padding": "CAUSAL", "kernel_dilation": 2}),
    "causal-strided": ("Conv", FLAT, {"padding": "CAUSAL", "strides": 2}),
    "circular": ("Conv", IMAGE, {"padding": "CIRCULAR", "feature_group_count": 2}),
    "circular-strided": (
        "Conv",
        IMAGE,
        {"padding": "CIRCULAR", "strides": 2, "kernel_dilation": (2, 1)},
    ),
    "reflect": ("Conv", IMAGE, {"padding": "REFLECT", "strides": (1, 2)}),
    "reflect-dilated": ("Conv", FLAT, {"padding": "REFLECT", "kernel_dilation": 2}),
    "number": ("Conv", IMAGE, {"padding": 2, "feature_group_count": 4}),
    "pairs": ("Conv", IMAGE, {"padding": ((1, 2), 0)}),
    "solid": ("Conv", SOLID, {"strides": (1, 2, 1)}),
    "dilated-input": (
        "Conv",
        IMAGE,
        {"input_dilation": (2, 3), "padding": ((1, 2), (0, 3))},
    ),
    "dilated-input-and-kernel": (
        "Conv",
        FLAT,
        {"input_dilation": 2, "kernel_dilation": 3, "padding": ((5, 1),)},
    ),
    "up-same": (UP, IMAGE, {"strides": (2, 3)}),
    "up-same-dilated": (UP, FLAT, {"strides": 2, "kernel_dilation": 2}),
    "up-valid": (UP, IMAGE, {"strides": (2, 3), "padding": "VALID"}),
    "up-number": (UP, FLAT, {"strides": 2, "padding": 1}),
    "up-pairs": (UP, IMAGE, {"padding": ((1, 2), (0, 1)), "strides": (2, 1)}),
    "up-dilated": (UP, IMAGE, {"kernel_dilation": 2, "padding": "VALID"}),
    "up-transposed": (UP, IMAGE, {"strides": (2, 2), "transpose_kernel": True}),
    "up-solid": (UP, SOLID, {"strides": (1, 2, 1)}),
}
KERNELS = {1: (3,), 2: (3, 2), 3: (2, 1, 2)}  # by the number of axes


def drawn(key, shape, dtype=np.float32, out_sharding=None):
    """An initializer that has nothing to compile."""
    return (np.random.default_rng(0).standard_normal(shape) / 4).astype(dtype)


def module_of(name):
    """The layer of a named case, of nnx, with a bias."""
    kind, shape, options = CASES[name]
    kernel, inits = KERNELS[len(shape) - 1], {"kernel_init": drawn, "bias_init": drawn}
    rngs = nnx.Rngs(0)
    return getattr(nnx, kind)(shape[-1], 8, kernel, **options, **inits, rngs=rngs)


def basis(shape):
    """Zero, which gives the bias alone, and every unit input; channels go last."""
    *sites, channels = shape
    units = np.eye(math.prod(shape), dtype="float32").reshape(-1, channels, *sites)
    return np.moveaxis(np.concatenate([0 * units[:1], units]), 1, -1)


def as_matrix(shown):
    """The matrix of a layer from what it makes of a basis; channels go first."""
    shown = np.moveaxis(np.asarray(shown), -1, 1)
    return (shown[1:] - shown[:1]).reshape(len(shown) - 1, -1).T
