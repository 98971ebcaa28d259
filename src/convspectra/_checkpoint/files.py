"""Kernels in .npy, .npz and .safetensors files: read one at a time, written whole."""

import copy
import io
import json
import math
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from .._base import replacing, require

FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
HEADER_BYTES = 2**14  # of an .npy: longer ones are not NumPy's own
LAYOUTS = {  # of kernels, by what a .safetensors file says that it was saved from
    "pt": "oihw",
    "tf": "hwio",
    "keras": "hwio",
    "flax": "hwio",
    "jax": "hwio",
}
COMPRESSED_BYTES = 2**32  # that one compressed array may grow to

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
class Entry:
    """An array in a file, as the header states it; its numbers are still on disk."""

    name: str
    dtype: str  # for people: "float32", "int64", "object"
    shape: tuple[int, ...]
    code: str = ""  # NumPy's string for the stored bytes, of floating point only
    fortran: bool = False
    start: int = 0  # where the bytes begin, in the file or in its member
    member: zipfile.ZipInfo | None = None  # of an .npz

    @property
    def unsuitable(self) -> str:
        """Why this cannot be a kernel, empty if it can."""
        if self.dtype == "object":
            return "holds pickled objects, which are never loaded"
        if self.dtype not in FLOATS:
            return f"holds {self.dtype}, not floating point"
        if len(self.shape) < 3:
            return "has fewer than 3 axes"
        return ""


def entries(path: Path) -> tuple[Entry, ...]:
    """Return the arrays of a file in their order, after a look at the headers alone.

    Every header is checked against the size of the file: what it states is there.
    """
    if suffix_of(path) not in ARRAY_FILES:
        raise ValueError(
            f"A file of kernels must end in {', '.join(ARRAY_FILES)}, got "
            f"{path.suffix or 'no suffix'}. Save the weights in one of these formats."
        )
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError("Kernels must come from a regular file, got something else.")
    return ARRAY_FILES[suffix_of(path)](path, size)


def suffix_of(path: Path) -> str:
    """The suffix of a file, which says its format, in small letters."""
    return path.suffix.lower()


def read(path: Path, entry: Entry) -> np.ndarray:
    """Return the numbers of one array that `entries` found, in native byte order."""
    if entry.member is None:
        with path.open("rb") as stream:
            stream.seek(entry.start)
            return numbers_of(stream, entry)
    with (
        parsing(".npz file"),
        zipfile.ZipFile(path) as archive,
        archive.open(entry.member) as stream,
    ):
        stream.read(entry.start)  # a seek might skip the check of the sum
        return numbers_of(stream, entry)


