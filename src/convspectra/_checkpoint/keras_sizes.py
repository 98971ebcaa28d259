"""The sizes of what each layer of a Keras model reads, followed from its input on.

Files of Keras 2 state the sizes of the input alone.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

Config = Mapping[str, Any]
Shape = list[Any]  # with the batch; None for a size that is not known
Convolved = Callable[[str, Config, Sequence[int]], Sequence[int]]

FIRST = "channels_first"
# Layers that change no sizes, and those that join arrays of the same sizes.
SAME = (
    *("InputLayer", "BatchNormalization", "LayerNormalization", "Activation"),
    *("ReLU", "LeakyReLU", "PReLU", "ELU", "Softmax", "ThresholdedReLU", "Dropout"),
    *("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianNoise"),
    *("GaussianDropout", "AlphaDropout", "ActivityRegularization", "Rescaling"),
)
JOINS = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum")
POOLING = re.compile(r"(?:Max|Average)Pooling[123]D")
MARGINS = re.compile(r"(ZeroPadding|Cropping|UpSampling)[123]D")
UNCLEAR = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
LARGEST = 2**31  # of a size, so that no product of them exhausts the memory


def input_shapes(
    layers: Sequence[Config], kind_of: Callable[[Config], str], convolved: Convolved
) -> dict[str, Shape]:
    """The shapes of what the layers of a model read, by their names.

    A layer whose input does not follow is not there. `kind_of` gives the class of a
    layer, and `convolved` the grid of a convolution's output, from its class, its
    configuration and the grid of its input.
    """
    read: dict[str, Shape] = {}
    given: dict[str, Shape] = {}
    last = ""
    for layer in layers:
        with suppress(*UNCLEAR):
            config = layer["config"]
            before, last = last, config["name"]
            nodes = layer.get("inbound_nodes")
            sources = _sources(nodes) if nodes is not None else [before] * bool(before)
            shapes = [given[source] for source in sources]
            stated = config.get("batch_input_shape", config.get("batch_shape"))
            if not shapes and isinstance(stated, list):
                shapes = [stated]
            read[last] = _checked(shapes[0])
            found = _output(kind_of(layer), config, shapes, convolved)
            given[last] = _checked(found)
    return read


def _sources(nodes: Any) -> list[str]:
    """The layers that one is called on; of several calls nothing follows."""
    if not nodes:
        return []
    (call,) = nodes
    return [source for source, *_ in call]


def _output(
    kind: str, config: Config, shapes: list[Shape], convolved: Convolved
) -> Shape:
    """The shape of what a layer gives; raises `UNCLEAR` where it does not follow."""
    if (kind in SAME and len(shapes) == 1) or (
        kind in JOINS and all(shape == shapes[0] for shape in shapes)
    ):
        return shapes[0]
    if kind == "Concatenate":
        return _concatenated(shapes, config.get("axis", -1))
    (shape,) = shapes
    first = config.get("data_format") == FIRST
    channels, grid = (shape[1], shape[2:]) if first else (shape[-1], shape[1:-1])
    if POOLING.fullmatch(kind):
        grid = _pooled(config, grid)
    elif MARGINS.fullmatch(kind):
        grid = _with_margins(kind, config, grid)
    else:
        grid = convolved(kind, config, grid)
        if kind.startswith("Depthwise"):
            channels *= _each(config.get("depth_multiplier", 1), 1)[0]
        else:
            channels = config["filters"]
    return [shape[0], channels, *grid] if first else [shape[0], *grid, channels]


def _concatenated(shapes: list[Shape], axis: int) -> Shape:
    found, axis = list(shapes[0]), axis % len(shapes[0])
    for shape in shapes[1:]:
        if shape[:axis] != found[:axis] or shape[axis + 1 :] != found[axis + 1 :]:
            raise ValueError("arrays of other sizes cannot be joined")
        found[axis] += shape[axis]
    return found


def _pooled(config: Config, grid: Shape) -> Shape:
    window = _each(config["pool_size"], len(grid))
    steps = _each(config.get("strides") or window, len(grid))
    if config["padding"] not in ("same", "valid"):
        raise ValueError("unknown padding")
    cut = [0] * len(grid) if config["padding"] == "same" else [w - 1 for w in window]
    return [-(-(n - c) // s) for n, c, s in zip(grid, cut, steps, strict=True)]


def _with_margins(kind: str, config: Config, grid: Shape) -> Shape:
    if kind.startswith("UpSampling"):
        return [n * s for n, s in zip(grid, _each(config["size"], len(grid)))]
    sign = 1 if kind.startswith("Zero") else -1
    margins = config["padding" if sign > 0 else "cropping"]
    if len(grid) == 1 and isinstance(margins, (list, tuple)):
        margins = [margins]
    several = isinstance(margins, (list, tuple))
    pairs = [_each(pair, 2) for pair in (margins if several else [margins] * len(grid))]
    return [n + sign * sum(pair) for n, pair in zip(grid, pairs, strict=True)]


def _checked(shape: Shape) -> Shape:
    if not all(n is None or (type(n) is int and 0 < n < LARGEST) for n in shape):
        raise ValueError("a size must be a positive number")
    return shape


def _each(value: Any, count: int) -> list[int]:
    """A whole number for each axis."""
    found = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if not all(type(n) is int and 0 <= n < LARGEST for n in found):
        raise ValueError("whole numbers are needed")
    return found
