"""What the configuration of a Keras model says of its layers, and Keras's layouts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._layer.geometry import Geometry
from .stored import Refusal

CONVOLUTION = re.compile(r"(Depthwise|Separable|)Conv(?:olution)?([123])D(Transpose|)")
MOST_PATH = 1000  # characters: paths through many models could outgrow the file


@dataclass(frozen=True, slots=True)
class Described:
    """A layer in the configuration of a model."""

    names: tuple[str, ...]  # of the models that it is in, and its own
    group: str  # its path in a .keras file, which names layers by their classes
    kind: str  # its class, empty if that is none of Keras
    config: Mapping[str, Any]

    def roles(self) -> dict[str, str]:
        """Which weights are kernels, in the order of a .keras file, and of what."""
        if self.kind == "Dense":
            return {"kernel": "dense"}
        found = CONVOLUTION.fullmatch(self.kind)
        if not found:
            return {}
        if found[1] == "Separable":
            return {"depthwise_kernel": "depthwise", "pointwise_kernel": "pointwise"}
        if found[1]:
            return {"kernel": "depthwise"}
        return {"kernel": "transpose" if found[3] else "conv"}

    def role(self, weight: str) -> str:
        """What a weight is the kernel of, empty if of nothing."""
        if self.kind.startswith("Depthwise") and weight == "depthwise_kernel":
            weight = "kernel"  # as Keras 3 calls it
        return self.roles().get(weight, "")

    def geometry(self, role: str, shape: tuple[int, ...]) -> dict[str, Any]:
        """What the configuration states, as arguments of `Geometry`.

        Raises ValueError or TypeError if that is not clear, or not of this shape.
        """
        known = CONVOLUTION.fullmatch(self.kind)
        axes = int(known[2]) + 2 if known else 2
        stated = (
            ("kernel_size", "conv transpose depthwise", list(shape[:-2])),
            ("filters", "conv pointwise", shape[-1]),
            ("filters", "transpose", shape[-2]),
            ("depth_multiplier", "depthwise", shape[-1]),
            ("units", "dense", shape[-1]),
        )
        for key, where, size in stated:
            if role in where.split() and self.config.get(key, size) != size:
                raise ValueError(f"`{key}` is not {size}")
        if len(shape) != axes:
            raise ValueError(f"there are not {axes} axes")
        found = by_name(role, shape)
        if role in ("conv", "transpose", "depthwise"):
            found |= self._window(role, shape) | found
            Geometry(grid=None, **found).broadcast_to(axes - 2)
        return found

    def _window(self, role: str, shape: tuple[int, ...]) -> dict[str, Any]:
        """Stride, dilation, groups and padding."""
        found: dict[str, Any] = {"groups": 1, "boundary": "zeros"}
        keys = {"stride": "strides", "dilation": "dilation_rate", "groups": "groups"}
        for ours, theirs in keys.items():
            value = self.config.get(theirs)
            if value is not None:
                found[ours] = tuple(value) if isinstance(value, list) else value
        padding, kernel = self.config["padding"], shape[:-2]
        if role == "transpose":
            extra = self.config.get("output_padding")
            return found | _transposed(found, padding, extra, kernel)
        if padding == "causal":  # on one axis
            before = _spread(found.get("dilation", 1), 1)[0] * (kernel[0] - 1)
            return found | {"padding": ((before, 0),)}
        return found | {"padding": padding}


def by_name(role: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """What a kernel's role alone says of its geometry."""
    if role == "dense":
        return {"grid": 1, "groups": 1, "padding": "valid", "boundary": "zeros"}
    if role == "depthwise":
        return {"groups": shape[-2]}
    if role == "pointwise":
        plain = {"stride": 1, "dilation": 1, "groups": 1}
        return plain | {"padding": "valid", "boundary": "zeros"}
    return {}


