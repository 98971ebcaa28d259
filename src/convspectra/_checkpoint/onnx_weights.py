"""The numbers of an ONNX model: where they are stored, and how its nodes read them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .._base import replacing, require
from .files import Refusal, check_size
from .records import Kernel

LARGEST = 2**31 - 1  # bytes of a protobuf message
EXTERNAL = 1  # of TensorProto.DataLocation
MOST_AXES = 64  # that NumPy has; the product of longer dims would be a huge number
ROUNDED = "is rounded by a Cast after it"
LISTED = "is stored as a list"

# By TensorProto.DataType: the dtype, its bits, and the field for numbers one by one.
TYPES = {
    1: ("float32", "<f4", "float_data"),
    2: ("uint8", "|u1", "int32_data"),
    3: ("int8", "|i1", "int32_data"),
    4: ("uint16", "<u2", "int32_data"),
    5: ("int16", "<i2", "int32_data"),
    6: ("int32", "<i4", "int32_data"),
    10: ("float16", "<u2", "int32_data"),
    11: ("float64", "<f8", "double_data"),
    16: ("bfloat16", "<u2", "int32_data"),
}
FIELDS = {"float_data": np.float32, "double_data": np.float64, "int32_data": np.int32}
FLOATS = {  # and the others that hold each of their numbers
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
    "float64": (),
}


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Numbers that the file holds, as a node reads them."""

    name: str  # of the tensor
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]  # which axis of `numbers` each axis of `shape` is
    numbers: Callable[[], np.ndarray]
    place: Callable[[Any], Any]  # finds the tensor in the model, and in a copy of it
    fixed: str = ""

    def load(self) -> np.ndarray:
        return np.array(self.numbers().transpose(self.axes), order="C")

    def transposed(self, axes: Sequence[int]) -> "Stored":
        return replace(
            self,
            shape=tuple(self.shape[a] for a in axes),
            axes=tuple(self.axes[a] for a in axes),
        )

    def unturned(self, array: np.ndarray) -> np.ndarray:
        """`array` of this shape with the axes in the order of the file."""
        return array.transpose(np.argsort(self.axes))

    def put(self, model: Any, array: np.ndarray) -> None:
        """Write numbers, in the order of the file, into a copy of the model."""
        tensor = self.place(model)
        _, bits, field = TYPES[tensor.data_type]
        tensor.ClearField(field)
        tensor.raw_data = array.view(_native(bits)).astype(bits).tobytes()


def stored_values(model: Any, path: Path) -> dict[str, Stored | str]:
    """Return what each name of the graph stands for, or why that is not stored.

    Nodes come in the order of computation, so that one way through them is enough:
    neither long chains nor cycles cost anything.
    """
    known: dict[str, Stored | str] = {}
    for i, tensor in enumerate(model.graph.initializer):
        place = partial(_initializer, i)
        _define(known, tensor.name, _stored(tensor, tensor.name, place, path))
    for sparse in model.graph.sparse_initializer:
        _define(known, sparse.values.name, "is stored as a sparse array")
    for i, node in enumerate(model.graph.node):
        computed = f"is computed by {node.op_type}"
        for name in filter(None, node.output):
            _define(known, name, computed)
        if standard(node) and len(node.output) == 1 and node.output[0]:
            name = node.output[0]
            known[name] = _result(node, i, known, path) or known[name]
    return known


def tensors(message: Any) -> Iterator[Any]:
    """All tensors in a message, however deep: protobuf parses a depth of 100."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in (value,) if hasattr(value, "DESCRIPTOR") else value:
                yield from tensors(inner)


def external(tensor: Any, path: Path) -> tuple[Path, int, int]:
    """Return file, offset and length of a tensor that lies beside the model."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    file = (path.parent / location).resolve()
    # The folder of the model, and where the model is a link that of its real file.
    folders = (path.parent.resolve(), path.resolve().parent)
    if not any(file.is_relative_to(folder) for folder in folders):
        raise Refusal(
            f"{tensor.name!r} must have its numbers in the folder of the model, got "
            f"{location!r}. Files elsewhere are never opened."
        )
    if not file.is_file():
        raise Refusal(
            f"{tensor.name!r} must have its numbers in {location!r} in the folder of "
            "the model, and there is no such file. Put it there."
        )
    size = file.stat().st_size
    offset = _whole(entries.get("offset", "0"))
    length = _whole(entries.get("length", f"{max(size - offset, 0)}"))
    if offset + length > size:
        raise Refusal(
            f"{tensor.name!r} must lie inside of {location!r}, which has {size} bytes, "
            f"got {length} bytes from {offset} on. That file is cut short or damaged."
        )
    return file, offset, length


