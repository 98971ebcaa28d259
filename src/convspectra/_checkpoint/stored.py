"""Arrays as files store them: what is stated of each, its bytes, and other bytes."""

import copy
import io
import math
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np

from .._base import replacing, require

FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
# Bytes to which one compressed array may grow: more than any kernel in use has, and
# little enough for a machine to survive a file that is made to exhaust its memory.
COMPRESSED_BYTES = 2**32


class Refusal(ValueError):
    """A file that is refused, with the reason."""


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Turn whatever a parser makes of arbitrary bytes into one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of other NumPy versions
            yield
    except (ImportError, OSError, Refusal):
        raise
    except Exception as error:
        raise Refusal(
            f"This must be a whole {what}, got one that is damaged or cut short "
            f"({str(error) or type(error).__name__}). Save it again."
        ) from error


@dataclass(frozen=True, slots=True)
class Entry:
    """An array in a file, as the header states it; its values are still on disk."""

    name: str
    dtype: str  # for people: "float32", "int64", "object"
    shape: tuple[int, ...]
    code: str = ""  # NumPy's string for the stored bytes, of floating point only
    order: Literal["C", "F"] = "C"  # F: the first axis varies fastest
    start: int = 0  # where the bytes begin, in the file or in its member
    member: zipfile.ZipInfo | None = None  # of a zip file

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

    @property
    def is_matrix(self) -> bool:
        """Whether this can be the weight of a linear layer, by its shape."""
        return self.dtype in FLOATS and len(self.shape) == 2 and 0 not in self.shape

    @property
    def stored_dtype(self) -> np.dtype:
        if self.code == "bfloat16":
            return np.dtype(require("ml_dtypes", extra="cli").bfloat16)
        return np.dtype(self.code)

    def read_from(self, stream: IO[bytes]) -> np.ndarray:
        """Read the array, whose bytes are next in the stream, in native byte order."""
        dtype = self.stored_dtype
        data = stream.read(math.prod(self.shape) * dtype.itemsize)
        check_size(self.shape, dtype.itemsize, len(data))
        array = np.frombuffer(data, dtype).reshape(self.shape, order=self.order)
        return array.astype(dtype.newbyteorder("="))

    def to_bytes(self, array: np.ndarray) -> bytes:
        """The bytes to store instead of this array."""
        return array.astype(self.stored_dtype).tobytes(order=self.order)


def check_size(shape: tuple[int, ...], itemsize: int, size: int) -> None:
    """Refuse an array whose bytes are not as many as its shape says."""
    if min(shape, default=0) < 0:
        raise Refusal(f"The sizes of an array must not be negative, got {shape}.")
    wanted = math.prod(shape) * itemsize
    if wanted != size:
        raise Refusal(
            f"An array of shape {shape} must have {wanted} bytes, got {size}. The file "
            "is cut short or damaged: save it again."
        )


def members_of(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members of a zip file of `size` bytes by name, if they are not too large."""
    members = {info.filename: info for info in archive.infolist()}
    if len(members) < len(archive.infolist()):
        raise Refusal("The members of a file must have different names.")
    for info in members.values():
        plain = info.compress_type == zipfile.ZIP_STORED
        check_member(info, size if plain else COMPRESSED_BYTES)
    return members


def check_member(info: zipfile.ZipInfo, most: int) -> None:
    """Refuse a member of more than `most` bytes by what the directory says."""
    if info.file_size > most:
        raise Refusal(
            f"{info.filename!a} must unpack to at most {most} bytes in this file, got "
            f"{info.file_size} according to the directory. The file is damaged, or "
            "made to exhaust the memory."
        )


@contextmanager
def opened(path: Path, member: zipfile.ZipInfo | None = None) -> Iterator[IO[bytes]]:
    """A file, or a member of a zip file, to read from its beginning."""
    if member is None:
        with path.open("rb") as stream:
            yield stream
    else:
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            yield stream


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes to store where an entry has its own."""

    entry: Entry
    data: bytes


def write_patched(source: Path, target: Path, patches: Sequence[Patch]) -> None:
    """Copy a file, or a zip file with its members, with other bytes in some arrays.

    All the rest is kept as it is: names, order, metadata and the other arrays.
    """
    with replacing(target) as partial:
        if any(patch.entry.member for patch in patches):
            _copy_zip(source, partial, patches)
            return
        shutil.copyfile(source, partial)
        with partial.open("r+b") as stream:
            _apply(patches, stream)


def _copy_zip(source: Path, target: Path, patches: Sequence[Patch]) -> None:
    patched: dict[str, list[Patch]] = {}
    for patch in patches:
        if patch.entry.member is not None:
            patched.setdefault(patch.entry.member.filename, []).append(patch)
    with (
        parsing("zip file"),
        zipfile.ZipFile(source) as old,
        zipfile.ZipFile(target, "w") as new,
    ):
        new.comment = old.comment
        for info in old.infolist():
            with (
                old.open(info) as reading,
                new.open(copy.copy(info), "w", force_zip64=True) as writing,
            ):
                if info.filename in patched:
                    whole = io.BytesIO(reading.read())
                    _apply(patched[info.filename], whole)
                    writing.write(whole.getbuffer())
                else:
                    shutil.copyfileobj(reading, writing)


def _apply(patches: Sequence[Patch], stream: IO[bytes]) -> None:
    for patch in patches:
        stream.seek(patch.entry.start)
        stream.write(patch.data)
