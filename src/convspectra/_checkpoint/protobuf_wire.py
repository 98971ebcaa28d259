"""Messages of Protocol Buffers as they lie in a file: values by numbers of fields."""

from collections.abc import Iterator
from typing import IO

MOST_FIELDS = 10**6  # of one message
HEAD = 20  # bytes of the two longest numbers, which may come before those of a field

Message = dict[int, list[int | memoryview]]


def message(data: memoryview | int | None) -> Message:
    """The values of a message: numbers, or bytes that hold a text or another message.

    Raises ValueError if these bytes are none.
    """
    if not isinstance(data, memoryview):
        return {}
    found: Message = {}
    at = count = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = _value(data, at, tag & 7)
        found.setdefault(tag >> 3, []).append(value)
        count += 1
        if count > MOST_FIELDS:
            raise ValueError(f"a message has more than {MOST_FIELDS} fields")
    return found


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number does not end")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _value(data: memoryview, at: int, kind: int) -> tuple[int | memoryview, int]:
    if kind == 0:
        return varint(data, at)
    size, at = _size(data, at, kind)
    if size > len(data) - at:
        raise ValueError("a field does not end")
    return data[at : at + size], at + size


def _size(data: memoryview, at: int, kind: int) -> tuple[int, int]:
    """How many bytes a field has that is no number, and where they begin."""
    if kind == 2:
        return varint(data, at)
    if kind in (1, 5):
        return 8 if kind == 1 else 4, at
    raise ValueError(f"a field is of kind {kind}")


def spans(stream: IO[bytes], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message in a file, and where their bytes begin and end.

    These bytes are not read. Numbers are left out.
    """
    while start < end:
        stream.seek(start)
        head = memoryview(stream.read(min(HEAD, end - start)))
        tag, at = varint(head, 0)
        if tag & 7 == 0:
            start += varint(head, at)[1]
            continue
        size, at = _size(head, at, tag & 7)
        start += at
        if size > end - start:
            raise ValueError("a field does not end")
        yield tag >> 3, start, start + size
        start += size


def signed(value: int | memoryview | None) -> int:
    """A number that may be negative; 0 if it is left out."""
    if not isinstance(value, int):
        return 0
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


def first(found: Message, field: int) -> int | memoryview | None:
    """The value of a field that is there once; the last counts, as everywhere."""
    return found[field][-1] if field in found else None


def text(value: int | memoryview | None) -> str:
    if not isinstance(value, memoryview):
        return ""
    return bytes(value).decode("utf-8", "replace")


def integers(values: list[int | memoryview]) -> Iterator[int]:
    """The numbers of a repeated field, packed or one by one."""
    for value in values:
        if isinstance(value, int):
            yield signed(value)
        else:
            at = 0
            while at < len(value):
                number, at = varint(value, at)
                yield signed(number)
