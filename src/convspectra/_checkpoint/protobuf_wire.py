"""Messages of Protocol Buffers as they lie in a file: values by numbers of fields."""

from collections.abc import Iterator

MOST_FIELDS = 10**6  # of one message

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
    if kind == 2:
        size, at = varint(data, at)
    elif kind in (1, 5):
        size = 8 if kind == 1 else 4
    else:
        raise ValueError(f"a field is of kind {kind}")
    if size > len(data) - at:
        raise ValueError("a field does not end")
    return data[at : at + size], at + size


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
