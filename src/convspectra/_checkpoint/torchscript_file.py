"""Kernels of TorchScript files: weights by the pickles, geometry by the code."""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .pytorch_pickle import refusal
from .records import LINEAR, Kernel, Network
from .sandbox import Died, Limits, run
from .stored import Refusal, members_of, parsing
from .torch_calls import arguments_of, convolution, pad_of
from .torch_views import View
from .torchscript_pickle import STORAGES, Module, ScriptWalk, Tensor

WHAT = "TorchScript file"
WORKER = Path(__file__).with_name("torchscript_worker.py")
CODE_BYTES = 2**23  # of all sources, unpacked
MOST_NAME = 300  # characters
MOST_CALLS = 10**5  # of convolutions: a short class can be that of many modules
PYTORCH = "__torch__.torch.nn.modules.conv."  # the classes whose padding is their own
NO_COPY = "is in a compiled model, of which no copy is made"
NO_CODE = (
    "The code of this file could not be read: strides, paddings and groups are not "
    "known. Pass --geometry, or --like with another file of the same network."
)

Paths = dict[str, Any]  # what there is at a path from the root, joined by dots


def read_script(path: Path) -> Network:
    """Floating-point tensors with at least 3 axes are kernels, and matrices of Linear.

    The geometry of each is what the convolution states that has it as its weight: the
    code is read, and never run. A file does not say which sizes its layers see.
    """
    with parsing(WHAT), zipfile.ZipFile(path) as archive:
        size = path.stat().st_size
        members = members_of(archive, size)
        root = next((n[:-8] for n in members if n.endswith("/data.pkl")), None)
        if root is None:
            raise Refusal(f"A {WHAT} must have data.pkl inside.")
        if sum(m.file_size for m in members.values() if not m.compress_type) > size:
            raise Refusal(f"The members of a {WHAT} must not overlap.")
        byteorder = members.get(f"{root}byteorder")
        if byteorder and archive.read(byteorder) != b"little":
            raise Refusal("The numbers of an archive must be little-endian.")
        model = _walked(archive, members, root, "data")
        constants = _walked(archive, members, root, "constants")
        if not isinstance(model, Module) or not isinstance(constants, tuple):
            raise refusal("something else than a module")
        model.attributes["CONSTANTS"] = Module(
            "", {f"c{i}": value for i, value in enumerate(constants)}
        )
        objects = dict(_objects(model))
        views = {
            name: _view(name, found, members, root)
            for name, found in objects.items()
            if isinstance(found, Tensor)
        }
        sources = _sources(archive, members, root, objects)
    classes = _classes(sources) if sources else {}
    kernels, skipped = _kernels(path, objects, views, classes or {})
    return Network(
        kernels=tuple(kernels),
        skipped=tuple(skipped),
        copy_with=_refuse,
        advice=() if classes else (NO_CODE,),
    )


def _walked(
    archive: zipfile.ZipFile,
    members: Mapping[str, zipfile.ZipInfo],
    root: str,
    name: str,
) -> Any:
    """What a pickle describes, its storages checked against the members."""
    info = members.get(f"{root}{name}.pkl")
    if info is None:
        return ()
    if info.compress_type:
        raise Refusal(f"The pickles of a {WHAT} must not be compressed.")
    walk = ScriptWalk(info.file_size)
    found = walk.through(io.BytesIO(archive.read(info)))
    for storage in walk.storages.values():
        member = members.get(f"{root}{name}/{storage.key}")
        if member is None or member.file_size != storage.size or member.compress_type:
            raise refusal(f"another size of storage {storage.key!a} than stated")
    return found


def _objects(model: Module) -> Iterator[tuple[str, Any]]:
    """Modules and tensors by their names, each module once."""
    waiting: list[tuple[str, Module]] = [("", model)]
    seen = {id(model)}
    while waiting:
        prefix, module = waiting.pop()
        yield prefix.removesuffix("."), module
        inner = []
        for name, value in module.attributes.items():
            if len(prefix) + len(name) > MOST_NAME:
                raise refusal(f"a name of {len(prefix) + len(name)} characters")
            if isinstance(value, Tensor):
                yield prefix + name, value
            elif isinstance(value, Module) and id(value) not in seen:
                seen.add(id(value))
                inner.append((f"{prefix}{name}.", value))
        waiting += reversed(inner)


def _view(
    name: str, tensor: Tensor, members: Mapping[str, zipfile.ZipInfo], root: str
) -> View:
    folder = "constants" if name.startswith("CONSTANTS.") else "data"
    dtype = STORAGES[tensor.storage.kind][0]
    member = members[f"{root}{folder}/{tensor.storage.key}"]
    shape, strides = tensor.shape, tensor.strides
    return View(name, dtype, shape, strides, tensor.offset, member)


