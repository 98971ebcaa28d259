"""Kernels of TensorFlow's SavedModels: variables, and what the graph says of them."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._layer.geometry import Geometry
from .keras_config import by_name, layer_shape, to_layer
from .protobuf_wire import first, message
from .records import Kernel, Network
from .saved_model_graph import Node, Use, look_through
from .stored import Refusal, parsing
from .tensor_bundle import Variable, read_bundle
from .tflite_geometry import SAME, VALID, transposed_padding

WHAT = "SavedModel"
LARGEST = 2**28  # bytes of the graph
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"  # of the keys of variables
NO_COPY = "is in a SavedModel, of which no copy is made"
ROLES = {
    **{"Conv2D": "conv", "Conv3D": "conv", "Conv2DBackpropInput": "transpose"},
    **{"DepthwiseConv2dNative": "depthwise", "MatMul": "dense"},
}


def read_saved_model(path: Path) -> Network:
    """The variables that convolutions of the graph read, and what these state.

    In a graph without any, all variables with at least 3 axes are kernels.
    """
    size = path.stat().st_size
    if size > LARGEST:
        raise Refusal(f"The graph of a {WHAT} must have at most {LARGEST} bytes.")
    prefix = path.parent / "variables" / "variables"
    if not prefix.with_name("variables.index").is_file():
        raise Refusal(
            f"A {WHAT} must have variables/variables.index beside it, got none. Fetch "
            "it again, or name a model that is not frozen."
        )
    with parsing(WHAT):
        model = message(memoryview(path.read_bytes()))
        graph = first(message(first(model, 2)), 2)
        found = look_through(graph)
        variables = read_bundle(prefix)
        kernels: dict[str, Kernel] = {}
        skipped: dict[str, str] = {}
        used: set[str] = set()
        distinct = _distinct(found.uses, found.keys, variables, skipped)
        counts = Counter(found.names.get(use.variable) for use, _ in distinct.values())
        for index, (use, stated) in enumerate(distinct.values()):
            key, name = found.keys[use.variable], found.names.get(use.variable, "")
            used.add(key)
            name = name if counts[name] == 1 else f"{name}@{index}"
            variable = variables[key]
            if isinstance(variable, Variable):
                shape = _shape(use.node, variable)
                role = ROLES[use.node.op]
                kernels[name] = _kernel(name, variable, shape, role, stated)
        for key, variable in variables.items():
            if key in used:
                continue
            name = key.removesuffix(SUFFIX)
            reason = (
                variable if isinstance(variable, str) else variable.entry.unsuitable
            )
            if not reason and used:
                reason = "is read by no convolution of the graph"
            if isinstance(variable, str) or reason:
                skipped[name] = reason
            else:
                shape = variable.entry.shape
                kernels[name] = _kernel(name, variable, shape, "conv", {})
    return Network(tuple(kernels.values()), tuple(skipped.items()), _refuse)


def _distinct(
    uses: list[Use],
    keys: Mapping[str, str],
    variables: Mapping[str, Variable | str],
    skipped: dict[str, str],
) -> dict[Any, tuple[Use, dict[str, Any]]]:
    """Uses that differ, each with its geometry; others are skipped, with why."""
    found: dict[Any, tuple[Use, dict[str, Any]]] = {}
    for use in uses:
        variable = variables.get(keys.get(use.variable, ""), "is not in its shards")
        try:
            if isinstance(variable, str):
                raise ValueError(f"its weight {variable}")
            stated = _stated(use.node, use.sizes, _shape(use.node, variable))
        except (ValueError, TypeError) as error:
            skipped[use.node.name] = f"is {use.node.op}: {error}".rstrip(".")
        else:
            key = use.variable, use.node.op, tuple(sorted(stated.items()))
            found.setdefault(key, (use, stated))
    return found


def _shape(node: Node, variable: Variable) -> tuple[int, ...]:
    """The shape of a weight as a node reads it: on one axis it gets another."""
    shape = variable.entry.shape
    return (1, *shape) if node.op == "Conv2D" and len(shape) == 3 else shape


def _stated(
    node: Node, sizes: list[int] | None, shape: tuple[int, ...]
) -> dict[str, Any]:
    """The geometry that a convolution states, as arguments of `Geometry`."""
    role = ROLES[node.op]
    axes = 3 if node.op == "Conv3D" else 2
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
    if any(n > 1 for n in stated["dilation"]):
        raise ValueError("it is dilated")
    return transposed_padding(SAME if kind == "SAME" else VALID, kernel, stated, out)


def _kernel(
    name: str,
    variable: Variable,
    shape: tuple[int, ...],
    role: str,
    stated: Mapping[str, Any],
) -> Kernel:
    def load() -> np.ndarray:
        return np.array(to_layer(role, variable.load().reshape(shape)), order="C")

    return Kernel(
        name=name,
        shape=layer_shape(role, shape),
        dtype=variable.entry.dtype,
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
