"""What is in an HDF5 file, found in a process of its own.

HDF5 can crash, hang or ask for any memory when a file is damaged. Run as a script, with
the path of a file: prints its groups and datasets as JSON. With the name of a dataset,
too: prints the bytes of that.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

# How the names of those attributes begin that Keras's files are understood by.
TEXTS = ("model_config", "layer_names", "weight_names", "name", "dtype")
MOST_DEPTH = 60  # of groups in groups: the paths of deeper ones could outgrow the file


class Refused(Exception):
    """A sentence for the user."""


def main(path: Path, name: str | None = None) -> None:
    with h5py.File(path, "r", locking=False) as file:
        if name is None:
            json.dump(_contents(file, path.stat().st_size), sys.stdout)
        else:
            dataset: Any = file[name]
            sys.stdout.buffer.write(dataset[()].tobytes())


def _contents(file: Any, size: int) -> dict[str, Any]:
    """Texts by the path of what they belong to, and datasets by their path."""
    texts: dict[str, dict[str, list[str]]] = {}
    datasets: dict[str, dict[str, Any]] = {}
    seen, waiting = {_address(file)}, [("", file)]
    while waiting:
        path, group = waiting.pop()
        texts[path] = _texts(group, size)
        for name in group:
            inner = f"{path}/{name}" if path else name
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise Refused(f"An HDF5 file must have no links, got {inner!r}.")
            thing = group[name]
            if _address(thing) in seen or inner.count("/") > MOST_DEPTH:
                raise Refused(f"An HDF5 file must be a tree, got another at {inner!r}.")
            seen.add(_address(thing))
            if isinstance(thing, h5py.Group):
                waiting.append((inner, thing))
            elif isinstance(thing, h5py.Dataset):
                texts[inner] = _texts(thing, size)
                datasets[inner] = _dataset(thing, inner, size)
    return {"texts": {p: t for p, t in texts.items() if t}, "datasets": datasets}


def _address(thing: Any) -> tuple[int, int]:
    """What tells a group or dataset from all others, whatever its path."""
    low: Any = h5py  # whose compiled modules no type checker knows
    info = low.h5o.get_info(thing.id)
    return info.fileno, info.addr


def _texts(thing: Any, size: int) -> dict[str, list[str]]:
    """The attributes of a group or dataset that `TEXTS` names."""
    found = {}
    for name in thing.attrs:
        if not name.startswith(TEXTS):
            continue
        stored = h5py.h5a.open(thing.id, name.encode())
        count = stored.get_space().get_simple_extent_npoints()
        if count * stored.get_type().get_size() > size:
            raise Refused(f"The attribute {name!r} must not be larger than the file.")
        value = thing.attrs[name]
        items = [] if isinstance(value, h5py.Empty) else np.ravel(value).tolist()
        if all(isinstance(item, (str, bytes)) for item in items):
            found[name] = [
                item if isinstance(item, str) else item.decode() for item in items
            ]
    return found


def _dataset(dataset: Any, path: str, size: int) -> dict[str, Any]:
    """How a dataset is stored; `start` is None if not as its bytes in one row."""
    created = dataset.id.get_create_plist()
    layout = created.get_layout()
    if layout == h5py.h5d.VIRTUAL or created.get_external_count():
        raise Refused(f"A dataset must be in its own file, got another for {path!r}.")
    shape, dtype = dataset.shape or (), dataset.dtype
    found = {"shape": shape, "dtype": dtype.name, "code": dtype.str, "start": None}
    found["chunked"] = layout == h5py.h5d.CHUNKED  # and may be compressed
    plain = dtype.kind == "V" or (
        dtype.kind in "fc" and dataset.id.get_type() == h5py.h5t.py_create(dtype)
    )
    count = math.prod(shape) * dtype.itemsize
    if plain and layout == h5py.h5d.CONTIGUOUS:
        start = dataset.id.get_offset()  # anything, or None, if it was never written
        if start is not None and dataset.id.get_storage_size() == count <= size - start:
            found["start"] = start
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
