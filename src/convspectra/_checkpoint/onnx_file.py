"""Kernels of ONNX models, by the nodes of the graph; no runtime is needed."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .._base import require
from .onnx_advice import free_sizes, lost_sizes
from .onnx_geometry import (
    Inferred,
    has_convolutions,
    resize,
    sizes_in,
    without_weights,
)
from .onnx_layers import GraphLayer, layers_of
from .onnx_scopes import Scope, scopes, short
from .onnx_weights import LARGEST, Stored, copy_model
from .records import LINEAR, Kernel, Network
from .stored import Refusal, parsing

FAILED = "failed or went beyond its limits, so that sizes of inputs are not known"

# What exporters call a weight that has no name in the program.
NUMBERED = re.compile(r"(onnx::\w+?_|\w+\.)?[0-9]+")


def read_onnx(path: Path, sizes: tuple[int, ...] | None = None) -> Network:
    """Find the layers of an ONNX model.

    Every Conv, ConvTranspose, Gemm and MatMul whose weight is stored in the file, or in
    one beside it, is a kernel, also in the bodies of If, Loop and Scan. It has the name
    of that weight; if the weight serves layers that differ, with the name of the node
    after it.

    Parameters
    ----------
    path : Path
    sizes : tuple of int, optional
        Of the network's input, mostly (batch, channels, *grid): instead of those that
        the file states or leaves open.
    """
    model, inferred, found_scopes = opened(path, sizes, needs_sizes=has_convolutions)
    with parsing(".onnx file"):
        found, others = layers_of(model, found_scopes)
        failed = [("shape inference", FAILED)] if inferred.failed else []
        taken: set[str] = set()
        named = _named(found, taken)
        skipped = [
            (_distinct(label, index, taken), why)
            for index, (label, why) in enumerate([*failed, *others])
        ]
    kernels = tuple(kernel for kernel, _ in named)
    unsized = [kernel for kernel in kernels if "grid" not in kernel.stated]
    advice = []
    if unsized and sizes is None:
        advice.append(free_sizes(model.graph, _channels(unsized[0])))
    if unsized:
        advice.append(lost_sizes(inferred.lost))
    return Network(
        advice=tuple(filter(None, advice)),
        kernels=kernels,
        skipped=tuple(skipped),
        copy_with=partial(
            copy_model, path, model, {kernel.name: weight for kernel, weight in named}
        ),
    )


def opened(
    path: Path,
    sizes: tuple[int, ...] | None,
    *,
    needs_sizes: Callable[[Any], bool] = lambda _: True,
    one_example: bool = False,
) -> tuple[Any, Inferred, list[Scope]]:
    """A model, the sizes of its arrays, and its graphs; the whole one is the first.

    Sizes are inferred if the graph needs them, which takes a process of its own; with
    `one_example`, as `sizes_in` says.
    """
    onnx = require("onnx", extra="onnx")
    if path.stat().st_size > LARGEST:
        raise Refusal(
            f"An .onnx file must have at most {LARGEST} bytes, got "
            f"{path.stat().st_size}. Save its weights as external data."
        )
    with parsing(".onnx file"):
        model = onnx.ModelProto.FromString(path.read_bytes())
        if not model.graph.node or not model.opset_import:
            raise Refusal(
                "An .onnx file must hold a graph and the version of its operators, got "
                "one without. It is cut short, or something else."
            )
        light = without_weights(model, path)
    if sizes is not None:
        resize(light.graph, sizes)
    with parsing(".onnx file"):
        inferred = Inferred([])
        if needs_sizes(light.graph):
            inferred = sizes_in(light, one_example=one_example)
        return model, inferred, list(scopes(model, inferred.shapes, path))


def _channels(kernel: Kernel) -> int:
    """How many channels a layer reads."""
    if kernel.stated["transposed"]:
        return kernel.shape[0]
    return kernel.shape[1] * kernel.stated["groups"]


def _person_name(layer: GraphLayer) -> str:
    """The weight's name; the path of its node where the weight has only a number."""
    name = f"{layer.weight.name}"
    if not NUMBERED.fullmatch(name) or layer.label == name:
        return name
    path = layer.label.strip("/").removesuffix(f"/{layer.op}")
    return path or name


def _named(layers: list[GraphLayer], taken: set[str]) -> list[tuple[Kernel, Stored]]:
    """The kernels of layers that differ, each with its weight."""
    distinct: dict[tuple, GraphLayer] = {}
    for layer in layers:
        distinct.setdefault(layer.key, layer)
    uses = Counter(layer.weight.name for layer in distinct.values())
    named = []
    for layer in distinct.values():
        weight = layer.weight
        name = _person_name(layer)
        if uses[weight.name] > 1:
            name = f"{short(weight.name)}@{layer.label}"
        reason = "is multiplied by alpha" if layer.gain != 1 else ""
        kernel = Kernel(
            name=_distinct(name, layer.place[-1], taken),
            shape=layer.shape,
            dtype=weight.dtype,
            stated=layer.stated,
            load=layer.load,
            factors=None if layer.norm is None else layer.factors,
            linear=layer.stated is LINEAR,
            not_writable_because=weight.not_writable_because or reason,
        )
        named.append((kernel, weight))
    return named


def _distinct(name: str, index: int, taken: set[str]) -> str:
    while name in taken:
        name = f"{name}@{index}"
    taken.add(name)
    return name
