"""State dicts in PyTorch's files, by torch's safe loader and nothing else."""

import io
import zipfile
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .._base import replacing, require
from .pytorch_pickle import PickleWalk, refusal
from .records import LINEAR, Kernel, Network
from .stored import Entry, Refusal, members_of, parsing

WHAT = "PyTorch file"
NESTED = ("state_dict", "model_state_dict", "model")  # keys that trainers save it under
OPTIMIZER = {"state", "param_groups"}  # the keys of an optimizer's state
MOST_NAME = 300  # characters: names made of many keys could outgrow the file
ZIP, PICKLE = b"PK\x03\x04", b"\x80"  # how archives begin, and files before these
OLD_MAGIC, OLD_VERSION = 0x1950A86A20F9469CFC6C, 1001  # in files before archives


def read_pytorch(path: Path) -> Network:
    """Floating-point tensors with at least 3 axes are kernels, and may be with 2.

    Nothing is known of any geometry. The state dict may be the file's `state_dict`,
    `model_state_dict` or `model`; what is beside it is kept, and not looked at.
    """
    torch = require("torch", extra="torch")
    size = path.stat().st_size
    state, beside = _state_of(torch, _load(path))
    kernels: dict[str, Kernel] = {}
    skipped = [(name, "is beside the state dict") for name in beside]
    for name, value in _named(state):
        reason = _unsuitable(torch, name, value, size)
        if name in kernels:
            reason = "has the name of another tensor"
        if reason:
            skipped.append((name, reason))
        else:
            kernels[name] = _kernel(name, value)
    return Network(tuple(kernels.values()), tuple(skipped), partial(_copy_with, path))


def _load(path: Path) -> Any:
    """What a file holds, once it is seen what loading it would do."""
    torch = require("torch", extra="torch")
    start = _first_bytes(path)
    if start and start != ZIP and start[:1] != PICKLE:
        raise Refusal(
            "This must be a PyTorch file, got one that begins otherwise. If another "
            "program wrote it, export the network to ONNX there."
        )
    with parsing(WHAT):
        checked = (_checked_zip if start == ZIP else _checked_old)(path, torch)
        try:
            return torch.load(checked, weights_only=True, map_location="cpu")
        except Exception as error:
            raise refusal(_first_line(error)) from error


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(4)


def _first_line(error: Exception) -> str:
    """torch's messages are pages long; what they are about comes last."""
    text = str(error).partition("WeightsUnpickler error: ")[2] or str(error)
    return f"one that torch refuses ({text.strip().partition(chr(10))[0][:200]})"


def _itemsize(torch: Any, name: str) -> int:
    """Bytes of an entry, for the name of a dtype or of a class of storages."""
    if name == "torch.storage.UntypedStorage":
        return 1
    module, _, plain = name.rpartition(".")
    found: Any = getattr(torch, plain, None)
    dtype: Any = getattr(found, "dtype", found)
    if module != "torch" or not isinstance(dtype, torch.dtype):
        raise refusal(f"numbers of the kind {name}")
    return dtype.itemsize


def _checked_zip(path: Path, torch: Any) -> io.BytesIO:
    """The records of a file, each as long as stated, copied one by one.

    torch has its own reader of archives, which can find other members in a file than
    Python's does. It gets an archive in which there is nothing else to find.
    """
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        members = members_of(archive, size)
        check_directory(members.values(), size)
        root = next((n[:-8] for n in members if n.endswith("/data.pkl")), None)
        if root is None or f"{root}constants.pkl" in members:
            raise refusal("a compiled model, or another kind of archive")
        pickled = archive.read(f"{root}data.pkl")
        walk = PickleWalk(size, partial(_itemsize, torch))
        walk.through(io.BytesIO(pickled))
        records = ["version", "byteorder"]
        for storage in walk.storages.values():
            records.append(f"data/{storage.key}")
            found = members.get(f"{root}{records[-1]}")
            if found is None or found.file_size != storage.size:
                raise refusal(f"another size of storage {storage.key!a} than stated")
        copied = io.BytesIO()
        with zipfile.ZipFile(copied, "w") as copy:
            copy.writestr("archive/data.pkl", pickled)
            for record in records:
                if f"{root}{record}" in members:
                    copy.writestr(f"archive/{record}", archive.read(f"{root}{record}"))
    copied.seek(0)
    return copied


def check_directory(members: Collection[zipfile.ZipInfo], size: int) -> None:
    """See that an archive unpacks to no more than the file has bytes."""
    total = sum(info.file_size for info in members)
    plain = all(info.compress_type == zipfile.ZIP_STORED for info in members)
    if not plain or total > size:
        raise Refusal(
            f"The members of a {WHAT} must not be compressed, nor be larger than the "
            f"file, got {total} bytes in {size}. torch saves none like this: the file "
            "is damaged, or made to exhaust the memory."
        )


