"""Layers of Keras that someone gets wrong, and the matrices of what they do."""

import math

import numpy as np

# name: (class, shape of the input, arguments). The input is that of Keras, but for the
# batch: (*sites, channels).
FLAT, IMAGE, SOLID = (7, 4), (5, 6, 4), (3, 4, 3, 2)
TRANSPOSE = "Conv2DTranspose"
CASES = {
    "same": ("Conv2D", IMAGE, {"kernel_size": 3, "padding": "same"}),
    "same-strided": (
        "Conv2D",
        IMAGE,
        {"kernel_size": (4, 3), "strides": (3, 2), "padding": "same"},
    ),
    "valid-strided": ("Conv2D", IMAGE, {"kernel_size": (2, 3), "strides": 2}),
    "dilated": (
        "Conv2D",
        IMAGE,
        {"kernel_size": 3, "dilation_rate": (2, 1), "padding": "same"},
    ),
    "grouped": ("Conv2D", IMAGE, {"kernel_size": 3, "groups": 2}),
    "causal": (
        "Conv1D",
        FLAT,
        {"kernel_size": 3, "dilation_rate": 2, "padding": "causal"},
    ),
    "causal-strided": (
        "Conv1D",
        FLAT,
        {"kernel_size": 4, "strides": 2, "padding": "causal"},
    ),
    "solid": ("Conv3D", SOLID, {"kernel_size": 2, "padding": "same"}),
    "up-same": (TRANSPOSE, IMAGE, {"kernel_size": 4, "strides": 2, "padding": "same"}),
    "up-same-odd": (
        TRANSPOSE,
        IMAGE,
        {"kernel_size": 3, "strides": (2, 3), "padding": "same"},
    ),
    "up-same-small": (
        TRANSPOSE,
        IMAGE,
        {"kernel_size": 2, "strides": 3, "padding": "same"},
    ),
    "up-valid": (TRANSPOSE, IMAGE, {"kernel_size": 3, "strides": 2}),
    "up-valid-small": (TRANSPOSE, IMAGE, {"kernel_size": 2, "strides": 3}),
    "up-same-more": (
        TRANSPOSE,
        IMAGE,
        {"kernel_size": 5, "strides": 3, "padding": "same", "output_padding": (1, 2)},
    ),
    "up-same-more-small": (
        TRANSPOSE,
        IMAGE,
        {"kernel_size": 2, "strides": 3, "padding": "same", "output_padding": 2},
    ),
    "up-same-none": (
        TRANSPOSE,
        IMAGE,
        {"kernel_size": 3, "strides": 2, "padding": "same", "output_padding": 0},
    ),
    "up-valid-more": (
        TRANSPOSE,
        IMAGE,
        {"kernel_size": 3, "strides": 2, "output_padding": 1},
    ),
    "up-dilated": (TRANSPOSE, IMAGE, {"kernel_size": 3, "dilation_rate": 2}),
    "up-dilated-more": (
        TRANSPOSE,
        IMAGE,
        {"kernel_size": 3, "dilation_rate": 2, "padding": "same", "output_padding": 0},
    ),
    "up-flat": (
        "Conv1DTranspose",
        FLAT,
        {"kernel_size": 3, "strides": 2, "padding": "same"},
    ),
    "up-solid": ("Conv3DTranspose", SOLID, {"kernel_size": 2, "strides": 2}),
    "depthwise": (
        "DepthwiseConv2D",
        IMAGE,
        {"kernel_size": 3, "strides": 2, "depth_multiplier": 2, "padding": "same"},
    ),
    "depthwise-flat": ("DepthwiseConv1D", FLAT, {"kernel_size": 2}),
    "separable": (
        "SeparableConv2D",
        IMAGE,
        {"kernel_size": 3, "strides": 2, "depth_multiplier": 3, "padding": "same"},
    ),
    "separable-flat": ("SeparableConv1D", FLAT, {"kernel_size": 3}),
    "dense": ("Dense", (4,), {}),
}


def layer_of(keras, name, **more):
    """The layer of a named case."""
    kind, _, options = CASES[name]
    width = {"Dense": {"units": 3}}.get(kind, {"filters": 6})
    width = {} if kind.startswith("Depthwise") else width
    return getattr(keras.layers, kind)(
        name=name, bias_initializer="normal", **width, **options, **more
    )


def matrix_of(layer, shape, *, channels_first=False):
    """The matrix of a layer, by showing it every basis vector; channels go first.

    The shape is that of the input with the channels last, whatever the layer takes.
    """
    *sites, channels = shape
    basis = np.eye(math.prod(shape), dtype="float32").reshape(-1, channels, *sites)
    basis = np.concatenate([0 * basis[:1], basis])  # with what the bias alone gives
    basis = basis if channels_first else np.moveaxis(basis, 1, -1)
    shown = to_numpy(layer(basis))
    shown = shown if channels_first else np.moveaxis(shown, -1, 1)
    return (shown[1:] - shown[:1]).reshape(len(basis) - 1, -1).T


def to_numpy(tensor):
    """The numbers of a tensor of any backend."""
    return np.asarray(tensor.detach() if hasattr(tensor, "detach") else tensor)
