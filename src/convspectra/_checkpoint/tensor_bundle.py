"""The variables of a SavedModel: an index, which is a sorted table, and shards.

And tensors in a graph, which state their types and shapes in the same way.
"""

import io
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .protobuf_wire import first, integers, message, signed, text, varint
from .stored import Entry, Refusal, check_size, parsing

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER = 48  # bytes at the end of a table
LARGEST = 2**27  # bytes of an index
OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"  # how variables are named in Python
MOST_KEY, MOST_ENTRIES = 1000, 10**6  # keys can be far longer than their bytes
DTYPES = {
    1: ("float32", "<f4"),
    2: ("float64", "<f8"),
    14: ("bfloat16", "bfloat16"),
    19: ("float16", "<f2"),
}
INTEGERS = {3: ("<i4", 7), 9: ("<i8", 10)}  # and the field of numbers one by one
MOST_SIZES = 16  # numbers of a tensor that states sizes


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable, and the shard that it is in."""

    entry: Entry
    shard: Path

    def load(self) -> np.ndarray:
        with parsing("shard of a SavedModel"), self.shard.open("rb") as stream:
            stream.seek(self.entry.start)
            return self.entry.read_from(stream)


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor whose numbers are in the graph itself."""

    entry: Entry
    data: memoryview

    def load(self) -> np.ndarray:
        with parsing("graph"):
            return self.entry.read_from(io.BytesIO(self.data))


def read_bundle(prefix: Path) -> dict[str, Variable | str]:
    """The variables by their keys, or why one cannot be read."""
    index = prefix.with_name(f"{prefix.name}.index")
    size = index.stat().st_size
    if size > LARGEST:
        raise Refusal(f"An index must have at most {LARGEST} bytes, got {size}.")
    entries = dict(_entries(memoryview(index.read_bytes())))
    entries.pop(OBJECTS, None)
    header = message(entries.pop("", None))
    shards = signed(first(header, 1)) or 1
    if first(header, 2):
        raise Refusal("The numbers of a SavedModel must be little-endian.")
    return {key: _variable(prefix, key, x, shards) for key, x in entries.items()}


def _variable(prefix: Path, key: str, data: memoryview, shards: int) -> Variable | str:
    stated = message(data)
    kind = signed(first(stated, 1))
    if kind not in DTYPES:
        return f"holds numbers of kind {kind}, not floating point"
    if 7 in stated:
        return "is stored in slices"
    shape = _shape(first(stated, 2))
    shard, start, size = (signed(first(stated, field)) for field in (3, 4, 5))
    if not 0 <= shard < shards < 10**5 or len(shape) > 64:
        raise Refusal(f"{key!a} must be in one of {shards} shards, got {shard}.")
    file = prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{shards:05}")
    if not file.is_file():
        raise Refusal(
            "All shards of a SavedModel must lie beside its index, got no "
            f"{file.name!r}. Fetch it again."
        )
    dtype, code = DTYPES[kind]
    entry = Entry(key, dtype, shape, code, start=start)
    check_size(shape, entry.stored_dtype.itemsize, size)
    if not 0 <= start <= file.stat().st_size - size:
        raise Refusal(f"{key!a} must lie inside {file.name!r}. Fetch it again.")
    return Variable(entry, file)


def _entries(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Keys and values of a table: an index of blocks, at the end, leads to them."""
    if len(data) < FOOTER or bytes(data[-8:]) != MAGIC:
        raise Refusal(
            "The index of a SavedModel must be a whole table. Fetch it again."
        )
    footer, at = data[-FOOTER:], 0
    handle: list[int] = []  # of the block about blocks, and of the index
    for _ in range(4):
        number, at = varint(footer, at)
        handle.append(number)
    last, count = None, 0
    for _, where in _block(data, *handle[2:]):
        start, at = varint(where, 0)
        size, _ = varint(where, at)
        for key, value in _block(data, start, size):
            count += 1
            if (last is not None and key <= last) or count > MOST_ENTRIES:
                raise Refusal("The keys of an index must be sorted, and not too many.")
            last = key
            yield key.decode("utf-8", "replace"), value


def _block(
    data: memoryview, start: int, size: int
) -> Iterator[tuple[bytes, memoryview]]:
    """The entries of a block, whose keys share their beginning with the one before."""
    if start + size + 5 > len(data) or size < 4:
        raise ValueError("a block is outside the file")
    if data[start + size]:
        raise Refusal("The index of a SavedModel must not be compressed.")
    block = data[start : start + size]
    restarts = int.from_bytes(block[-4:], "little")
    end, at, key = size - 4 - 4 * restarts, 0, b""
    while at < end:
        shared, at = varint(block, at)
        more, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or shared + more > MOST_KEY or at + more + length > end:
            raise ValueError("an entry is outside its block")
        key = key[:shared] + bytes(block[at : at + more])
        at += more + length
        yield key, block[at - length : at]


def _shape(data: memoryview | int | None) -> tuple[int, ...]:
    dims = message(data).get(2, [])
    return tuple(signed(first(message(dim), 1)) for dim in dims)


def tensor_constant(name: str, data: memoryview | int | None) -> Constant | str:
    """A constant tensor in a graph, or why it cannot be read."""
    stated = message(data)
    kind, shape = signed(first(stated, 1)), _shape(first(stated, 2))
    if kind not in DTYPES or len(shape) > 64:
        return f"holds numbers of kind {kind}, not floating point"
    dtype, code = DTYPES[kind]
    entry = Entry(name, dtype, shape, code, start=0)
    # As they lie in memory, or one by one, packed: the same for floats.
    content = first(stated, 4) or first(stated, {1: 5, 2: 6}.get(kind, 4))
    if not isinstance(content, memoryview):
        return "is not stored"
    try:
        check_size(shape, entry.stored_dtype.itemsize, len(content))
    except Refusal:  # one number may stand for all
        return f"of shape {shape} is stored in {len(content)} bytes"
    return Constant(entry, content)


def tensor_integers(data: memoryview | int | None) -> tuple[int, ...]:
    """The numbers of a constant tensor in a graph that states sizes.

    Where fewer are stored than it has, the last stands for the rest.
    """
    stated = message(data)
    kind, count = signed(first(stated, 1)), math.prod(_shape(first(stated, 2)))
    if kind not in INTEGERS or not 0 < count <= MOST_SIZES:
        raise ValueError("its sub-grids are not known")
    code, field = INTEGERS[kind]
    content = first(stated, 4)
    if isinstance(content, memoryview) and len(content):
        found = [int(n) for n in np.frombuffer(content, code)]
    else:
        found = [*itertools.islice(integers(stated.get(field, [])), count)]
    if not found:
        raise ValueError("its sub-grids are not known")
    return tuple([*found, *[found[-1]] * count][:count])


def tensor_texts(data: memoryview | int | None) -> list[str]:
    """The texts of a constant tensor in a graph."""
    return [text(value) for value in message(data).get(8, [])]
