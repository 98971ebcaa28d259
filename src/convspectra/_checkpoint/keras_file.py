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
from .content import suffix_of
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
from .stored import Patch, Refusal, check_member, members_of, parsing, write_patched

WHAT = "Keras file"
WEIGHTS, CONFIG = "model.weights.h5", "config.json"  # in a .keras file
# Bytes that a compressed configuration may have in a file that is smaller: it is parsed
# as a whole, and no model's comes near this.
CONFIG_BYTES = 2**24
OPTIMIZER = ("optimizer/", "optimizer_weights/")  # where files keep its state
# What a weight of this name is the kernel of, where no configuration says it.
ROLES = {
    "kernel": "conv",
    "depthwise_kernel": "depthwise",
    "pointwise_kernel": "pointwise",
}


@dataclass(frozen=True, slots=True)
class Weight:
    """A dataset, and what is known of it."""

    dataset: str  # its path
    name: str  # its layer's name, and its own
    role: str = ""  # what it is the kernel of
    layer: Described | None = None
    reason: str = ""  # why it is no kernel


def read_keras(path: Path) -> Network:
    """The kernels of convolutions and Dense layers, and what the file says of them.

    A file with a configuration says all, but for grids that do not follow from the
    input's. One with weights alone says by their names which are kernels.
    """
    require("h5py", extra="hdf5")
    with parsing(WHAT):
        if (suffix_of(path) or path.suffix.lower()) == ".keras":
            store, config = _open_archive(path)
            weights = list(_new_weights(store, config))
        else:
            store = open_store(path)
            weights = list(_old_weights(store))
    counts = Counter(weight.name for weight in weights)
    kernels: list[Kernel] = []
    skipped: list[tuple[str, str]] = []
    by_name: dict[str, Weight] = {}
    for weight in weights:
        if counts[weight.name] > 1:
            weight = replace(weight, name=weight.dataset)
        kernel = _kernel(store, weight)
        if weight.name in by_name:
            kernel = "has the name of another weight"
        if isinstance(kernel, str):
            skipped.append((weight.name, kernel))
        else:
            kernels.append(kernel)
            by_name[weight.name] = weight
    skipped += _others(store, {weight.dataset for weight in weights})
    copy_with = partial(_copy_with, store, by_name)
    return Network(tuple(kernels), tuple(skipped), copy_with)


def _kernel(store: Store, weight: Weight) -> Kernel | str:
    """A weight as a kernel, or why it is none."""
    entry, role = store.entry(weight.dataset), weight.role
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
    plain = store.is_contiguous(weight.dataset)
    return Kernel(
        name=weight.name,
        shape=layer_shape(role, entry.shape),
        dtype=entry.dtype,
        stated=stated,
        load=lambda: np.array(to_layer(role, store.load(weight.dataset)), order="C"),
        linear=role == "dense",
        not_writable_because="" if plain else "is not stored as its plain bytes",
    )


def _others(store: Store, known: set[str]) -> Iterator[tuple[str, str]]:
    """(name, reason) of datasets that belong to no layer."""
    rest = sorted(store.datasets.keys() - known)
    if any(dataset.startswith(OPTIMIZER) for dataset in rest):
        yield "optimizer", "is the state of an optimizer"
    for dataset in rest:
        if not dataset.startswith(OPTIMIZER):
            reason = store.entry(dataset).unsuitable
            yield dataset, reason or "is of no layer that the file describes"


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
            dataset = f"{inside}/{path}"
            if dataset not in store.datasets:
                raise Refusal(f"A {WHAT} must hold all it lists, got no {dataset!r}.")
            # The number is that of an output in TensorFlow's graphs.
            *scopes, name = re.sub(r":\d+$", "", path).split("/")
            weight = Weight(dataset, f"{group}/{name}")
            if layers is None:
                recurrent = path.rpartition("/")[0] in cells
                shape = store.entry(dataset).shape
                yield _by_name(weight, name, shape, recurrent)
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
        members = members_of(archive, size)
        if not {WEIGHTS, CONFIG} <= members.keys():
            raise Refusal(f"A {WHAT} must have {CONFIG} and {WEIGHTS} inside.")
        check_member(members[CONFIG], max(size, CONFIG_BYTES))
        config = json.loads(archive.read(CONFIG))
    return open_store(path, members[WEIGHTS]), config


def _new_weights(store: Store, config: Any) -> Iterator[Weight]:
    """The weights in a .keras file, where layers are named by class and number."""
    for layer in layers_of(config):
        group, weights = f"{layer.group}/vars", list(layer.roles())
        own = store.texts.get(group, {}).get("name", [layer.names[-1]])
        if own != [layer.names[-1]]:
            continue  # the number does not mean what it does in Keras now
        for i in itertools.count():
            if f"{group}/{i}" not in store.datasets:
                break
            name = weights[i] if i < len(weights) else str(i)
            yield _described(Weight(f"{group}/{i}", ""), name, layer)


def _copy_with(
    store: Store,
    weights: Mapping[str, Weight],
    target: Path,
    arrays: Mapping[str, np.ndarray],
) -> None:
    patches = []
    for name, array in arrays.items():
        weight = weights[name]
        entry = store.entry(weight.dataset)
        turned = from_layer(weight.role, array, entry.shape)
        patches.append(Patch(entry, entry.to_bytes(turned)))
    write_patched(store.path, target, patches)
