"""What the configuration of a Keras model says of its layers, and Keras's layouts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._arrays.array import Array, namespace
from .._layer.geometry import Geometry
from .keras_sizes import FIRST, input_shapes
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
    input_shape: Sequence[Any] | None = (
        None  # with the batch; None if there are several
    )

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
            found |= self.window(role, shape) | found
            Geometry(grid=None, **found).broadcast_to(axes - 2)
        grid = self._grid(role, axes - 2)
        return {"grid": grid, **found} if grid else found

    def _grid(self, role: str, axes: int) -> tuple[int, ...] | None:
        """The sizes of a kernel's input, None if they are not known."""
        shape, config = self.input_shape, self.config
        if not isinstance(shape, (tuple, list)) or len(shape) != axes + 2:
            return None
        sites = shape[2:] if config.get("data_format") == FIRST else shape[1:-1]
        if not all(type(n) is int and n > 0 for n in sites):
            return None
        if role != "pointwise":
            return tuple(sites)
        window = self.window("depthwise", (*config["kernel_size"], 1, 1))
        geometry = Geometry(grid=tuple(sites), **window)
        return geometry.out_grid(tuple(config["kernel_size"]))

    def window(self, role: str, shape: tuple[int, ...]) -> dict[str, Any]:
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


def to_layer(role: str, array: Array) -> Array:
    """A kernel in the layout of `Layer`, from that of Keras."""
    xp, shape = namespace(array), tuple(array.shape)
    if role == "dense":  # (in, out)
        return xp.permute_dims(array, (1, 0))[..., None]
    sites = range(len(shape) - 2)
    if role == "depthwise":  # (*kernel, in, multiplier): all outputs of an input first
        turned = xp.permute_dims(array, (len(shape) - 2, len(shape) - 1, *sites))
        return xp.reshape(turned, (-1, 1, *shape[:-2]))
    # (*kernel, in, out), or (*kernel, out, in) if transposed
    return xp.permute_dims(array, (len(shape) - 1, len(shape) - 2, *sites))


def from_layer(role: str, array: Array, shape: tuple[int, ...]) -> Array:
    """A kernel of this shape in Keras's layout, from that of `Layer`."""
    xp, sites = namespace(array), range(2, len(shape))
    if role == "dense":
        return xp.permute_dims(array[..., 0], (1, 0))
    if role == "depthwise":
        array = xp.reshape(array, (*shape[-2:], *shape[:-2]))
        return xp.permute_dims(array, (*sites, 0, 1))
    return xp.permute_dims(array, (*sites, 1, 0))


def layers_of(
    model: Any, names: tuple[str, ...] = (), within: str = ""
) -> Iterator[Described]:
    """The layers of a model in their order, those of models inside it in their place.

    Layers are found in a .keras file by their class, in snake case, and a number.
    """
    used: dict[str, int] = {}
    followed = {} if names else input_shapes(_inner(model), _own_kind, _convolved)
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
            shape = _input_shape(layer)
            if "build_config" not in layer:  # as Keras 2 saves it
                shape = followed.get(str(own))
            yield Described(path, group, _own_kind(layer), config, shape)


def _own_kind(layer: Mapping[str, Any]) -> str:
    """The class of a layer, empty if it is none of Keras."""
    ours = str(layer.get("module", "keras")).partition(".")[0] == "keras"
    return layer["class_name"] if ours else ""


def _convolved(
    kind: str, config: Mapping[str, Any], grid: Sequence[int]
) -> tuple[int, ...]:
    """The grid of a convolution's output, from that of its input."""
    layer, kernel = Described((), "", kind, config), tuple(config["kernel_size"])
    role = list(layer.roles().values())[0]  # noqa: RUF015 (an error for other kinds)
    window = layer.window(role, (*kernel, 1, 1))
    return Geometry(grid=tuple(grid), **window).out_grid(kernel)


def _inner(model: Any) -> list[dict[str, Any]]:
    """The configurations inside that of a model; old Sequential models are a list."""
    config = model.get("config") if isinstance(model, dict) else None
    found = config.get("layers", []) if isinstance(config, dict) else config
    if not isinstance(found, list):
        return []
    return [layer for layer in found if isinstance(layer, dict)]


def _input_shape(layer: Mapping[str, Any]) -> list[Any] | None:
    """The shape of a layer's input, None if it is not stated or there are several."""
    built = layer.get("build_config")
    shape = built.get("input_shape") if isinstance(built, dict) else None
    if not isinstance(shape, list):
        return None
    nodes = layer.get("inbound_nodes")
    for node in nodes if isinstance(nodes, list) else []:
        used = _first_shape(node)
        if used is not None and used[1:] != shape[1:]:
            return None
    return shape


def _first_shape(node: Any) -> list[Any] | None:
    """The shape of the first tensor that a layer is called on, if the file has it."""
    try:
        shape = node["args"][0]["config"]["shape"]
    except (TypeError, LookupError):
        return None
    return shape if isinstance(shape, list) else None


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
