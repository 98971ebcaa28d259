"""Kernels in Keras's files, .h5 and .keras, without Keras."""

import itertools
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .._base import require
from .files import COMPRESSED_BYTES, Refusal, parsing, to_bytes
from .hdf5_store import Store, open_store
from .keras_config import (
    Described,
    by_name,
    from_layer,
    layer_shape,
    layers_of,
    to_layer,
)
from .records import Kernel, Network

WHAT = "Keras file"
WEIGHTS, CONFIG = "model.weights.h5", "config.json"  # in a .keras file
CONFIG_BYTES = 2**24  # that it may have, if that is more than the file
OPTIMIZER = ("optimizer/", "optimizer_weights/")
ROLES = {
    "kernel": "conv",
    "depthwise_kernel": "depthwise",
    "pointwise_kernel": "pointwise",
}


@dataclass(frozen=True, slots=True)
class Weight:
    """A dataset, and what is known of it."""

    place: str
    name: str  # its layer's name, and its own
    role: str = ""  # what it is the kernel of
    layer: Described | None = None
    reason: str = ""  # why it is no kernel


def read_keras(path: Path) -> Network:
    """The kernels of convolutions and Dense layers, and what the file says of them.

    A file with a configuration says all but the grids. One with weights alone says by
    their names which are kernels.
    """
    require("h5py", extra="keras")
    with parsing(WHAT):
        if path.suffix.lower() == ".keras":
            store, config = _open_archive(path)
            weights = list(_new_weights(store, config))
        else:
            store = open_store(path)
            weights = list(_old_weights(store))
    counts = Counter(weight.name for weight in weights)
    kernels, skipped, known = [], [], {}
    for weight in weights:
        if counts[weight.name] > 1:
            weight = replace(weight, name=weight.place)
        found = _kernel(store, weight)
        if weight.name in known:
            found = "has the name of another weight"
        if isinstance(found, str):
            skipped.append((weight.name, found))
        else:
            kernels.append(found)
            known[weight.name] = (found, weight)
    skipped += _others(store, {weight.place for weight in weights})
    return Network(tuple(kernels), tuple(skipped), partial(_write, store, known))


def _kernel(store: Store, weight: Weight) -> Kernel | str:
    """A weight as a kernel, or why it is none."""
    entry, role = store.entry(weight.place), weight.role
    matrix = role == "dense" and len(entry.shape) == 2
    shape = (*entry.shape, 1) if matrix else entry.shape
    reason = replace(entry, shape=shape).unsuitable or weight.reason
    if reason or not role or 0 in shape:
        return reason or ("has no entries" if role else "is no kernel")
    try:
        stated = by_name(role, entry.shape)
        if weight.layer is not None:
            stated = weight.layer.geometry(role, entry.shape)
    except (ValueError, TypeError, LookupError):
        return "is not what the configuration of its layer states"
    fixed = "" if store.in_place(weight.place) else "is not stored as its plain bytes"
    return Kernel(
        name=weight.name,
        shape=layer_shape(role, entry.shape),
        stated=stated,
        load=lambda: np.array(to_layer(role, store.load(weight.place)), order="C"),
        linear=role == "dense",
        fixed=fixed,
    )


def _others(store: Store, known: set[str]) -> Iterator[tuple[str, str]]:
    """(name, reason) of datasets that belong to no layer."""
    rest = sorted(place for place in store.datasets if place not in known)
    if any(place.startswith(OPTIMIZER) for place in rest):
        yield "optimizer", "is the state of an optimizer"
    for place in rest:
        if not place.startswith(OPTIMIZER):
            reason = store.entry(place).unsuitable
            yield place, reason or "is of no layer that the file describes"


def _old_weights(store: Store) -> Iterator[Weight]:
    """The weights in an .h5 file, which lists the layers and the weights of each."""
    texts = store.texts.get("", {})
    bare = any(name.startswith("layer_names") for name in texts)
    root = "" if bare else "model_weights"
    config = texts.get("model_config")
    layers = list(layers_of(json.loads(config[0]))) if config else None
    index = _by_ends(layers or [])
    for group in _listed(store, root, "layer_names"):
        inside = f"{root}/{group}".removeprefix("/")
        paths = _listed(store, inside, "weight_names")
        cells = {p.rpartition("/")[0] for p in paths if "recurrent_kernel" in p}
        for path in paths:
            place = f"{inside}/{path}"
            if place not in store.datasets:
                raise Refusal(f"A {WHAT} must hold all it lists, got no {place!r}.")
            # The number is that of an output in TensorFlow's graphs.
            *scopes, name = re.sub(r":\d+$", "", path).split("/")
            weight = Weight(place, f"{group}/{name}")
            if layers is None:
                recurrent = path.rpartition("/")[0] in cells
                yield _by_name(weight, name, store.entry(place).shape, recurrent)
            else:
                ends = index.get((group,)) or index.get((group, *scopes[-1:]), [])
                yield _described(weight, name, _only(ends, scopes))


