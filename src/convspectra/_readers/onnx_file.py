"""Kernels of ONNX models, by the nodes of the graph; no runtime is needed."""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._files import Refusal, parsing
from .._geometry import Geometry, size
from .._optional import require
from .onnx_weights import (
    EXTERNAL,
    FLOATS,
    LARGEST,
    Stored,
    attribute,
    embed,
    external,
    integer,
    standard,
    stored_values,
    tensors,
    write_model,
)
from .records import Kernel, Network

SMALL = 2**10  # bytes of a tensor that shapes may be computed from
SECONDS = 60  # that shape inference may take
MEMORY = 2**30  # bytes that it may take, besides 20 times the graph
READ = ("Conv", "ConvTranspose", "Gemm", "MatMul")
LINEAR = {"grid": (1,), "groups": 1, "padding": ((0, 0),), "boundary": "zeros"}
# Parts of the names of operators that are layers, read or not, in any domain.
LAYERS = ("conv", "gemm", "matmul", "einsum", "attention", "lstm", "gru", "rnn")

# A small file can make onnx's shape inference take hours or all memory (the numbers of
# a shape joined to themselves, forty times). So it is a process of its own, within
# limits. It prints the sizes of every array, 0 for those that are open: what follows
# from the sizes of the input, and what the file states where nothing does.
INFERENCE = """
import contextlib, json, sys
import onnx

def shapes(graph):
    values = (*graph.input, *graph.value_info, *graph.output)
    tensors = {value.name: value.type.tensor_type for value in values}
    return {
        name: [max(dim.dim_value, 0) for dim in tensor.shape.dim]
        for name, tensor in tensors.items()
        if tensor.HasField("shape") and len(tensor.shape.dim) < 10
    }

data, memory = sys.stdin.buffer.read(), int(sys.argv[1])
with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (memory + 20 * len(data),) * 2)
model = onnx.ModelProto.FromString(data)
found = shapes(model.graph)
model.graph.ClearField("value_info")
for value in model.graph.output:
    value.ClearField("type")
inferred = shapes(onnx.shape_inference.infer_shapes(model, data_prop=True).graph)
found |= {name: s for name, s in inferred.items() if all(s[2:]) or name not in found}
json.dump(found, sys.stdout)
"""

Known = Mapping[str, Stored | str]
Shapes = Mapping[str, list[int]]
Skipped = list[tuple[str, str]]


class Found(NamedTuple):
    """A layer of the graph that has no name yet."""

    place: int  # of its node
    label: str
    weight: Stored
    shape: tuple[int, ...]
    stated: dict[str, Any]
    gain: float
    norm: tuple[Stored, Stored, float] | None  # gamma, variance, epsilon

    @property
    def key(self) -> tuple:
        """The same for nodes that are the same layer."""
        weight = (self.weight.name, self.weight.axes, self.weight.fixed)
        norm = self.norm and (self.norm[0].name, self.norm[1].name, self.norm[2])
        stated = tuple(sorted(self.stated.items()))
        return (*weight, self.shape, stated, self.gain, norm)


