"""Kernels of TensorFlow's SavedModels: variables, and what the graph says of them.

A frozen graph is read too: it is one file, with constants in the place of variables.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._layer.geometry import Geometry
from .keras_config import by_name, layer_shape, to_layer
from .protobuf_wire import Message, first, message
from .records import Kernel, Network
from .saved_model_graph import Cut, Found, Node, Use, look_through
from .stored import Refusal, parsing
from .tensor_bundle import Constant, Variable, read_bundle
from .tflite_geometry import SAME, VALID, grid_of, transposed_padding

WHAT = "SavedModel"
LARGEST = 2**28  # bytes of the graph
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"  # of the keys of variables
NO_COPY = "is in a SavedModel or a frozen graph, of which no copy is made"
MISSING = "is not in its shards"
ROLES = {
    **{"Conv2D": "conv", "Conv3D": "conv", "DepthwiseConv2dNative": "depthwise"},
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), "transpose"),
    "MatMul": "dense",
}


def read_saved_model(path: Path) -> Network:
    """The variables that convolutions of the graph read, and what these state.

    In a graph without any, all variables with at least 3 axes are kernels.
    """
    size = path.stat().st_size
    if size > LARGEST:
        raise Refusal(f"The graph of a {WHAT} must have at most {LARGEST} bytes.")
    with parsing(WHAT):
        data = memoryview(path.read_bytes())
        found = look_through(_graph(message(data), data))
        variables = _variables(path, found)
        kernels: dict[str, Kernel] = {}
        skipped: dict[str, str] = dict(found.unread)
        used: set[str] = set()
        distinct = _distinct(found, variables, skipped)
        counts = Counter(found.names.get(use.variable) for use, _, _ in distinct)
        for index, (use, weight, stated) in enumerate(distinct):
            name = found.names.get(use.variable, "")
            used.add(found.keys.get(use.variable, ""))
            name = name if counts[name] == 1 else f"{name}@{index}"
            shape = _shape(use.node, weight)
            kernels[name] = _kernel(name, weight, shape, ROLES[use.node.op], stated)
        unread = {found.keys.get(name, "") for name in found.unread_by}
        readers = _readers(found)
        for key, variable in variables.items():
            if key in used:
                continue
            name = key.removesuffix(SUFFIX)
            reason = (
                variable if isinstance(variable, str) else variable.entry.unsuitable
            )
            if not reason and (used or key in unread):
                reason = readers.get(key, "is read by no convolution of the graph")
            if isinstance(variable, str) or reason:
                skipped[name] = reason
            else:
                shape = variable.entry.shape
                kernels[name] = _kernel(name, variable, shape, "conv", {})
    return Network(tuple(kernels.values()), tuple(skipped.items()), _refuse)


def _graph(model: Message, data: memoryview) -> memoryview | int | None:
    """The graph of a SavedModel, or the file itself if that is a graph.

    A graph begins with its nodes, which are messages, a model with a number.
    """
    if isinstance(first(model, 1), memoryview):
        return data
    return first(message(first(model, 2)), 2)


def files_of_variables(path: Path) -> list[Path]:
    """The index and the shards of a SavedModel; a frozen graph has none."""
    prefix = _prefix(path)
    return sorted(prefix.parent.glob(f"{prefix.name}.*"))


def _prefix(path: Path) -> Path:
    """How the paths of the index and of the shards begin."""
    return path.parent / "variables" / "variables"


def _variables(path: Path, found: Found) -> dict[str, Variable | str]:
    prefix = _prefix(path)
    if prefix.with_name("variables.index").is_file():
        return read_bundle(prefix)
    if found.constants:
        return {}
    raise Refusal(
        f"A {WHAT} must have variables/variables.index beside it, got none, and no "
        "constants that convolutions read. Fetch it again."
    )


def _readers(found: Found) -> dict[str, str]:
    """Of variables that layers read: why they are no kernels if these are skipped."""
    readers = {use.variable: use.node.name for use in found.uses} | found.unread_by
    return {
        found.keys.get(name, ""): f"is read by {node!a}, which is skipped"
        for name, node in readers.items()
    }


def _distinct(
    found: Found, variables: Mapping[str, Variable | str], skipped: dict[str, str]
) -> list[tuple[Use, Variable | Constant, dict[str, Any]]]:
    """Uses that differ, with weight and geometry; others are skipped, with why."""
    distinct: dict[Any, tuple[Use, Variable | Constant, dict[str, Any]]] = {}
    constants = {name: node.constant() for name, node in found.constants.items()}
    for use in found.uses:
        key = found.keys.get(use.variable, "")
        weight = constants.get(use.variable) or variables.get(key, MISSING)
        try:
            if isinstance(weight, str):
                raise ValueError(f"its weight {weight}")
            shape = _shape(use.node, weight)
            stated = _stated(use.node, use.sizes, shape)
            if use.cut is not None:
                kernel = layer_shape(ROLES[use.node.op], shape)[2:]
                stated = _on_whole_grid(use.cut, kernel, stated)
        except (ValueError, TypeError) as error:
            skipped[use.node.name] = f"is {use.node.op}: {error}".rstrip(".")
        else:
            same = use.variable, use.node.op, tuple(sorted(stated.items()))
            distinct.setdefault(same, (use, weight, stated))
    return list(distinct.values())


def _on_whole_grid(
    cut: Cut, kernel: tuple[int, ...], stated: Mapping[str, Any]
) -> dict[str, Any]:
    """The geometry of a layer on the whole grid, from that on its sub-grids."""
    if isinstance(cut.blocks, str):
        raise ValueError(cut.blocks)
    return cut.blocks.whole(kernel, stated, grid_of(cut.sizes, len(kernel)))


def _shape(node: Node, weight: Variable | Constant) -> tuple[int, ...]:
    """The shape of a weight as a node reads it: on one axis it gets another."""
    shape = weight.entry.shape
    return (1, *shape) if node.op == "Conv2D" and len(shape) == 3 else shape


def _stated(
    node: Node, sizes: list[int] | None, shape: tuple[int, ...]
) -> dict[str, Any]:
    """The geometry that a convolution states, as arguments of `Geometry`."""
    role = ROLES[node.op]
    axes = 3 if node.op.startswith("Conv3D") else 2
    if 0 in shape or len(shape) != (2 if role == "dense" else axes + 2):
        raise ValueError(f"its weight has the shape {shape}")
    if role == "dense":
        if node.is_true("transpose_b") or node.is_true("transpose_a"):
            raise ValueError("it is transposed")
        return by_name(role, shape)
    places = (
        slice(2, None) if node.text("data_format").startswith("NC") else slice(1, -1)
    )
    at_channels = 1 if places.start == 2 else -1
    stated: dict[str, Any] = {
        "stride": tuple(node.integers("strides")[places]),
        "dilation": tuple(node.integers("dilations")[places]) or (1,) * axes,
        "boundary": "zeros",
        "transposed": role == "transpose",
    }
    kernel = layer_shape(role, shape)
    if sizes is not None and len(sizes) != axes + 2:
        raise ValueError(f"its input has {len(sizes)} axes")
    channels = sizes[at_channels] if sizes else 0
    if role != "conv":
        stated["groups"] = shape[-2] if role == "depthwise" else 1
    elif channels:
        if channels % kernel[1]:
            raise ValueError(
                f"its weight of shape {shape} does not fit {channels} channels"
            )
        stated["groups"] = channels // kernel[1]
    grid = tuple(sizes[places]) if sizes else ()
    if grid and all(grid):
        stated["grid"] = grid
    Geometry(**{"grid": None, **stated})
    stated |= _padding(node, kernel[2:], stated, places)
    whole = Geometry(**{"grid": None, **stated})
    if "grid" in stated:
        whole.resolve_axes(kernel[2:])
    return stated


def _padding(
    node: Node, kernel: tuple[int, ...], stated: Mapping[str, Any], places: slice
) -> dict[str, Any]:
    kind = node.text("padding")
    if kind == "EXPLICIT":
        amounts = node.integers("explicit_paddings")
        if stated["transposed"]:
            raise ValueError("its padding is explicit")
        return {"padding": tuple([*zip(amounts[::2], amounts[1::2])][places])}
    if kind not in ("SAME", "VALID"):
        raise ValueError(f"its padding is {kind[:100]!r}")
    if not stated["transposed"]:
        return {"padding": kind.lower()}
    sizes = node.sizes()
    out = tuple(sizes[places]) if sizes and all(sizes[places]) else None
    return transposed_padding(SAME if kind == "SAME" else VALID, kernel, stated, out)


def _kernel(
    name: str,
    weight: Variable | Constant,
    shape: tuple[int, ...],
    role: str,
    stated: Mapping[str, Any],
) -> Kernel:
    def load() -> np.ndarray:
        return np.array(to_layer(role, weight.load().reshape(shape)), order="C")

    return Kernel(
        name=name,
        shape=layer_shape(role, shape),
        dtype=weight.entry.dtype,
        stated=stated,
        load=load,
        linear=role == "dense",
        not_writable_because=NO_COPY,
    )


def _refuse(target: Path, _: Mapping[str, np.ndarray]) -> None:
    raise ValueError(
        f"{str(target)!r} cannot be written: a {WHAT} is several files. Bound the "
        "model itself, and save it again."
    )
