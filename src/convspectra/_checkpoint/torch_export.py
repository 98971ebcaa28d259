"""Kernels in the archives of `torch.export`, .pt2, by the graph; nothing is loaded."""

import json
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .pytorch_file import check_directory
from .records import Kernel, Network
from .stored import Patch, Refusal, check_member, members_of, parsing, write_patched
from .torch_graph import Call, Graph
from .torch_sizes import example_of
from .torch_views import View

WHAT = "archive of torch.export"
FORMAT = "archive_format"  # the member that says what an archive is
JSON_BYTES = 2**26  # of a graph or a list of weights: it is parsed as a whole
PICKLED = "is pickled, and never loaded"
DTYPES = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16"},
    **{7: "float32", 8: "float64", 10: "complex64", 11: "complex128", 12: "bool"},
    13: "bfloat16",
}


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One of the programs in an archive."""

    name: str
    graph: Graph


def read_export(path: Path, sizes: tuple[int, ...] | None = None) -> Network:
    """Find the layers of the programs in an archive.

    Every convolution and every linear layer whose weight is stored is a kernel, with
    the name of that weight; if it serves layers that differ, with the name of the
    operator's output after it.

    Parameters
    ----------
    path : Path
    sizes : tuple of int, optional
        Of the network's input, where the program leaves sizes open.
    """
    with parsing(WHAT):
        programs = list(_programs(path))
        if not programs:
            raise Refusal(f"An {WHAT} must hold a graph, got none. Save it again.")
    kernels: dict[str, Kernel] = {}
    views: dict[str, View] = {}
    skipped: dict[str, str] = {}
    advice: list[str] = []
    for program in programs:
        _resize(program, sizes)
        prefix = f"{program.name}/" if len(programs) > 1 else ""
        with parsing(WHAT):
            calls = list(program.graph.calls())
            shared = _shared(program.graph.weights)
            for name, call in _named(calls).items():
                name = prefix + name
                kernels[name] = _kernel(path, name, call, shared)
                views[name] = call.weight
            for name, reason in _skipped(program, calls):
                skipped.setdefault(prefix + name, reason)
            unsized = any("grid" not in call.stated for call in calls)
            if unsized and sizes is None:
                advice += _free_sizes(program)
    return Network(
        kernels=tuple(kernels.values()),
        skipped=tuple((n, why) for n, why in skipped.items() if n not in kernels),
        copy_with=partial(_copy_with, path, views),
        advice=tuple(advice[:1]),
    )


def _programs(path: Path) -> Iterator[Program]:
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        members = members_of(archive, size)
        check_directory(members.values(), size)
        roots = [n.removesuffix(FORMAT) for n in members if n.endswith(f"/{FORMAT}")]
        if not roots:
            raise Refusal(
                f"An {WHAT} must say so inside, got one that does not: it is of an "
                "older PyTorch, or something else. Export it again."
            )
        root = roots[0]

        def parsed(name: str) -> Any:
            check_member(members[root + name], JSON_BYTES)
            return json.loads(archive.read(members[root + name]))

        for name in members:
            found = re.fullmatch(
                rf"{re.escape(root)}models/([^/]{{1,100}})\.json", name
            )
            if not found:
                continue
            byteorder = members.get(f"{root}byteorder")
            if byteorder and archive.read(byteorder) != b"little":
                raise Refusal("The numbers of an archive must be little-endian.")
            weights: dict[str, View | str] = {}
            for folder in ("weights", "constants"):
                listed = f"data/{folder}/{found[1]}_{folder}_config.json"
                if root + listed in members:
                    inside = f"{root}data/{folder}/"
                    weights |= _weights(parsed(listed)["config"], members, inside)
                elif f"{root}data/{folder}/{found[1]}.pt" in members:
                    raise Refusal(
                        f"The weights of an {WHAT} must be stored one by one, got one "
                        "by an older PyTorch, which pickled them. Export it again."
                    )
            module = parsed(f"models/{found[1]}.json")["graph_module"]
            yield Program(found[1], Graph(module, weights))


def _weights(
    config: Mapping[str, Any], members: Mapping[str, zipfile.ZipInfo], folder: str
) -> dict[str, View | str]:
    """The tensors that are listed, each with where it is stored."""
    found: dict[str, View | str] = {}
    for name, stated in config.items():
        meta = stated["tensor_meta"]
        if stated["use_pickle"] or meta is None:
            found[name] = PICKLED
        elif meta["layout"] != 7:
            found[name] = "is sparse"
        else:
            member = members[folder + stated["path_name"]]
            dtype = DTYPES.get(meta["dtype"], "another kind of numbers")
            shape, strides = (
                tuple(n["as_int"] for n in meta[k]) for k in ("sizes", "strides")
            )
            offset = meta["storage_offset"]["as_int"]
            found[name] = View(name, dtype, shape, strides, offset, member)
    return found


def _resize(program: Program, sizes: tuple[int, ...] | None) -> None:
    if sizes is None:
        return
    try:
        program.graph.resize(sizes)
    except ValueError as error:
        raise ValueError(
            "`--input` must be a shape that the program was exported for, got "
            f"{'x'.join(map(str, sizes))}: {error}. Export it with dynamic shapes."
        ) from None


def _free_sizes(program: Program) -> Iterator[str]:
    example = example_of(program.graph.first_input())
    if example:
        yield (
            "Some input sizes are not known: the program leaves them open. Pass "
            f"--input, for example --input {'x'.join(map(str, example))}."
        )


def _named(calls: list[Call]) -> dict[str, Call]:
    """Calls that differ, by the name of the weight, or of the weight and the call."""
    distinct: dict[Any, Call] = {}
    for call in calls:
        distinct.setdefault(call.key, call)
    count = Counter(call.weight.name for call in distinct.values())
    named: dict[str, Call] = {}
    for call in distinct.values():
        name = call.weight.name
        named[name if count[name] == 1 else f"{name}@{call.label}"] = call
    return named


def _shared(weights: Mapping[str, View | str]) -> set[str]:
    """The names of weights whose bytes others have, too."""
    views = [view for view in weights.values() if isinstance(view, View)]
    count = Counter(view.member.filename for view in views)
    return {view.name for view in views if count[view.member.filename] > 1}


def _kernel(path: Path, name: str, call: Call, shared: Collection[str]) -> Kernel:
    view, reason = call.weight, ""
    if view.entry is None or call.turned:
        reason = "is not stored as its plain bytes"
    elif view.name in shared:
        reason = "shares its numbers with another weight"

    def load() -> np.ndarray:
        array = view.load(path)
        turned = np.ascontiguousarray(array.T) if call.turned else array
        return turned.reshape(call.shape)

    return Kernel(
        name=name,
        shape=call.shape,
        dtype=view.dtype,
        stated=call.stated,
        load=load,
        factors=None if call.norm is None else partial(call.norm.factors, path),
        linear=call.linear,
        not_writable_because=reason,
    )


def _skipped(program: Program, calls: list[Call]) -> Iterator[tuple[str, str]]:
    """(name, reason) of operators and weights that are no kernels."""
    yield from program.graph.skipped.items()
    used = {call.weight.name for call in calls}
    for name, view in program.graph.weights.items():
        if isinstance(view, str):
            yield name, view
        elif name not in used and len(view.shape) > 2:
            yield name, view.unsuitable or "is the weight of no layer that is read"


def _copy_with(
    path: Path,
    views: Mapping[str, View],
    target: Path,
    arrays: Mapping[str, np.ndarray],
) -> None:
    patches: dict[str, Patch] = {}
    for name, array in arrays.items():
        entry = views[name].entry
        if entry is not None:
            patch = Patch(entry, entry.to_bytes(array))
            if patches.setdefault(views[name].name, patch).data != patch.data:
                raise ValueError(
                    f"{name!r} is a weight that several layers have, and all must get "
                    "the same, got two. Change only one of them."
                )
    write_patched(path, target, list(patches.values()))
