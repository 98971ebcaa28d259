"""What the names in an ONNX graph stand for, where that is stored in the file."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .._base import replacing
from .onnx_tensors import (
    DTYPES,
    EXTERNAL,
    array_of,
    attribute,
    check_tensor,
    embed,
    external,
    graphs,
    integer,
    numpy_dtype,
    put_array,
    standard,
    tensors,
)
from .stored import Refusal

LARGEST = 2**31 - 1  # bytes of a protobuf message
MOST_AXES = 64  # that NumPy has; the product of longer dims would be a huge number
ROUNDED = "is rounded by a Cast after it"
LISTED = "is stored as a list"

# The floating-point types, and the others that hold each of their numbers.
FLOATS = {
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
    "float64": (),
}


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """An array that the file holds, as a node reads it."""

    name: str  # of the tensor
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]  # which axis of the tensor each axis of `shape` is
    values: Callable[[], np.ndarray]  # with the axes of the tensor
    graph: int  # in which it is, by its number among all in the model
    find: Callable[[Any], Any]  # the tensor, in that graph or in a copy of it
    not_writable_because: str = ""
    scale: str = ""  # the name of what its integers are multiplied with

    def load(self) -> np.ndarray:
        return np.array(self.values().transpose(self.axes), order="C")

    def transposed(self, axes: Sequence[int]) -> "Stored":
        return replace(
            self,
            shape=tuple(self.shape[a] for a in axes),
            axes=tuple(self.axes[a] for a in axes),
        )

    def with_axes_of_tensor(self, array: np.ndarray) -> np.ndarray:
        """`array` of this shape with the axes in the order of the file."""
        return array.reshape(self.shape).transpose(np.argsort(self.axes))


Lookup = Callable[[str], Stored | str]  # what a name stands for, or why not


def stored_values(
    graph: Any, number: int, path: Path, outer: Lookup | None = None
) -> dict[str, Stored | str]:
    """Return what each name of a graph stands for, or why that is not stored.

    Nodes come in the order of computation, so that one way through them is enough:
    neither long chains nor cycles cost anything.

    Parameters
    ----------
    graph : GraphProto
    number : int
        Of this graph among all in the model.
    path : Path
    outer : function, optional
        For the body of a node: what the names around it stand for.
    """
    known: dict[str, Stored | str] = {}

    def lookup(name: str) -> Stored | str:
        if name in known or outer is None:
            return known.get(name, "")
        return outer(name)

    for i, tensor in enumerate(graph.initializer):
        find = partial(_initializer, i)
        _define(known, tensor.name, _stored(tensor, tensor.name, number, find, path))
    for sparse in graph.sparse_initializer:
        _define(known, sparse.values.name, "is stored as a sparse array")
    for value in graph.input if outer is not None else ():
        known.setdefault(value.name, "comes into the body from its node")
    for i, node in enumerate(graph.node):
        computed = f"is computed by {node.op_type}"
        for name in filter(None, node.output):
            _define(known, name, computed)
        if standard(node) and len(node.output) == 1 and node.output[0]:
            name = node.output[0]
            found = _result(node, i, number, lookup, path)
            known[name] = found or known[name]
    return known


def copy_model(
    path: Path,
    model: Any,
    weights: Mapping[str, Stored],
    target: Path,
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Write a copy of a model with other arrays for some weights, as one file."""
    changed = _changes(weights, arrays)
    beside = [t for t in tensors(model) if t.data_location == EXTERNAL]
    places = [external(tensor, path) for tensor in beside]
    if target.resolve() in {file for file, _, _ in places}:
        text = "The output must be no file that the model needs, got"
        raise ValueError(f"{text} {str(target)!r}. Name another file.")
    total = model.ByteSize() + sum(length for _, _, length in places)
    if total > LARGEST:
        raise ValueError(
            f"A model that is written must fit into one file of {LARGEST} bytes, got "
            f"{total} with the numbers beside it. Such a model can only be read."
        )
    new = type(model)()
    new.CopyFrom(model)
    for tensor in tensors(new):
        if tensor.data_location == EXTERNAL:
            embed(tensor, path)
    parts = list(graphs(new.graph))
    for weight, array in changed.values():
        put_array(weight.find(parts[weight.graph]), array)
    with replacing(target) as partial_file:
        partial_file.write_bytes(new.SerializeToString())


def _changes(
    weights: Mapping[str, Stored], arrays: Mapping[str, np.ndarray]
) -> dict[tuple[int, str], tuple[Stored, np.ndarray]]:
    """The new array of each tensor, with the axes in the order of the file."""
    changed: dict[tuple[int, str], tuple[Stored, np.ndarray]] = {}
    for name, array in arrays.items():
        weight = weights[name]
        new = weight.with_axes_of_tensor(array)
        first = changed.setdefault((weight.graph, weight.name), (weight, new))[1]
        if not np.array_equal(first, new):
            raise ValueError(
                f"{weight.name!r} serves several layers, which must get the same "
                f"numbers, got others for {name!r}. Change it for only one of them."
            )
    return changed


def _define(known: dict[str, Stored | str], name: str, what: Stored | str) -> None:
    if name in known:
        raise Refusal(
            f"A name must denote one array, got two called {name!r}. The file is "
            "damaged: save it again."
        )
    known[name] = what