def write_copy(source: Path, target: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy a file with other numbers in some arrays, of the same shape and dtype.

    All the rest is kept as it is: names, order, metadata and the other arrays.
    """
    changed = {e.name: e for e in entries(source) if e.name in arrays}
    stored = {name: to_bytes(arrays[name], entry) for name, entry in changed.items()}
    with replacing(target) as partial:
        if suffix_of(source) == ".npz":
            members = {e.member.filename: e for e in changed.values() if e.member}
            copy_zip(source, partial, members, stored)
            return
        shutil.copyfile(source, partial)
        with partial.open("r+b") as stream:
            for name, entry in changed.items():
                stream.seek(entry.start)
                stream.write(stored[name])


def write_npz(target: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a new .npz file."""
    # Not by `np.savez`, whose own arguments are names that an array cannot have.
    with replacing(target) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def check_target(target: Path, suffix: str) -> None:
    """Refuse a target that cannot be written, before any work is done for it."""
    if suffix_of(target) != suffix:
        raise ValueError(f"The output must end in {suffix}, got {str(target)!r}.")
    if not target.parent.is_dir():
        raise ValueError(
            f"The output must be in a folder that exists, got {str(target)!r}."
        )
    if target.exists() and not target.is_file():
        raise ValueError(f"The output must be a file, got {str(target)!r}.")


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Turn whatever a parser makes of arbitrary bytes into one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of other NumPy versions
            yield
    except (OSError, Refusal):
        raise
    except Exception as error:
        raise Refusal(
            f"This must be a whole {what}, got one that is damaged or cut short "
            f"({str(error) or type(error).__name__}). Save it again."
        ) from error


class Refusal(ValueError):
    """A file that is refused, with the reason."""


def _npy_entries(path: Path, size: int) -> tuple[Entry, ...]:
    with path.open("rb") as stream:
        return (_npy_entry(stream, size, path.stem),)


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
    return Entry(name, dtype.name, shape, code, fortran, head.tell(), member)


def check_size(shape: tuple[int, ...], itemsize: int, size: int) -> None:
    if min(shape, default=0) < 0:
        raise Refusal(f"The sizes of an array must not be negative, got {shape}.")
    wanted = math.prod(shape) * itemsize
    if wanted != size:
        raise Refusal(
            f"An array of shape {shape} must have {wanted} bytes, got {size}. The file "
            "is cut short or damaged: save it again."
        )


def _npz_entries(path: Path, size: int) -> tuple[Entry, ...]:
    with parsing(".npz file"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        names = [info.filename.removesuffix(".npy") for info in members]
        if len(set(names)) < len(names):
            raise Refusal("The arrays of a file must have different names.")
        return tuple(
            _npz_entry(archive, info, name, size) for info, name in zip(members, names)
        )


def _npz_entry(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, size: int
) -> Entry:
    plain = info.compress_type == zipfile.ZIP_STORED
    if info.file_size > (size if plain else COMPRESSED_BYTES):
        raise Refusal(
            f"{name!r} must have at most {COMPRESSED_BYTES} bytes when compressed, and "
            f"no more than its file when not, got {info.file_size} according to the "
            "directory. The file is damaged, or made to exhaust the memory."
        )
    if not info.filename.endswith(".npy"):
        return Entry(name, "something other than an array", (), member=info)
    with archive.open(info) as stream:
        return _npy_entry(stream, info.file_size, name, info)


def _safetensors_entries(path: Path, _size: int) -> tuple[Entry, ...]:
    safetensors = require("safetensors", extra="cli")
    with parsing(".safetensors file"):
        # Opening checks the header: offsets in order, without holes, inside the file.
        with safetensors.safe_open(path, framework="numpy") as checked:
            names = checked.keys()
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
        found = []
        for name in sorted(names, key=lambda name: header[name]["data_offsets"]):
            tag, shape = header[name]["dtype"], tuple(header[name]["shape"])
            dtype, code = _SAFETENSORS.get(tag, (tag, ""))
            start = 8 + length + header[name]["data_offsets"][0]
            found.append(Entry(name, dtype, shape, code, start=start))
        return tuple(found)


ARRAY_FILES = {  # what lists the arrays of a file, by its suffix
    ".npy": _npy_entries,
    ".npz": _npz_entries,
    ".safetensors": _safetensors_entries,
}


def layout_of(path: Path) -> str | None:
    """The layout of kernels that a .safetensors file states by its "format"."""
    if suffix_of(path) != ".safetensors":
        return None
    with parsing(".safetensors file"):
        safetensors = require("safetensors", extra="cli")
        with safetensors.safe_open(path, framework="numpy") as checked:
            metadata = checked.metadata() or {}
    return LAYOUTS.get(metadata.get("format", ""))


def _dtype(entry: Entry) -> np.dtype:
    if entry.code == "bfloat16":
        return np.dtype(require("ml_dtypes", extra="cli").bfloat16)
    return np.dtype(entry.code)


def numbers_of(stream: IO[bytes], entry: Entry) -> np.ndarray:
    """Read an array whose bytes are next in the stream, in native byte order."""
    dtype = _dtype(entry)
    size = math.prod(entry.shape) * dtype.itemsize
    data = stream.read(size)
    check_size(entry.shape, dtype.itemsize, len(data))
    order = "F" if entry.fortran else "C"
    array = np.frombuffer(data, dtype).reshape(entry.shape, order=order)
    return array.astype(dtype.newbyteorder("="))


def to_bytes(array: np.ndarray, entry: Entry) -> bytes:
    """Return the bytes to be stored in the place of `entry`, after a check."""
    if array.shape != entry.shape or array.dtype.name != entry.dtype:
        raise ValueError(
            f"{entry.name!r} must keep shape {entry.shape} and dtype {entry.dtype}, "
            f"got {array.shape} and {array.dtype.name}."
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{entry.name!r} must stay finite, got NaN or infinity in it.")
    order = "F" if entry.fortran else "C"
    return array.astype(_dtype(entry)).tobytes(order=order)


def copy_zip(
    source: Path,
    target: Path,
    changed: Mapping[str, Entry],
    stored: Mapping[str, bytes],
) -> None:
    """Copy an archive with other bytes behind the headers of some members."""
    with (
        parsing(".npz file"),
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(target, "w") as new,
    ):
        new.comment = old.comment
        for info in old.infolist():
            entry = changed.get(info.filename)
            with (
                old.open(info) as there,
                new.open(copy.copy(info), "w", force_zip64=True) as here,
            ):
                if entry is None:
                    shutil.copyfileobj(there, here)
                else:
                    here.write(there.read(entry.start))
                    here.write(stored[entry.name])