def read_onnx(path: Path, sizes: tuple[int, ...] | None = None) -> Network:
    """Find the layers of an ONNX model.

    Every Conv, ConvTranspose, Gemm and MatMul whose weight is stored in the file, or in
    one beside it, is a kernel. It has the name of that weight; if the weight serves
    layers that differ, with the name of the node after it.

    Parameters
    ----------
    path : Path
    sizes : tuple of int, optional
        Of the network's input, mostly (batch, channels, *grid): instead of those that
        the file states or leaves open.
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
        known = stored_values(model, path)
        light = _without_weights(model, path)
    if sizes is not None:
        _resize(light.graph, sizes)
    with parsing(".onnx file"):
        shapes, skipped = _shapes(light)
        found, others = _layers(model, known, shapes)
        taken: set[str] = set()
        named = _named(found, taken)
        skipped = [
            (_distinct(label, index, taken), why)
            for index, (label, why) in enumerate(skipped + others)
        ]
    return Network(
        kernels=tuple(kernel for kernel, _ in named),
        skipped=tuple(skipped),
        write=partial(write_model, path, model, named),
    )


def _without_weights(model: Any, path: Path) -> Any:
    """A copy whose tensors have no numbers, but for the few that may state shapes."""
    light = type(model)()
    light.CopyFrom(model)
    for tensor in tensors(light):
        beside = tensor.data_location == EXTERNAL
        if (external(tensor, path)[2] if beside else tensor.ByteSize()) > SMALL:
            for field, _ in tensor.ListFields():
                if field.name not in ("dims", "data_type", "name"):
                    tensor.ClearField(field.name)
        elif beside:
            embed(tensor, path)
    for value in (*light.graph.input, *light.graph.value_info, *light.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 1:  # some exporters write -1 for what is open
                dim.ClearField("dim_value")
    return light


def _resize(graph: Any, sizes: tuple[int, ...]) -> None:
    """State the sizes of the network's input, forget those computed from it."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    if not inputs or not inputs[0].type.HasField("tensor_type"):
        raise ValueError("`--input` needs a network whose input is an array, got none.")
    tensor = inputs[0].type.tensor_type
    if tensor.HasField("shape") and len(tensor.shape.dim) != len(sizes):
        raise ValueError(
            f"`--input` must have {len(tensor.shape.dim)} sizes, one for each axis of "
            f"the network's input {inputs[0].name!r}, got {'x'.join(map(str, sizes))}."
        )
    tensor.shape.Clear()
    for value in sizes:
        tensor.shape.dim.add().dim_value = size("--input", value, least=1)
    graph.ClearField("value_info")
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def _shapes(light: Any) -> tuple[Shapes, Skipped]:
    """The sizes of arrays by name, and why there are none."""
    if not any(node.op_type.startswith("Conv") for node in light.graph.node):
        return {}, []
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", INFERENCE, f"{MEMORY}"],
            input=light.SerializeToString(),
            capture_output=True,
            timeout=SECONDS,
            # More threads of NumPy's would count as memory.
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            check=True,
        )
        return json.loads(done.stdout), []
    except (OSError, subprocess.SubprocessError, ValueError):
        why = "failed or went beyond its limits, so that sizes of inputs are not known"
        return {}, [("shape inference", why)]


def _layers(model: Any, known: Known, shapes: Shapes) -> tuple[list[Found], Skipped]:
    """The layers of a model in their order, and those that cannot be read, with why."""
    found: list[Found] = []
    skipped: Skipped = []
    functions = {(function.domain, function.name) for function in model.functions}
    readers = _readers(model.graph)
    for index, node in enumerate(model.graph.node):
        inner = [*_inside([node])][1:]
        skipped += _hidden(inner, f"in a subgraph of {_label(node, index)!r}")
        if not _is_layer(node) or (node.domain, node.op_type) in functions:
            continue
        try:
            found.append(_layer(index, node, known, shapes, readers))
        except Refusal:
            raise
        except (ValueError, TypeError) as error:
            why = f"is of type {node.op_type}: {error}".rstrip(".")
            skipped.append((_label(node, index), why))
    for function in model.functions:
        inner = _inside(function.node)
        skipped += _hidden(inner, f"in the function {_short(function.name)!r}")
    return found, skipped


def _hidden(nodes: Iterable[Any], where: str) -> Iterator[tuple[str, str]]:
    for index, node in enumerate(nodes):
        if _is_layer(node):
            yield (
                _label(node, index),
                f"is of type {node.op_type} {where}, and not read",
            )