def _initializer(index: int, graph: Any) -> Any:
    return graph.initializer[index]


def _constant_value(index: int, graph: Any) -> Any:
    return attribute(graph.node[index], "value").t


def _stored(
    tensor: Any, name: str, graph: int, find: Callable[[Any], Any], path: Path
) -> Stored | str:
    """What a tensor stores, checked against the bytes that are there."""
    if tensor.data_type not in DTYPES:
        kinds = {number: kind for kind, number in tensor.DataType.items()}
        return f"holds {kinds.get(tensor.data_type, 'an unknown type')}"
    if tensor.HasField("segment"):
        return "is stored in segments"
    if len(tensor.dims) > MOST_AXES:
        return f"has {len(tensor.dims)} axes"
    check_tensor(tensor, path)
    shape = tuple(tensor.dims)
    values = partial(array_of, tensor, path)
    axes = tuple(range(len(shape)))
    return Stored(name, DTYPES[tensor.data_type], shape, axes, values, graph, find)


def _result(
    node: Any, index: int, graph: int, lookup: Lookup, path: Path
) -> Stored | str:
    """What a node makes of stored numbers, or why not; empty for a computation."""
    if node.op_type == "Constant":
        return _constant(node, index, graph, path)
    if node.op_type not in ("Identity", "Cast", "Transpose", "DequantizeLinear"):
        return ""
    inputs = [lookup(name) if name else None for name in node.input]
    source = inputs[0] if inputs else None
    if not isinstance(source, Stored):
        return source or ""
    if node.op_type == "Cast":
        return _cast(node, source)
    if node.op_type == "Transpose":
        return _transposed(node, source)
    if node.op_type == "DequantizeLinear":
        return _dequantized(node, source, inputs[1:])
    return source


def _constant(node: Any, index: int, graph: int, path: Path) -> Stored | str:
    name, find = node.output[0], partial(_constant_value, index)
    for found in node.attribute:
        if found.name == "value":
            return _stored(found.t, name, graph, find, path)
        if found.name in ("value_float", "value_floats"):
            one = found.name == "value_float"
            shape = () if one else (len(found.floats),)
            values = partial(np.array, found.f if one else found.floats, np.float32)
            axes = tuple(range(len(shape)))
            return Stored(name, "float32", shape, axes, values, graph, find, LISTED)
    return ""


def _cast(node: Any, source: Stored) -> Stored | str:
    to = integer(node, "to", 0)
    dtype = DTYPES.get(to, "")
    if source.dtype not in FLOATS or dtype not in FLOATS:
        return ""
    if dtype in (source.dtype, *FLOATS[source.dtype]):
        return source  # the same numbers
    if source.not_writable_because == ROUNDED:
        return "is rounded by several Casts"

    def rounded() -> np.ndarray:
        with np.errstate(all="ignore"):
            return source.values().astype(numpy_dtype(to))

    return replace(source, dtype=dtype, values=rounded, not_writable_because=ROUNDED)


def _transposed(node: Any, source: Stored) -> Stored | str:
    perm, axes = attribute(node, "perm"), range(len(source.shape))
    order = list(perm.ints) if perm else list(reversed(axes))
    return source.transposed(order) if sorted(order) == list(axes) else ""


def _dequantized(
    node: Any, source: Stored, others: Sequence[Stored | str | None]
) -> Stored | str:
    scale, zero = (*others, None, None)[:2]
    if integer(node, "output_dtype", 0):
        return ""
    return scaled_back(source, scale or "", zero, integer(node, "axis", 1))


def scaled_back(
    source: Stored, scale: Stored | str, zero: Stored | str | None, axis: int
) -> Stored | str:
    """(source - zero) * scale, or why not; empty for what is no integer.

    There is one scale, or one for each entry along an axis.
    """
    if not isinstance(scale, Stored) or isinstance(zero, str):
        return "is quantized with a scale or a zero point that is not stored"
    count = math.prod(scale.shape)
    if len(scale.shape) > 1 or (zero and math.prod(zero.shape) not in (1, count)):
        return "is quantized in blocks"
    rank = len(source.shape)
    if not scale.shape or count == 1:
        spread = (1,) * rank
    elif -rank <= axis < rank and scale.shape[0] == source.shape[axis]:
        spread = tuple(-1 if a == axis % rank else 1 for a in range(rank))
    else:
        return f"is quantized with {scale.shape} scales along axis {axis}"
    if source.dtype in FLOATS or scale.dtype not in FLOATS:
        return ""

    def values() -> np.ndarray:
        # In double precision, where the product of int16 and float32 is exact.
        steps, ratio = source.load().astype(np.float64), scale.load()
        with np.errstate(all="ignore"):
            if zero is not None:
                one = math.prod(zero.shape) == 1
                steps -= zero.load().reshape((1,) * rank if one else spread)
            return (steps * ratio.reshape(spread)).astype(ratio.dtype)

    return replace(
        source,
        dtype=scale.dtype,
        axes=tuple(range(rank)),
        values=values,
        not_writable_because="is quantized",
        scale=scale.name,
    )
