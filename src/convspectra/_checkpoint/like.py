"""What another file of the same network says of the geometry of its kernels."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from . import Sizes, read_network
from .folder import read_config
from .hugging_face import described, is_hugging_face
from .keras_config import Described, layers_of
from .records import Kernel
from .stored import parsing

Describe = Callable[[Kernel], Mapping[str, Any]]


def described_by(path: Path, sizes: Sizes = None) -> Describe:
    """Return what says the geometry of a kernel, as far as `path` determines it.

    A file with kernels describes those of the same shape: the one whose name is the
    same, or else what all of that shape have in common. A .json file is the
    configuration of a Keras model, and describes its layers by name, or the config.json
    of transformers or timm.
    """
    if path.suffix.lower() == ".json":
        return _by_json(read_config(path))
    network = read_network(path, sizes=sizes)
    return partial(_by_shape, network.kernels)


def _by_shape(others: Sequence[Kernel], kernel: Kernel) -> dict[str, Any]:
    alike = [x for x in others if (x.shape, x.linear) == (kernel.shape, kernel.linear)]
    named = [other for other in alike if _same_name(other.name, kernel.name)]
    first, *rest = [other.stated for other in named or alike] or [{}]
    return {
        field: value
        for field, value in first.items()
        if all(field in other and other[field] == value for other in rest)
    }


def _same_name(one: str, other: str) -> bool:
    """Whether two names are the same, but for a prefix like `module.` of one."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _by_json(config: Mapping[str, Any]) -> Describe:
    if is_hugging_face(config):
        return partial(described, config)
    with parsing("configuration of a Keras model"):
        layers = list(layers_of(config.get("model_config", config)))
        if not layers:
            raise ValueError("it describes no layers")
    return partial(_by_config, {layer.names[-1]: layer for layer in layers})


def _by_config(layers: Mapping[str, Described], kernel: Kernel) -> dict[str, Any]:
    """What the layer states that a kernel is named after, as in `NAME/kernel`."""
    parts = kernel.name.replace("/", ".").replace(":0", "").split(".")
    layer = next((layers[part] for part in reversed(parts) if part in layers), None)
    role = "" if layer is None else layer.role("kernel")
    if layer is None or role not in ("conv", "transpose"):
        return {}
    out, inputs, *taps = kernel.shape
    try:
        return layer.geometry(role, (*taps, inputs, out))
    except (ValueError, TypeError, LookupError):
        return {}  # another kernel than the one that is described