def _inside(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes, and those of the subgraphs in them, however deep."""
    for node in nodes:
        yield node
        for found in node.attribute:
            for graph in (found.g, *found.graphs):
                yield from _inside(graph.node)


def _readers(graph: Any) -> Mapping[str, list[Any]]:
    """The nodes that read each array, also in their subgraphs; None for an output."""
    readers = defaultdict(list)
    for value in graph.output:
        readers[value.name].append(None)
    for node in graph.node:
        for reader in _inside([node]):
            for name in reader.input:
                readers[name].append(node)
    return readers


def _is_layer(node: Any) -> bool:
    return any(part in node.op_type.lower() for part in LAYERS)


def _label(node: Any, index: int) -> str:
    return _short(node.name or "".join(node.output[:1]) or f"node {index}")


def _short(name: Any) -> str:
    """A name as text, not so long that a file can exhaust the memory by its repeats."""
    return f"{name}"[:200]


def _layer(
    index: int,
    node: Any,
    known: Known,
    shapes: Shapes,
    readers: Mapping[str, list[Any]],
) -> Found:
    if not standard(node) or node.op_type not in READ:
        raise ValueError("this operator is not read")
    if len(node.input) < 2:
        raise ValueError("it has no weight")
    label, alpha = _label(node, index), attribute(node, "alpha")
    if node.op_type in ("Gemm", "MatMul"):
        weight, by_column = _matrix(node, known)
        shape = (1,) * (2 - len(weight.shape)) + weight.shape + (1,)
        stated, channels = LINEAR, shape[0] if by_column else 0
    else:
        weight, alpha = _weight(node.input[1], known), None
        shape, stated = weight.shape, _convolution(node, weight.shape, shapes)
        channels = shape[1] * stated["groups"] if stated["transposed"] else shape[0]
    norm = _norm(node, known, readers, channels) if channels else None
    gain = 1.0 if alpha is None else alpha.f
    return Found(index, label, weight, shape, stated, gain, norm)


def _weight(name: str, known: Known) -> Stored:
    found = known.get(name, "is an input of the network")
    if isinstance(found, str):
        raise ValueError(f"its weight {found}")
    if found.dtype not in FLOATS:
        raise ValueError(f"its weight holds {found.dtype}")
    if 0 in found.shape:
        raise ValueError(f"its weight is empty, of shape {found.shape}")
    return found


def _matrix(node: Any, known: Known) -> tuple[Stored, bool]:
    """The matrix (out, in) of a Gemm or MatMul, and whether columns are its outputs."""
    stored = [isinstance(known.get(name), Stored) for name in node.input[:2]]
    if stored[0] == stored[1]:
        both = "both of its factors are" if stored[0] else "none of its factors is"
        raise ValueError(f"{both} stored")
    second = stored[1]
    weight = _weight(node.input[second], known)
    if len(weight.shape) not in (1, 2):
        raise ValueError(f"its weight must be one matrix, got shape {weight.shape}")
    turned = integer(node, "transB" if second else "transA", 0)
    if len(weight.shape) == 2 and second != bool(turned):
        weight = weight.transposed((1, 0))  # a row of inputs times (in, out)
    return weight, second and node.op_type == "Gemm"


def _convolution(node: Any, shape: tuple[int, ...], shapes: Shapes) -> dict[str, Any]:
    """The geometry that a Conv or ConvTranspose states."""
    axes, kernel = len(shape) - 2, shape[2:]
    if axes < 1:
        raise ValueError(f"its weight has only {len(shape)} axes")
    if _ints(node, "kernel_shape", kernel) != kernel:
        raise ValueError(f"its kernel_shape is not that of its weight, {shape}")
    stated: dict[str, Any] = {
        "stride": _ints(node, "strides", (1,) * axes),
        "dilation": _ints(node, "dilations", (1,) * axes),
        "groups": integer(node, "group", 1),
        "boundary": "zeros",
        "transposed": node.op_type == "ConvTranspose",
    }
    Geometry(None, **stated)  # before anything is divided by a stride
    if shape[0] % stated["groups"]:
        raise ValueError(f"its {stated['groups']} groups do not divide {shape[0]}")
    grid = _grid(shapes.get(node.input[0]), shape, stated)
    if grid is not None:
        stated["grid"] = grid
    padding = _transposed_padding if stated["transposed"] else _padding
    stated |= padding(node, kernel, stated)
    whole = Geometry(**{"grid": None, **stated})
    if grid is not None:
        whole.meet(kernel)
    return stated


def _ints(node: Any, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    found = attribute(node, name)
    values = default if found is None else tuple(found.ints)
    if len(values) != len(default):
        raise ValueError(f"its {name} must be {len(default)} numbers, got {values}")
    return values


def _grid(
    sizes: list[int] | None, shape: tuple[int, ...], stated: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """The grid in an input of these sizes, None where one of them is not known."""
    if sizes is None:
        return None
    channels = shape[0] if stated["transposed"] else shape[1] * stated["groups"]
    if len(sizes) != len(shape) or sizes[1] not in (0, channels):
        raise ValueError(f"its weight of shape {shape} does not fit its input, {sizes}")
    return tuple(sizes[2:]) if all(sizes[2:]) else None


def _auto_pad(node: Any) -> str:
    found = attribute(node, "auto_pad")
    kind = "NOTSET" if found is None else found.s.decode("ascii", "replace")
    if kind not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"its auto_pad is unknown, {kind!r}")
    pads = attribute(node, "pads")
    if kind != "NOTSET" and pads is not None and any(pads.ints):
        raise ValueError(f"it has both pads and auto_pad {kind}")
    return kind


def _padding(
    node: Any, kernel: tuple[int, ...], stated: Mapping[str, Any]
) -> dict[str, Any]:
    kind, axes = _auto_pad(node), len(kernel)
    if kind == "SAME_UPPER":
        return {"padding": "same"}
    if kind != "SAME_LOWER":
        pads = _ints(node, "pads", (0,) * 2 * axes)
        return {"padding": tuple(zip(pads[:axes], pads[axes:]))}
    pairs, reach = [], _reach(kernel, stated)
    for n, s, r in zip(stated.get("grid", (1,) * axes), stated["stride"], reach):
        if s > 1 and "grid" not in stated:
            raise ValueError(
                "its SAME_LOWER padding depends on an input size not known"
            )
        total = max((-(-n // s) - 1) * s + r - n, 0)
        pairs.append((total - total // 2, total // 2))
    return {"padding": tuple(pairs)}


def _transposed_padding(
    node: Any, kernel: tuple[int, ...], stated: Mapping[str, Any]
) -> dict[str, Any]:
    kind, axes = _auto_pad(node), len(kernel)
    extra = _ints(node, "output_padding", (0,) * axes)
    pads = _ints(node, "pads", (0,) * 2 * axes)
    pairs = tuple(zip(pads[:axes], pads[axes:]))
    wanted = attribute(node, "output_shape")
    if wanted is None and not kind.startswith("SAME"):
        return {"padding": pairs, "output_padding": extra}
    if wanted is not None and "grid" not in stated:
        raise ValueError("its output_shape depends on an input size that is not known")
    grid, stride = stated.get("grid", (1,) * axes), stated["stride"]
    sizes = tuple(n * s for n, s in zip(grid, stride))
    if wanted is not None:
        sizes = _ints(node, "output_shape", sizes)
    pairs, more = [], []
    for n, s, r, e, out in zip(grid, stride, _reach(kernel, stated), extra, sizes):
        total = (n - 1) * s + r + e - out
        more.append(e + max(-total, 0))  # outputs that the kernel does not reach
        half = max(total, 0) // 2
        rest = max(total, 0) - half
        pairs.append((half, rest) if kind == "SAME_UPPER" else (rest, half))
    return {"padding": tuple(pairs), "output_padding": tuple(more)}


def _reach(kernel: tuple[int, ...], stated: Mapping[str, Any]) -> list[int]:
    return [d * (k - 1) + 1 for k, d in zip(kernel, stated["dilation"])]


def _norm(
    node: Any, known: Known, readers: Mapping[str, list[Any]], channels: int
) -> tuple[Stored, Stored, float] | None:
    """Gamma, variance and epsilon of a BatchNorm that alone reads a node's output."""
    after = readers.get(node.output[0], [None])
    norm = after[0] if len(after) == 1 else None
    if (
        norm is None
        or norm.op_type != "BatchNormalization"
        or not standard(norm)
        or len(norm.input) != 5
        or norm.input[0] != node.output[0]
        or any(norm.output[1:])
        or integer(norm, "training_mode", 0)
        or not integer(norm, "spatial", 1)
        or not integer(norm, "is_test", 1)
    ):
        return None
    gamma, variance = known.get(norm.input[1]), known.get(norm.input[4])
    if not isinstance(gamma, Stored) or not isinstance(variance, Stored):
        return None
    if {gamma.shape, variance.shape} != {(channels,)}:
        return None
    epsilon = attribute(norm, "epsilon")
    return gamma, variance, 1e-5 if epsilon is None else epsilon.f


def _factors(gamma: Stored, variance: Stored, epsilon: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        spread = np.sqrt(variance.load().astype(np.float64) + epsilon)
        factors = gamma.load().astype(np.float64) / spread
    if not np.isfinite(factors).all():
        raise Refusal(
            f"A BatchNorm must have a positive variance and finite numbers, got others "
            f"in {gamma.name!r} or {variance.name!r}."
        )
    return factors


def _load(found: Found) -> np.ndarray:
    array = found.weight.load().reshape(found.shape)
    with np.errstate(all="ignore"):
        return array if found.gain == 1 else array * array.dtype.type(found.gain)


def _named(layers: list[Found], taken: set[str]) -> list[tuple[Kernel, Stored]]:
    """The kernels of layers that differ, each with its weight."""
    distinct: dict[tuple, Found] = {}
    for found in layers:
        distinct.setdefault(found.key, found)
    uses = Counter(found.weight.name for found in distinct.values())
    named = []
    for found in distinct.values():
        weight = found.weight
        name = f"{weight.name}"
        if uses[weight.name] > 1:
            name = f"{_short(name)}@{found.label}"
        kernel = Kernel(
            name=_distinct(name, found.place, taken),
            shape=found.shape,
            stated=found.stated,
            load=partial(_load, found),
            factors=None if found.norm is None else partial(_factors, *found.norm),
            linear=found.stated is LINEAR,
            fixed=weight.fixed or ("is multiplied by alpha" if found.gain != 1 else ""),
        )
        named.append((kernel, weight))
    return named


def _distinct(name: str, index: int, taken: set[str]) -> str:
    while name in taken:
        name = f"{name}@{index}"
    taken.add(name)
    return name
