"""PyTorch's pickles gone through, not loaded: what they ask for is in the file.

torch's safe loader in a sandbox would not replace this: starting torch takes about
3 seconds for each file, and going through a pickle a millisecond. And all that the file
holds would have to come back from there, since a copy with other numbers keeps it.
"""

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from .stored import Refusal

MOST_AXES = 64  # of a tensor
# What makes tensors: views of a storage, and those that have none of their own.
PREFIX = "torch._utils._rebuild_"
VIEWS = ("tensor", "tensor_v2", "tensor_v3", "qtensor")
OTHERS = ("parameter", "sparse_tensor", "meta_tensor_no_storage")
# What else may be called: containers of items in the pickle, and values of fixed size.
CONTAINERS = ("collections.OrderedDict", "collections.Counter", "builtins.set")
SMALL = (
    "builtins.complex",
    "torch.Size",
    "torch.device",
    "torch.serialization._get_layout",
)
# Opcodes whose argument is the value, and those that stand for a constant.
LITERALS = (
    *("BINFLOAT", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINUNICODE", "SHORT_BINSTRING"),
)
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


@dataclass(slots=True, eq=False)
class Thing:
    """What a pickle would build or import: its kind, or the name it is imported by."""

    kind: str
    keys: list[Any] = field(default_factory=list)  # of a dict
    values: list[Any] = field(default_factory=list)  # of keys that were set later


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes that tensors are views of."""

    kind: str
    key: str
    count: int
    itemsize: int

    @property
    def size(self) -> int:
        return self.count * self.itemsize


class PickleWalk:
    """Goes through pickles as torch's safe loader would, and builds nothing.

    The loader calls no code but PyTorch's own. That may still be asked for more memory
    than the file has bytes: by storages and tensors of any size, by a `bytearray` of
    any length, by copies of copies. Or it may be made to hash forever. What passes here
    does none of this.

    Parameters
    ----------
    size : int
        Of the file.
    itemsize : function
        Returns the bytes of an entry, for the name of a dtype or a storage of torch.
    """

    def __init__(self, size: int, itemsize: Callable[[str], int]) -> None:
        self.storages: dict[str, Storage] = {}
        self._itemsize = itemsize
        self._left = size  # what calls may still copy

    def through(self, stream: IO[bytes]) -> Any:
        """Go through one pickle; return what it would build."""
        self._stack, self._marks, self._memo = [], [], {}
        for opcode, argument, _ in pickletools.genops(stream):
            name = opcode.name
            if name in LITERALS:
                if name == "SHORT_BINSTRING" and not str(argument).isascii():
                    raise refusal("a text that is not ASCII")
                self._stack.append(argument)
            elif name in CONSTANTS:
                self._stack.append(CONSTANTS[name])
            elif name not in ("PROTO", "STOP"):
                step = getattr(self, f"_{name.lower()}", None)
                if step is None:
                    raise refusal(f"an object made by {name}")
                step(argument)
        return self._stack.pop()

    def _mark(self, _: Any) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _items(self) -> list[Any]:
        """What was put on the stack since the last mark."""
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _binput(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _binget(self, index: int) -> None:
        self._stack.append(self._memo[index])

    _long_binput, _long_binget = _binput, _binget

    def _empty_list(self, _: Any) -> None:
        self._stack.append([])

    def _empty_dict(self, _: Any) -> None:
        self._stack.append(Thing("dict"))

    def _empty_set(self, _: Any) -> None:
        self._stack.append(Thing("set"))

    def _tuple(self, _: Any) -> None:
        items = self._items()
        self._stack.append(tuple(items))

    def _tuple1(self, _: Any) -> None:
        self._stack[-1:] = [(self._stack[-1],)]

    def _tuple2(self, _: Any) -> None:
        self._stack[-2:] = [(self._stack[-2], self._stack[-1])]

    def _tuple3(self, _: Any) -> None:
        self._stack[-3:] = [(self._stack[-3], self._stack[-2], self._stack[-1])]

    def _append(self, _: Any) -> None:
        self._extend([self._stack.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._items())

    def _extend(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise refusal("an object that items are added to")
        self._stack[-1].extend(items)

    def _setitem(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._update([key, value])

    def _setitems(self, _: Any) -> None:
        self._update(self._items())

    def _update(self, items: list[Any]) -> None:
        thing = self._dict(self._stack[-1])
        thing.keys.extend(_hashable(items[::2]))
        thing.values.extend(items[1::2])

    def _dict(self, thing: Any) -> Thing:
        if not isinstance(thing, Thing) or thing.kind != "dict":
            raise refusal("an object with items or attributes of its own")
        return thing

    def _build(self, _: Any) -> None:
        """Attributes of a dict: the versions that `state_dict` notes, no others."""
        state = self._dict(self._stack.pop())
        self._dict(self._stack[-1])
        if state.keys != ["_metadata"]:
            raise refusal("a dict with attributes of its own")

    def _global(self, name: str) -> None:
        module, _, name = name.partition(" ")
        module = "builtins" if module == "__builtin__" else module
        self._stack.append(Thing(f"{module}.{name}"))

    def _binpersid(self, _: Any) -> None:
        """A storage: ("storage", type, key, device, count), and None in old files."""
        match self._stack.pop():
            case ("storage", Thing(kind=kind), str(key), _, count, *view) if not any(
                view
            ):
                found = Storage(kind, key, _whole(count), self._itemsize(kind))
            case _:
                raise refusal("something other than a storage of numbers")
        if self.storages.setdefault(key, found) != found:
            raise refusal("one storage with two sizes")
        self._stack.append(found)

    def _newobj(self, _: Any) -> None:
        made = self._stack[-2]
        raise refusal(f"an object made by {getattr(made, 'kind', 'another')}")

    def _reduce(self, _: Any) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        name = function.kind if isinstance(function, Thing) else "an object"
        sizes = [len(a) for a in args if isinstance(a, (str, tuple, list))]
        self._left -= sum(sizes) + sum(len(a.keys) for a in args if type(a) is Thing)
        if self._left < 0:
            raise refusal("many copies of one object")
        self._stack.append(self._called(name, args))

    def _called(self, name: str, args: tuple[Any, ...]) -> Any:
        """What a call gives, if it may be made."""
        if name in CONTAINERS:
            keys = _hashable(_keys(name, args))
            return Thing("set" if name.endswith("set") else "dict", keys)
        if name == "_codecs.encode":
            text, codec = args
            if type(text) is str and codec in ("latin1", "latin-1"):
                return Thing("bytes")  # as bytes are pickled
        elif name in SMALL:
            if all(type(a) in (int, float, str, tuple) for a in args):
                return Thing("value")
        elif name.removeprefix(PREFIX) in VIEWS:
            dtype = args[6].kind if name.endswith("v3") else args[0].kind
            _check_view(*args[:4], itemsize=self._itemsize(dtype))
            if name.endswith("qtensor") and math.prod(args[2]) > args[0].count:
                raise refusal("a quantized tensor that repeats its numbers")
            return Thing("tensor")
        elif name.removeprefix(PREFIX) in OTHERS:
            return Thing("tensor")
        raise refusal(f"an object made by {name}")


def refusal(what: str) -> Refusal:
    """The error for all that is no state dict of plain tensors."""
    return Refusal(
        f"A PyTorch file must hold a plain state dict, got {what}. Only such files are "
        "read, since others can run any code: save `model.state_dict()`."
    )


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise refusal("a size that is no whole number")
    return value


def _hashable(keys: list[Any]) -> list[Any]:
    """Refuse keys that the loader would hash forever.

    A tuple is hashed by its items, one after another. If they are tuples, a few bytes
    of a pickle can stand for any number of them.
    """
    for key in keys:
        if type(key) is tuple and any(type(item) is tuple for item in key):
            raise refusal("a key of tuples in tuples")
    return keys


def _check_view(
    storage: Any, start: Any, shape: Any, strides: Any, *, itemsize: int
) -> None:
    """See that a tensor lies inside its storage."""
    if not isinstance(storage, Storage) or len(shape) != len(strides):
        raise refusal("a tensor without numbers")
    if len(shape) > MOST_AXES:
        raise refusal(f"a tensor with {len(shape)} axes")
    lasts = [(_whole(n) - 1) * _whole(s) for n, s in zip(shape, strides)]
    end = (_whole(start) + sum(lasts) + 1) * itemsize
    if math.prod(shape) and end > storage.size:
        raise refusal("a tensor with fewer numbers than its shape says")


def _keys(name: str, args: tuple[Any, ...]) -> list[Any]:
    """What a container holds, made empty or from items that are in the pickle."""
    match args:
        case ():
            return []
        case (Thing(kind="dict") as items,):
            return list(items.keys)
        case (list() as items,) if name != "collections.OrderedDict":
            return list(items)
        case (list() as items,):
            pairs = [p for p in items if isinstance(p, (tuple, list)) and len(p) == 2]
            if len(pairs) == len(items):
                return [key for key, _ in pairs]
    raise refusal(f"a {name} of something else than items")
