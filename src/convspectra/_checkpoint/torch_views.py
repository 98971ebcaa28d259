"""PyTorch's tensors as views of the bytes in an archive, without PyTorch."""

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .stored import FLOATS, Entry, Refusal, opened, parsing

MOST_AXES = 64  # of a tensor
# NumPy's strings for the stored bytes, and how many each number has.
CODES: dict[str, str] = dict(
    zip(FLOATS, ("<f2", "bfloat16", "<f4", "<f8", "<c8", "<c16"))
)
ITEMSIZES: dict[str, int] = dict(zip(FLOATS, (2, 2, 4, 8, 8, 16)))


@dataclass(frozen=True, slots=True)
class View:
    """A tensor: which entries of a storage it has; checked when it is made.

    Attributes
    ----------
    name, dtype : str
        "float32" and the like; of other kinds, such as "int64", nothing is read.
    shape, strides : tuple of int
        Strides are in entries.
    offset : int
        Where it begins in the storage, in entries.
    member : ZipInfo
        The storage.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    member: zipfile.ZipInfo

    def __post_init__(self) -> None:
        numbers = (*self.shape, *self.strides, self.offset)
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise Refusal(f"{self.name!a} must have whole numbers as sizes.")
        if len(self.shape) != len(self.strides) or len(self.shape) > MOST_AXES:
            raise Refusal(f"{self.name!a} must have a stride for each of its axes.")
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides))
        needed = (self.offset + last + 1) * ITEMSIZES.get(self.dtype, 1)
        if math.prod(self.shape) and needed > self.member.file_size:
            raise Refusal(
                f"{self.name!a} must lie inside its {self.member.file_size} bytes, got "
                f"shape {self.shape}. The file is damaged: save it again."
            )

    @property
    def unsuitable(self) -> str:
        """Why this is no kernel, nor a matrix; empty if it is one."""
        if self.dtype not in CODES:
            return f"holds {self.dtype}, not floating point"
        if not math.prod(self.shape):
            return "has no entries"
        if math.prod(self.shape) * ITEMSIZES[self.dtype] > self.member.file_size:
            return "repeats its numbers beyond the size of the file"
        return ""

    @property
    def entry(self) -> Entry | None:
        """The bytes of it in one row; None if they are not."""
        row = np.cumprod([1, *self.shape[:0:-1]], dtype=object)[::-1]
        if self.dtype not in CODES or self.strides != tuple(row[: len(self.shape)]):
            return None
        start = self.offset * ITEMSIZES[self.dtype]
        code = CODES[self.dtype]
        return Entry(
            self.name, self.dtype, self.shape, code, start=start, member=self.member
        )

    def load(self, path: Path) -> np.ndarray:
        """Read the array from the archive at `path`."""
        plain = Entry(self.name, self.dtype, (), CODES[self.dtype]).stored_dtype
        with parsing("PyTorch file"), opened(path, self.member) as stream:
            numbers = np.frombuffer(stream.read(), np.uint8)
            size = len(numbers) // plain.itemsize * plain.itemsize
            numbers = numbers[:size].view(plain)[self.offset :]
            if not numbers.size:
                raise EOFError("it has no numbers")
        strides = [s * plain.itemsize for s in self.strides]
        view = np.lib.stride_tricks.as_strided(
            numbers, self.shape, strides, writeable=False
        )
        return np.array(view, plain.newbyteorder("="), order="C")