def embed(tensor: Any, path: Path) -> None:
    """Put the numbers that lie beside the model into the tensor itself."""
    tensor.raw_data = _raw(tensor, path)
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def write_model(
    path: Path,
    model: Any,
    kernels: Sequence[tuple[Kernel, Stored]],
    target: Path,
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Write a copy of a model with other numbers in some kernels, as one file."""
    changed = _changes(kernels, arrays)
    beside = [t for t in tensors(model) if t.data_location == EXTERNAL]
    total = model.ByteSize() + sum(external(tensor, path)[2] for tensor in beside)
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
    for weight, array in changed.values():
        weight.put(new, array)
    with replacing(target) as part:
        part.write_bytes(new.SerializeToString())


def standard(node: Any) -> bool:
    """Whether a node is one of ONNX's own operators."""
    return node.domain in ("", "ai.onnx")


def attribute(node: Any, name: str) -> Any:
    """The attribute of a node with this name, None if there is none."""
    return next((a for a in node.attribute if a.name == name), None)


def integer(node: Any, name: str, default: int) -> int:
    """A whole number that a node states as an attribute."""
    found = attribute(node, name)
    return default if found is None else found.i


def _changes(
    kernels: Sequence[tuple[Kernel, Stored]], arrays: Mapping[str, np.ndarray]
) -> dict[str, tuple[Stored, np.ndarray]]:
    """The new numbers of each tensor, in the order of the file."""
    named = {kernel.name: (kernel, weight) for kernel, weight in kernels}
    changed: dict[str, tuple[Stored, np.ndarray]] = {}
    for name, array in arrays.items():
        if name not in named:
            raise ValueError(f"{name!r} must be a kernel of the model, and is none.")
        kernel, weight = named[name]
        if kernel.fixed:
            raise ValueError(f"{name!r} {kernel.fixed}: its numbers must stay.")
        if array.shape != kernel.shape or array.dtype.name != weight.dtype:
            raise ValueError(
                f"{name!r} must keep shape {kernel.shape} and dtype {weight.dtype}, "
                f"got {array.shape} and {array.dtype.name}."
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{name!r} must stay finite, got NaN or infinity in it.")
        new = weight.unturned(array.reshape(weight.shape))
        if not np.array_equal(changed.setdefault(weight.name, (weight, new))[1], new):
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


def _initializer(index: int, model: Any) -> Any:
    return model.graph.initializer[index]


def _constant_value(index: int, model: Any) -> Any:
    return attribute(model.graph.node[index], "value").t


def _stored(
    tensor: Any, name: str, place: Callable[[Any], Any], path: Path
) -> Stored | str:
    """What a tensor stores, checked against the bytes that are there."""
    if tensor.data_type not in TYPES:
        kinds = {number: kind for kind, number in tensor.DataType.items()}
        return f"holds {kinds.get(tensor.data_type, 'an unknown type')}"
    if tensor.HasField("segment"):
        return "is stored in segments"
    if len(tensor.dims) > MOST_AXES:
        return f"has {len(tensor.dims)} axes"
    shape, (dtype, bits, field) = tuple(tensor.dims), TYPES[tensor.data_type]
    itemsize = np.dtype(bits).itemsize
    if tensor.data_location == EXTERNAL:
        size = external(tensor, path)[2]
    else:
        size = len(tensor.raw_data) or len(getattr(tensor, field)) * itemsize
    check_size(shape, itemsize, size)
    numbers = partial(_numbers, tensor, path)
    return Stored(name, dtype, shape, tuple(range(len(shape))), numbers, place)


def _numbers(tensor: Any, path: Path) -> np.ndarray:
    dtype, bits, field = TYPES[tensor.data_type]
    raw = _raw(tensor, path)
    if raw:
        flat = np.frombuffer(raw, bits)
    else:
        flat = np.fromiter(getattr(tensor, field), FIELDS[field])
    flat = flat.astype(_native(bits), copy=False)
    return flat.view(_dtype(dtype)).reshape(tensor.dims)


def _raw(tensor: Any, path: Path) -> bytes:
    if tensor.data_location != EXTERNAL:
        return tensor.raw_data
    file, offset, length = external(tensor, path)
    with file.open("rb") as stream:
        stream.seek(offset)
        data = stream.read(length)
    check_size((length,), 1, len(data))
    return data


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Refusal(
            "Offset and length of numbers beside the model must be whole numbers, got "
            f"{text[:40]!r}. The file is damaged: save it again."
        )
    return int(text)


def _native(bits: str) -> np.dtype:
    return np.dtype(bits).newbyteorder("=")


def _dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        return np.dtype(require("ml_dtypes", extra="cli").bfloat16)
    return np.dtype(name)


def _result(
    node: Any, index: int, known: dict[str, Stored | str], path: Path
) -> Stored | str:
    """What a node makes of stored numbers, or why not; empty for a computation."""
    if node.op_type == "Constant":
        return _constant(node, index, path)
    if node.op_type not in ("Identity", "Cast", "Transpose", "DequantizeLinear"):
        return ""
    inputs = [known.get(name, "") if name else None for name in node.input]
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


def _constant(node: Any, index: int, path: Path) -> Stored | str:
    name, place = node.output[0], partial(_constant_value, index)
    for found in node.attribute:
        if found.name == "value":
            return _stored(found.t, name, place, path)
        if found.name in ("value_float", "value_floats"):
            one = found.name == "value_float"
            shape = () if one else (len(found.floats),)
            numbers = partial(np.array, found.f if one else found.floats, np.float32)
            axes = tuple(range(len(shape)))
            return Stored(name, "float32", shape, axes, numbers, place, LISTED)
    return ""


def _cast(node: Any, source: Stored) -> Stored | str:
    dtype = TYPES.get(integer(node, "to", 0), ("",))[0]
    if source.dtype not in FLOATS or dtype not in FLOATS:
        return ""
    if dtype in (source.dtype, *FLOATS[source.dtype]):
        return source  # the same numbers
    if source.fixed == ROUNDED:
        return "is rounded by several Casts"

    def rounded() -> np.ndarray:
        with np.errstate(all="ignore"):
            return source.numbers().astype(_dtype(dtype))

    return replace(source, dtype=dtype, numbers=rounded, fixed=ROUNDED)


def _transposed(node: Any, source: Stored) -> Stored | str:
    perm, axes = attribute(node, "perm"), range(len(source.shape))
    order = list(perm.ints) if perm else list(reversed(axes))
    return source.transposed(order) if sorted(order) == list(axes) else ""


def _dequantized(
    node: Any, source: Stored, others: Sequence[Stored | str | None]
) -> Stored | str:
    scale, zero = (*others, None, None)[:2]
    if not isinstance(scale, Stored) or isinstance(zero, str):
        return "is quantized with a scale or a zero point that is not stored"
    count = math.prod(scale.shape)
    if len(scale.shape) > 1 or (zero and math.prod(zero.shape) != count):
        return "is quantized in blocks"
    axis, rank = integer(node, "axis", 1), len(source.shape)
    if not scale.shape or count == 1:
        spread = (1,) * rank
    elif -rank <= axis < rank and scale.shape[0] == source.shape[axis]:
        spread = tuple(-1 if a == axis % rank else 1 for a in range(rank))
    else:
        return f"is quantized with {scale.shape} scales along axis {axis}"
    if (
        source.dtype in FLOATS
        or scale.dtype not in FLOATS
        or integer(node, "output_dtype", 0)
    ):
        return ""

    def numbers() -> np.ndarray:
        # In double precision, where the product of int16 and float32 is exact.
        steps, ratio = source.load().astype(np.float64), scale.load()
        with np.errstate(all="ignore"):
            if zero is not None:
                steps -= zero.load().reshape(spread)
            return (steps * ratio.reshape(spread)).astype(ratio.dtype)

    return replace(
        source,
        dtype=scale.dtype,
        axes=tuple(range(rank)),
        numbers=numbers,
        fixed="is quantized",
    )
