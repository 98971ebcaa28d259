"""Tensors and attributes of an ONNX model, in it and in files beside it."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._base import require
from .protobuf_wire import first, message, spans, text
from .stored import Refusal, check_size, parsing

EXTERNAL = 1  # of TensorProto.DataLocation
# The fields of a message that lead to what tensors state of the files that they lie in,
# and the message that is there. The numbers are those of onnx.proto.
TO_ENTRIES = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 11: "graph"},
    "tensor": {13: "entry"},
}

# The types that are read, by their number in TensorProto.DataType.
DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    16: "bfloat16",
}


def tensors(message: Any) -> Iterator[Any]:
    """All tensors in a message, however deep: protobuf parses a depth of 100."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in (value,) if hasattr(value, "DESCRIPTOR") else value:
                yield from tensors(inner)


def graphs(graph: Any) -> Iterator[Any]:
    """A graph and those inside its nodes, however deep, in the order of the file."""
    yield graph
    for node in graph.node:
        for _, body in bodies(node):
            yield from graphs(body)


def bodies(node: Any) -> Iterator[tuple[str, Any]]:
    """The graphs inside a node, each with the name of its attribute."""
    for found in node.attribute:
        for body in (*([found.g] if found.HasField("g") else []), *found.graphs):
            yield found.name, body


def numpy_dtype(data_type: int) -> np.dtype:
    """NumPy's dtype for one of `DTYPES`."""
    helper = require("onnx.helper", extra="onnx")
    return helper.tensor_dtype_to_np_dtype(data_type)


def check_tensor(tensor: Any, path: Path) -> None:
    """Refuse a tensor that has not as many bytes as its shape says."""
    itemsize = numpy_dtype(tensor.data_type).itemsize
    if not tensor.raw_data:
        tensor.ClearField("raw_data")  # which is read where it is set, also if empty
    if tensor.data_location == EXTERNAL:
        size = external(tensor, path)[2]
    else:
        size = len(tensor.raw_data) or len(_listed(tensor)) * itemsize
    check_size(tuple(tensor.dims), itemsize, size)


def array_of(tensor: Any, path: Path) -> np.ndarray:
    """The array in a tensor that `check_tensor` has passed."""
    if tensor.data_location == EXTERNAL:
        beside, tensor = tensor, type(tensor)()
        tensor.CopyFrom(beside)
        embed(tensor, path)
    return require("onnx.numpy_helper", extra="onnx").to_array(tensor)


def put_array(tensor: Any, array: np.ndarray) -> None:
    """Store another array of the same dtype and shape in a tensor."""
    del _listed(tensor)[:]
    helper = require("onnx.numpy_helper", extra="onnx")
    tensor.raw_data = helper.from_array(array).raw_data


def external(tensor: Any, path: Path) -> tuple[Path, int, int]:
    """Return file, offset and length of a tensor that lies beside the model."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    file = (path.parent / location).resolve()
    if not _is_in_folder(file, path):
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


def files_beside(path: Path) -> list[Path]:
    """The files that the tensors of a model lie in; no numbers are read.

    Those that are not there are left out: `external` says so when they are needed.
    """
    with parsing(".onnx file"), path.open("rb") as stream:
        locations = dict.fromkeys(_locations(stream, 0, path.stat().st_size))
        files = [(path.parent / location).resolve() for location in locations]
    return [file for file in files if _is_in_folder(file, path) and file.is_file()]


def _locations(
    stream: IO[bytes], start: int, end: int, kind: str = "model"
) -> Iterator[str]:
    """What the tensors in a message, which is between these bytes, say of locations."""
    if kind == "entry":
        stream.seek(start)
        entry = message(memoryview(stream.read(end - start)))
        if text(first(entry, 1)) == "location":
            yield text(first(entry, 2))
        return
    for field, at, stop in spans(stream, start, end):
        if field in TO_ENTRIES[kind]:
            yield from _locations(stream, at, stop, TO_ENTRIES[kind][field])


def _is_in_folder(file: Path, path: Path) -> bool:
    """Whether a file is in the folder of the model; if that is a link, of its file."""
    folders = (path.parent.resolve(), path.resolve().parent)
    return any(file.is_relative_to(folder) for folder in folders)


def embed(tensor: Any, path: Path) -> None:
    """Put the bytes that lie beside the model into the tensor itself."""
    file, offset, length = external(tensor, path)
    with file.open("rb") as stream:
        stream.seek(offset)
        data = stream.read(length)
    check_size((length,), 1, len(data))
    tensor.raw_data = data
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


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


def _listed(tensor: Any) -> Any:
    """The field for a tensor's numbers one by one, if they are not raw bytes."""
    helper = require("onnx.helper", extra="onnx")
    return getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type))


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Refusal(
            "Offset and length of numbers beside the model must be whole numbers, got "
            f"{text[:40]!r}. The file is damaged: save it again."
        )
    return int(text)