def _sources(
    archive: zipfile.ZipFile,
    members: Mapping[str, zipfile.ZipInfo],
    root: str,
    objects: Paths,
) -> dict[str, str]:
    """The sources that define the classes of modules, by their names; none if long."""
    kinds = [found.kind for found in objects.values() if isinstance(found, Module)]
    names = dict.fromkeys(kind.rpartition(".")[0] for kind in kinds)
    found = {name: f"{root}code/{name.replace('.', '/')}.py" for name in names}
    found = {name: members[file] for name, file in found.items() if file in members}
    if sum(info.file_size for info in found.values()) > CODE_BYTES:
        return {}
    return {name: archive.read(info).decode() for name, info in found.items()}


def _classes(sources: Mapping[str, str]) -> dict[str, Any] | None:
    """What the code says of convolutions by class, None if it cannot be parsed."""
    data = json.dumps(sources).encode()
    limits = Limits(memory=2**30 + 100 * len(data), work=10, elapsed=60)
    try:
        return json.loads(run(WORKER, limits, data=data))
    except (OSError, Died, ValueError):
        return None


def _kernels(
    path: Path, objects: Paths, views: Mapping[str, View], classes: Mapping[str, Any]
) -> tuple[list[Kernel], list[tuple[str, str]]]:
    """The kernels of a file in the order of its weights, and what is none."""
    used: dict[str, dict[Any, dict[str, Any]]] = {}
    skipped: dict[str, str] = {}
    for weight, call, module in _uses(objects, classes):
        view = views.get(weight)
        if view is not None:
            try:
                stated = _stated(call, module, classes[module.kind], view)
            except (ValueError, TypeError) as error:
                skipped[f"{weight}@{call['operator']}"] = f"{error}".rstrip(".")
            else:
                key = tuple(sorted(stated.items()))
                used.setdefault(weight, {}).setdefault(key, stated)
    kernels: list[Kernel] = []
    for name, view in views.items():
        stated = list(used.get(name, {}).values())
        stated = stated or ([{}] if len(view.shape) > 2 else [])
        reason = view.unsuitable or ("" if stated else "has fewer than 3 axes")
        if reason:
            skipped[name] = reason
            continue
        for index, one in enumerate(stated):
            label = name if len(stated) == 1 else f"{name}@{index}"
            kernels.append(_kernel(path, label, view, one))
    return kernels, list(skipped.items())


def _uses(
    objects: Paths, classes: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any], Module]]:
    """The name of the weight of each convolution, the call, and the module it is in."""
    count = 0
    for name, module in objects.items():
        if isinstance(module, Module) and module.kind in classes:
            calls = classes[module.kind]["calls"]
            count += len(calls)
            if count > MOST_CALLS:
                raise Refusal(
                    f"A {WHAT} must have at most {MOST_CALLS} convolutions, got more."
                )
            for call in calls:
                yield _joined(name, call["path"]), call, module


def _joined(name: str, path: list[str]) -> str:
    """The name of what a path leads to from a module, or among the constants."""
    start = [] if path[0] == "CONSTANTS" or not name else [name]
    return ".".join([*start, *path])


def _stated(
    call: Mapping[str, Any], module: Module, found: Mapping[str, Any], view: View
) -> dict[str, Any]:
    """What a call says of the layer whose weight is this."""
    operator = call["operator"]
    if operator == "linear":
        if len(view.shape) != 2:
            raise ValueError("its weight is no matrix")
        return dict(LINEAR)

    def known(value: Any) -> Any:
        if isinstance(value, dict):  # an attribute of the module, or nothing
            (name, *rest) = value.get("path") or ("",)
            return None if rest else module.attributes.get(name)
        return value

    names = (arguments_of(operator) or ())[3:]
    arguments = dict(zip(names, call["arguments"]))
    own, constants = module.kind.startswith(PYTORCH), found["constants"]
    if own and isinstance(arguments.get("output_padding"), dict):
        # Which depends on the size that the output shall have, if one is asked for.
        arguments["output_padding"] = constants.get("output_padding")
    for name, value in arguments.items():
        arguments[name] = known(value)
        if arguments[name] is None:
            raise ValueError(f"its {name} is computed")
    pad = None
    if own and call["pad"] is not None:
        names = ("pad", "mode", "value")
        amounts: dict[str, Any] = dict(zip(names, map(known, call["pad"])))
        pad = pad_of(amounts, None)
        if pad is None or {"unknown": True} in call["pad"]:
            raise ValueError("its padding is computed")
    return convolution(operator, arguments, view.shape, None, pad)


def _kernel(path: Path, name: str, view: View, stated: Mapping[str, Any]) -> Kernel:
    linear = len(view.shape) == 2
    shape = (*view.shape, 1) if linear else view.shape
    return Kernel(
        name=name,
        shape=shape,
        dtype=view.dtype,
        stated=stated,
        load=lambda: view.load(path).reshape(shape),
        linear=linear,
        not_writable_because=NO_COPY,
    )


def _refuse(target: Path, _: Mapping[str, np.ndarray]) -> None:
    raise ValueError(
        f"{str(target)!r} cannot be written: no copy is made of a compiled model. "
        "Bound the module itself, and compile it again."
    )
