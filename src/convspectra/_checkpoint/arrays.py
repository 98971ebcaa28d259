"""Kernels among the arrays of .npy, .npz and .safetensors files."""

import io
import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._base import require
from .content import suffix_of
from .records import LINEAR, Kernel, Network
from .stored import (
    FLOATS,
    Entry,
    Patch,
    Refusal,
    check_size,
    members_of,
    opened,
    parsing,
    write_patched,
)

HEADER_BYTES = 2**14  # of an .npy: longer ones are not NumPy's own

# The layout of kernels, by what a .safetensors file says that it was saved from.
LAYOUTS = {"pt": "oihw"} | dict.fromkeys(("tf", "keras", "flax", "jax"), "hwio")

LOOKS_HWIO = (
    "The kernels look as if they were (*kernel, in, out), as in Keras, but are read\n"
    "as (out, in, *kernel). If Keras's layout is theirs, pass --layout hwio."
)

# The dtype for people and the code of stored bytes, by the names of .safetensors.
_SAFETENSORS = {
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "bfloat16"),
    "F32": ("float32", "<f4"),
    "F64": ("float64", "<f8"),
    "C64": ("complex64", "<c8"),
}
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs in names of fields alone
}


@dataclass(frozen=True, slots=True)
class Contents:
    """The arrays of a file in their order, and the layout of kernels that it states."""

    entries: tuple[Entry, ...]
    layout: str | None = None


def read_arrays(path: Path, layout: str | None) -> Network:
    """Every floating-point array with at least 3 axes is a kernel, and may be with 2.

    Its layout is the one given; else what the file says; else (out, in, *kernel).
    """
    contents = contents_of(path)
    stated = layout or contents.layout
    layout = stated or "oihw"
    entries = {entry.name: entry for entry in contents.entries}
    kernels = tuple(
        kernel_of(path, entry, layout)
        for entry in entries.values()
        if not entry.unsuitable or entry.is_matrix
    )
    return Network(
        kernels=kernels,
        skipped=tuple(
            (name, entry.unsuitable)
            for name, entry in entries.items()
            if entry.unsuitable and not entry.is_matrix
        ),
        copy_with=partial(_copy_with, path, entries, layout),
        advice=() if stated or not _look_hwio(kernels) else (LOOKS_HWIO,),
    )


def _look_hwio(kernels: Iterable[Kernel]) -> bool:
    """Whether the first axes of all kernels are rather windows, and the last channels.

    Windows are mostly square, and have fewer taps than a layer has pairs of channels.
    Those of one axis and those of one tap decide nothing.
    """
    shapes = [kernel.shape for kernel in kernels if len(kernel.shape) > 3]
    return any(shape[0] > 1 for shape in shapes) and all(
        len(set(shape[:-2])) == 1 and math.prod(shape[:-2]) < math.prod(shape[-2:])
        for shape in shapes
    )


def contents_of(path: Path) -> Contents:
    """What is in a file, by its headers alone.

    Every header is checked against the size of the file: what it states is there.
    """
    return ARRAY_FILES[suffix_of(path) or path.suffix.lower()](path)


def kernel_of(path: Path, entry: Entry, layout: str) -> Kernel:
    """One array of a file, turned to the layout of `Layer`."""
    order, matrix = _order(layout, len(entry.shape)), entry.is_matrix
    shape = (*(entry.shape[axis] for axis in order), *([1] if matrix else []))
    return Kernel(
        name=entry.name,
        shape=shape,
        dtype=entry.dtype,
        stated=LINEAR if matrix else {},
        load=lambda: np.transpose(_load(path, entry), order).reshape(shape),
        linear=matrix,
        by_shape=matrix,
    )


def _load(path: Path, entry: Entry) -> np.ndarray:
    with parsing("file of arrays"), opened(path, entry.member) as stream:
        if entry.member is None:
            stream.seek(entry.start)
        else:
            stream.read(entry.start)  # a seek might skip the check of the sum
        return entry.read_from(stream)


def _order(layout: str, axes: int) -> tuple[int, ...]:
    """Which axis of an array in the layout is each axis of (out, in, *kernel)."""
    if layout == "oihw":
        return tuple(range(axes))
    return (axes - 1, axes - 2, *range(axes - 2))


def _copy_with(
    source: Path,
    entries: Mapping[str, Entry],
    layout: str,
    target: Path,
    arrays: Mapping[str, np.ndarray],
) -> None:
    patches = []
    for name, array in arrays.items():
        entry = entries[name]
        plain = array.reshape(array.shape[: len(entry.shape)])  # a matrix has one more
        turned = np.transpose(plain, np.argsort(_order(layout, plain.ndim)))
        patches.append(Patch(entry, entry.to_bytes(turned)))
    write_patched(source, target, patches)


def _npy_contents(path: Path) -> Contents:
    with path.open("rb") as stream:
        return Contents((_npy_entry(stream, path.stat().st_size, path.stem),))


def _npy_entry(
    stream: IO[bytes], size: int, name: str, member: zipfile.ZipInfo | None = None
) -> Entry:
    """Read the header of an array whose file or member has `size` bytes."""
    with parsing(".npy array"):
        head = io.BytesIO(stream.read(HEADER_BYTES))
        version = np.lib.format.read_magic(head)
        shape, fortran, dtype = _HEADERS[version](head)
    if dtype.hasobject:
        return Entry(name, "object", shape, member=member)
    check_size(shape, dtype.itemsize, size - head.tell())
    code = dtype.str if dtype.name in FLOATS else ""
    order = "F" if fortran else "C"
    return Entry(name, dtype.name, shape, code, order, head.tell(), member)


def _npz_contents(path: Path) -> Contents:
    with parsing(".npz file"), zipfile.ZipFile(path) as archive:
        members = members_of(archive, path.stat().st_size)
        found = tuple(_npz_entries(archive, members))
        if len({entry.name for entry in found}) < len(found):
            raise Refusal("The arrays of a file must have different names.")
        return Contents(found)


def _npz_entries(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]
) -> Iterator[Entry]:
    for name, info in members.items():
        if name.endswith(".npy"):
            with archive.open(info) as stream:
                name = name.removesuffix(".npy")
                yield _npy_entry(stream, info.file_size, name, info)
        else:
            yield Entry(name, "something other than an array", (), member=info)


def _safetensors_contents(path: Path) -> Contents:
    safetensors = require("safetensors", extra="cli")
    with parsing(".safetensors file"):
        # Opening checks the header: offsets in order, without holes, inside the file.
        with safetensors.safe_open(path, framework="numpy") as checked:
            names, metadata = checked.keys(), checked.metadata() or {}
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
        found = [
            _safetensors_entry(name, header[name], 8 + length)
            for name in sorted(names, key=lambda name: header[name]["data_offsets"])
        ]
    return Contents(tuple(found), LAYOUTS.get(metadata.get("format", "")))


def _safetensors_entry(name: str, tensor: dict[str, Any], start: int) -> Entry:
    """A tensor of the header, after which the bytes start."""
    dtype, code = _SAFETENSORS.get(tensor["dtype"], (tensor["dtype"], ""))
    start += tensor["data_offsets"][0]
    return Entry(name, dtype, tuple(tensor["shape"]), code, start=start)


# What lists the arrays of a file, by its suffix.
ARRAY_FILES = {
    ".npy": _npy_contents,
    ".npz": _npz_contents,
    ".safetensors": _safetensors_contents,
}