def _by_ends(layers: list[Described]) -> dict[tuple[str, ...], list[Described]]:
    """Layers by the model's layer that they are or are in, and by their own name."""
    found: dict[tuple[str, ...], list[Described]] = {}
    for layer in layers:
        found.setdefault((layer.names[0], *layer.names[1:][-1:]), []).append(layer)
    return found


def _only(layers: list[Described], scopes: list[str]) -> Described | None:
    """The one layer, or the one of several whose models a weight's path names."""
    if len(layers) > 1:
        layers = [
            one for one in layers if scopes[1 - len(one.names) :] == [*one.names[1:]]
        ]
    return layers[0] if len(layers) == 1 else None


def _described(weight: Weight, name: str, layer: Described | None) -> Weight:
    """A weight of a layer in the configuration."""
    if layer is None:
        return replace(weight, reason="is of no layer that the file describes")
    full, role = "/".join([*layer.names, name]), layer.role(name)
    reason = "" if role else f"is of a {layer.kind or 'custom'} layer"
    return replace(weight, name=full, role=role, layer=layer, reason=reason)


def _by_name(
    weight: Weight, name: str, shape: tuple[int, ...], recurrent: bool
) -> Weight:
    """A weight in a file without a configuration."""
    if recurrent:
        return replace(weight, reason="is of a recurrent layer")
    role = ROLES.get(name, "")
    if role == "conv" and len(shape) == 2:
        role = "dense"
    return replace(weight, role=role)


def _listed(store: Store, path: str, name: str) -> list[str]:
    """A list among the attributes, which is in several parts if it is long."""
    texts = store.texts.get(path, {})
    parts = [part for part in texts if re.fullmatch(rf"{name}\d*", part)]
    parts.sort(key=lambda part: int(part.removeprefix(name) or 0))
    items = [item for part in parts for item in texts[part]]
    if len(set(items)) < len(items):
        raise Refusal(f"`{name}` must list different names.")
    return items


def _open_archive(path: Path) -> tuple[Store, Any]:
    """The weights in a .keras file, and its configuration."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if len(members) < len(archive.infolist()):
            raise Refusal("The members of a file must have different names.")
        for name, info in members.items():
            plain = info.compress_type == zipfile.ZIP_STORED
            most = size if plain else COMPRESSED_BYTES
            if info.file_size > (max(size, CONFIG_BYTES) if name == CONFIG else most):
                raise Refusal(
                    f"The members of a {WHAT} must not be unreasonably large, got "
                    f"{info.file_size} bytes in {name!a}. The file is damaged, or made "
                    "to exhaust the memory."
                )
        if not {WEIGHTS, CONFIG} <= members.keys():
            raise Refusal(f"A {WHAT} must have {CONFIG} and {WEIGHTS} inside.")
        config = json.loads(archive.read(CONFIG))
    return open_store(path, members[WEIGHTS]), config


def _new_weights(store: Store, config: Any) -> Iterator[Weight]:
    """The weights in a .keras file, where layers are named by class and number."""
    for layer in layers_of(config):
        group, weights = f"{layer.place}/vars", list(layer.roles())
        own = store.texts.get(group, {}).get("name", [layer.names[-1]])
        if own != [layer.names[-1]]:
            continue  # the number does not mean what it does in Keras now
        for i in itertools.count():
            if f"{group}/{i}" not in store.datasets:
                break
            name = weights[i] if i < len(weights) else str(i)
            yield _described(Weight(f"{group}/{i}", ""), name, layer)


def _write(
    store: Store,
    known: Mapping[str, tuple[Kernel, Weight]],
    target: Path,
    arrays: Mapping[str, np.ndarray],
) -> None:
    stored = {}
    for name, array in arrays.items():
        kernel, weight = known[name]
        entry = replace(store.entry(weight.place), name=name)
        to_bytes(array, replace(entry, shape=kernel.shape))  # which checks it
        turned = from_layer(weight.role, array, entry.shape)
        stored[weight.place] = to_bytes(turned, entry)
    store.write(target, stored)