def _checked_old(path: Path, torch: Any) -> io.BytesIO:
    """A file of the format before archives: five pickles, then the storages."""
    stream = io.BytesIO(path.read_bytes())
    size = len(stream.getbuffer())
    walk = PickleWalk(size, partial(_itemsize, torch))
    if [walk.through(stream), walk.through(stream)] != [OLD_MAGIC, OLD_VERSION]:
        raise refusal("something else")
    walk.through(stream)  # about the machine it was saved on
    walk.through(stream)  # the state dict
    keys = walk.through(stream)
    # Each has its length before it, which torch compares.
    needed = sum(8 + storage.size for storage in walk.storages.values())
    if sorted(keys) != sorted(walk.storages) or needed > size - stream.tell():
        raise refusal("other storages than it states")
    stream.seek(0)
    return stream


def _state_of(torch: Any, found: Any) -> tuple[dict[Any, Any], list[str]]:
    """The state dict in what was loaded, and the names of what is beside it."""
    if not isinstance(found, dict):
        raise refusal(f"a {type(found).__name__}")
    for key in NESTED:
        inner = found.get(key)
        if isinstance(inner, dict) and any(
            isinstance(value, torch.Tensor) for _, value in _named(inner)
        ):
            return inner, [_text(name) for name in found if name != key]
    return found, []


def _named(
    state: dict[Any, Any], prefix: str = "", seen: set[int] | None = None
) -> Iterator[tuple[str, Any]]:
    """The entries of a dict of dicts, with keys joined by dots."""
    seen = set() if seen is None else seen
    if id(state) in seen:
        raise refusal("a dict that is found in two places")
    seen.add(id(state))
    for key, value in state.items():
        name = prefix + _text(key)
        if len(name) > MOST_NAME:
            raise refusal(f"a name of {len(name)} characters")
        if isinstance(value, dict) and not value.keys() >= OPTIMIZER:
            yield from _named(value, f"{name}.", seen)
        else:
            yield name, value


def _text(key: Any) -> str:
    return str(key) if isinstance(key, (str, int)) else type(key).__name__


def _unsuitable(torch: Any, name: str, value: Any, size: int) -> str:
    """Why a value is no kernel, empty if it is."""
    if not isinstance(value, torch.Tensor):
        return "is no tensor"
    if value.is_quantized or value.layout != torch.strided:
        return "is quantized or sparse"
    if value.device.type == "meta":
        return "has a shape alone, and no numbers"
    entry = Entry(name, _dtype(value), tuple(value.shape))
    unsuitable = "" if entry.is_matrix else entry.unsuitable
    if unsuitable or value.numel() == 0:
        return unsuitable or "has no entries"
    if value.numel() * value.element_size() > size:
        return "repeats its numbers beyond the size of the file"
    return ""


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _kernel(name: str, value: Any) -> Kernel:
    # A tensor may be one number with strides of zero.
    repeats = any(n > 1 and not s for n, s in zip(value.shape, value.stride()))
    matrix = value.ndim == 2
    return Kernel(
        name=name,
        shape=(*value.shape, *([1] if matrix else [])),
        dtype=_dtype(value),
        stated=LINEAR if matrix else {},
        load=partial(_array, value),
        linear=matrix,
        by_shape=matrix,
        not_writable_because="has one number in several places" if repeats else "",
    )


def _array(value: Any) -> np.ndarray:
    plain = value.detach().resolve_conj().resolve_neg().contiguous()
    plain = plain[..., None] if value.ndim == 2 else plain
    if _dtype(value) != "bfloat16":
        return plain.numpy().copy()
    torch = require("torch", extra="torch")
    dtype = require("ml_dtypes", extra="cli").bfloat16
    return plain.view(torch.int16).numpy().view(dtype).copy()


def _copy_with(path: Path, target: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Load the file again, put the arrays into its tensors, and save that."""
    torch = require("torch", extra="torch")
    loaded = _load(path)
    tensors = dict(reversed([*_named(_state_of(torch, loaded)[0])]))
    wanted = {}
    for name, array in arrays.items():
        value = tensors[name]
        data = bytearray(array.tobytes())
        wanted[name] = torch.frombuffer(data, dtype=value.dtype).reshape(value.shape)
        with torch.no_grad():
            value.copy_(wanted[name])
    for name, tensor in wanted.items():
        if not torch.equal(tensors[name], tensor):
            raise ValueError(
                f"{name!r} shares its numbers with another tensor, and both must get "
                "the same, got two. Change only one of them."
            )
    saved = io.BytesIO()
    with parsing(WHAT):
        torch.save(
            loaded, saved, _use_new_zipfile_serialization=_first_bytes(path) == ZIP
        )
    with replacing(target) as partial_file:
        partial_file.write_bytes(saved.getbuffer())
