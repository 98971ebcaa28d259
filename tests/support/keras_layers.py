"""Layers of Keras that someone gets wrong, and the matrices of what they do."""

import math
import os

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


def drawn(shape, dtype=None):
    """An initializer that has nothing to compile, and is in no file."""
    return 0.3 * np.random.default_rng(0).standard_normal(shape)


def layer_of(keras, name, **more):
    """The layer of a named case."""
    kind, _, options = CASES[name]
    width = {"Dense": {"units": 3}}.get(kind, {"filters": 6})
    width = {} if kind.startswith("Depthwise") else width
    return getattr(keras.layers, kind)(
        name=name, bias_initializer="normal", **width, **options, **more
    )


def matrix_of(layer, shape):
    """The matrix of a layer whose channels are last; see `matrices_of`."""
    return matrices_of({0: (layer, shape)})[0]


def matrices_of(layers, channels_first=()):
    """The matrix of each layer, by showing it every basis vector; channels go first.

    `layers` are pairs with the shape of an input, which has the channels last whatever
    the layer takes; `channels_first` are the keys of those that take them first.
    """

    def all_of_them():
        return {
            key: layer(_basis(shape, key in channels_first))
            for key, (layer, shape) in layers.items()
        }

    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        all_of_them = jax.jit(all_of_them)  # one by one they would take far longer
    return {
        key: _as_matrix(to_numpy(shown), key in channels_first)
        for key, shown in all_of_them().items()
    }


def _basis(shape, channels_first):
    """Zero, which gives the bias alone, and every unit input."""
    *sites, channels = shape
    basis = np.eye(math.prod(shape), dtype="float32").reshape(-1, channels, *sites)
    basis = np.concatenate([0 * basis[:1], basis])
    return basis if channels_first else np.moveaxis(basis, 1, -1)


def _as_matrix(shown, channels_first):
    """The matrix of what makes this of a basis."""
    shown = shown if channels_first else np.moveaxis(shown, -1, 1)
    return (shown[1:] - shown[:1]).reshape(len(shown) - 1, -1).T


def to_numpy(tensor):
    """The numbers of a tensor of any backend."""
    return np.asarray(tensor.detach() if hasattr(tensor, "detach") else tensor)
