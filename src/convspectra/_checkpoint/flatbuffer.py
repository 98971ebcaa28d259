"""Tables in the bytes of a flatbuffer, each read inside the file or refused."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .stored import Refusal


@dataclass(frozen=True, slots=True)
class Table:
    """A table: fields by number, in any order, and those with defaults left out."""

    data: bytes
    start: int

    def integer(self, field: int, code: str, default: int = 0) -> int:
        """A number, by the code of `struct`."""
        found = self._place(field)
        return default if found is None else _number(self.data, code, found)

    def table(self, field: int) -> "Table | None":
        found = self._target(field)
        return None if found is None else Table(self.data, found)

    def text(self, field: int, most: int) -> str:
        """A text, or as much of it as is wanted."""
        found = self.numbers(field, "u1")
        return found[:most].tobytes().decode("utf-8", "replace")

    def numbers(self, field: int, dtype: str) -> np.ndarray:
        """The numbers of a vector, empty if there is none."""
        start, count = self.vector(field)
        kind = np.dtype(dtype).newbyteorder("<")
        _check(self.data, start, count * kind.itemsize)
        return np.frombuffer(self.data, kind, count, start)

    def vector(self, field: int) -> tuple[int, int]:
        """Where the items of a vector begin, and how many there are."""
        found = self._target(field)
        if found is None:
            return 0, 0
        return found + 4, _number(self.data, "<I", found)

    def tables(self, field: int) -> Sequence["Table"]:
        """The tables of a vector; each is found when it is asked for."""
        return _Tables(self.data, self.vector(field)[0], self.numbers(field, "u4"))

    def _target(self, field: int) -> int | None:
        found = self._place(field)
        return None if found is None else found + _number(self.data, "<I", found)

    def _place(self, field: int) -> int | None:
        """Where a field is stored; None if it is not."""
        fields = self.start - _number(self.data, "<i", self.start)
        if 4 + 2 * field >= _number(self.data, "<H", fields):
            return None
        offset = _number(self.data, "<H", fields + 4 + 2 * field)
        return self.start + offset if offset else None


@dataclass(frozen=True, slots=True)
class _Tables(Sequence[Table]):
    data: bytes
    start: int
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> Table:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not 0 <= index < len(self.offsets):
            raise IndexError(f"there is no table {index}")
        return Table(self.data, self.start + 4 * index + int(self.offsets[index]))


def root(data: bytes) -> Table:
    """The table that a flatbuffer begins with."""
    return Table(data, _number(data, "<I", 0))


def _number(data: bytes, code: str, start: int) -> int:
    _check(data, start, struct.calcsize(code))
    return struct.unpack_from(code, data, start)[0]


def _check(data: bytes, start: int, size: int) -> None:
    if not 0 <= start <= len(data) - size:
        raise Refusal(
            f"All offsets must lead inside the file, got one to {start} in {len(data)} "
            "bytes. The file is cut short or damaged: save it again."
        )