def layer_shape(role: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a kernel in the layout of `Layer`, from that in Keras's."""
    if role == "dense":
        return (shape[1], shape[0], 1)
    if role == "depthwise":
        return (shape[-2] * shape[-1], 1, *shape[:-2])
    return (shape[-1], shape[-2], *shape[:-2])


def to_layer(role: str, array: np.ndarray) -> np.ndarray:
    """A kernel in the layout of `Layer`, from that of Keras."""
    if role == "dense":  # (in, out)
        return array.T[..., None]
    turned = np.moveaxis(array, (-1, -2), (0, 1))
    if role == "depthwise":  # (*kernel, in, multiplier): all outputs of an input first
        return np.swapaxes(turned, 0, 1).reshape(-1, 1, *array.shape[:-2])
    return turned  # (*kernel, in, out), or (*kernel, out, in) if transposed


def from_layer(role: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A kernel of this shape in Keras's layout, from that of `Layer`."""
    if role == "dense":
        return array[..., 0].T
    if role == "depthwise":
        array = array.reshape(*shape[-2:], *shape[:-2])
        return np.moveaxis(array, (0, 1), (-2, -1))
    return np.moveaxis(array, (0, 1), (-1, -2))


def layers_of(
    model: Any, names: tuple[str, ...] = (), within: str = ""
) -> Iterator[Described]:
    """The layers of a model in their order, those of models inside it in their place.

    Layers are found in a .keras file by their class, in snake case, and a number.
    """
    used: dict[str, int] = {}
    for layer in _inner(model):
        config, kind = layer.get("config"), layer.get("class_name")
        if not isinstance(config, (dict, list)) or not isinstance(kind, str):
            raise Refusal("A layer's configuration must be an object with a class.")
        own = config.get("name") if isinstance(config, dict) else layer.get("name")
        path = (*names, str(own))
        snake = _snake_case(kind)
        count = used[snake] = used.get(snake, -1) + 1
        group = f"{within}layers/{snake}" + (f"_{count}" if count else "")
        if len(group) + sum(map(len, path)) > MOST_PATH:
            raise Refusal("The models in a configuration must not be that deep.")
        if _inner(layer):
            yield from layers_of(layer, path, f"{group}/")
        elif isinstance(config, dict):
            ours = str(layer.get("module", "keras")).partition(".")[0] == "keras"
            yield Described(path, group, kind if ours else "", config)


def _inner(model: Any) -> list[dict[str, Any]]:
    """The configurations inside that of a model; old Sequential models are a list."""
    config = model.get("config") if isinstance(model, dict) else None
    found = config.get("layers", []) if isinstance(config, dict) else config
    if not isinstance(found, list):
        return []
    return [layer for layer in found if isinstance(layer, dict)]


def _snake_case(kind: str) -> str:
    """Conv2DTranspose -> conv2d_transpose, as Keras has it."""
    kind = re.sub(r"\W+", "", kind)
    kind = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", kind)
    return re.sub("([a-z])([A-Z])", r"\1_\2", kind).lower()


def _spread(value: Any, axes: int) -> Sequence[int]:
    return value if isinstance(value, (tuple, list)) else (value,) * axes


def _transposed(
    found: dict[str, Any], padding: Any, extra: Any, kernel: tuple[int, ...]
) -> dict[str, Any]:
    """The padding of a transposed layer, whose outputs Keras counts in its own way."""
    if padding not in ("same", "valid"):
        raise ValueError(f"`padding` is {padding!r}")
    if padding == "same" and extra is None:
        return {"transposed": True, "padding": "same"}
    axes = len(kernel)
    stride, dilation = (_spread(found.get(k, 1), axes) for k in ("stride", "dilation"))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    # What is cut off from the full output of (grid - 1) * stride + reach.
    if extra is None:
        cut = [min(r - s, 0) for r, s in zip(reach, stride)]
    else:
        ends = [r - r % 2 if padding == "same" else 0 for r in reach]
        cut = [end - more for end, more in zip(ends, _spread(extra, axes))]
    return {
        "transposed": True,
        "padding": tuple((c // 2, c - c // 2) if c > 0 else (0, 0) for c in cut),
        "output_padding": tuple(max(-c, 0) for c in cut),
    }
