"""The modules in a TorchScript file: what its pickles would build, as plain records."""

from dataclasses import dataclass, field
from typing import Any

from .pytorch_pickle import PREFIX, PickleWalk, Storage, Thing, refusal

# Kinds of numbers by the class of a storage, and the bytes of each.
STORAGES = {
    **{"torch.HalfStorage": ("float16", 2), "torch.BFloat16Storage": ("bfloat16", 2)},
    **{"torch.FloatStorage": ("float32", 4), "torch.DoubleStorage": ("float64", 8)},
    "torch.ComplexFloatStorage": ("complex64", 8),
    "torch.ComplexDoubleStorage": ("complex128", 16),
    **{"torch.LongStorage": ("int64", 8), "torch.IntStorage": ("int32", 4)},
    **{"torch.ShortStorage": ("int16", 2), "torch.CharStorage": ("int8", 1)},
    **{"torch.ByteStorage": ("uint8", 1), "torch.BoolStorage": ("bool", 1)},
    **{"torch.QInt8Storage": ("qint8", 1), "torch.QUInt8Storage": ("quint8", 1)},
    "torch.QInt32Storage": ("qint32", 4),
}
LISTS = "torch.jit._pickle.build_"  # and the kind of their items
TAGGED = "torch.jit._pickle.restore_type_tag"


@dataclass(slots=True, eq=False)
class Module:
    """An object of a class that the file's own code defines."""

    kind: str  # the class's name, with its module's
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Which entries of a storage a tensor has."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class ScriptWalk(PickleWalk):
    """Goes through the pickles of a TorchScript file, and keeps what they describe."""

    def __init__(self, size: int) -> None:
        super().__init__(size, _itemsize)

    def _newobj(self, _: Any) -> None:
        args, made = self._stack.pop(), self._stack.pop()
        kind = made.kind if isinstance(made, Thing) else ""
        if args != () or not kind.startswith("__torch__."):
            raise refusal(f"an object made by {kind or 'another'}")
        self._stack.append(Module(kind))

    def _build(self, _: Any) -> None:
        state, made = self._dict(self._stack.pop()), self._stack[-1]
        if not isinstance(made, Module) or len(state.keys) != len(state.values):
            raise refusal("an object with a state of its own")
        self._left -= len(state.keys)
        if self._left < 0:
            raise refusal("many copies of one object")
        for name, value in zip(state.keys, state.values):
            if not isinstance(name, str):
                raise refusal("an attribute without a name")
            made.attributes[name] = value

    def _called(self, name: str, args: tuple[Any, ...]) -> Any:
        if name.startswith(LISTS) and len(args) == 1 and isinstance(args[0], list):
            return args[0]
        if name == TAGGED and len(args) == 2:
            return args[0]
        made = super()._called(name, args)
        if name in (f"{PREFIX}tensor", f"{PREFIX}tensor_v2"):
            storage, offset, shape, strides = list(args)[:4]
            return Tensor(storage, offset, tuple(shape), tuple(strides))
        return made


def _itemsize(name: str) -> int:
    if name not in STORAGES:
        raise refusal(f"numbers of the kind {name}")
    return STORAGES[name][1]
