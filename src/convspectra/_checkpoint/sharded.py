"""Sharded checkpoints: an index in JSON, and .safetensors files beside it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from .arrays import contents_of, kernel_of
from .records import Kernel, Network
from .stored import Refusal, parsing

SHARDED = "is in one of several files, which cannot be replaced all at once"


def read_sharded(path: Path, layout: str | None = None) -> Network:
    """Every floating-point array with at least 3 axes is a kernel, and may be with 2.

    Its layout is the one given; else what its shard says; else (out, in, *kernel). A
    checkpoint of several files has no way to be replaced in one step, so that nothing
    is written.
    """
    kernels: list[Kernel] = []
    skipped: list[tuple[str, str]] = []
    for shard, names in shards_of(path).items():
        contents = contents_of(shard)
        found = {entry.name: entry for entry in contents.entries}
        missing = [name for name in names if name not in found]
        if missing:
            raise Refusal(
                f"{shard.name!r} must hold all that the index says is in it, got none "
                f"named {missing[0]!r}. Fetch the checkpoint again."
            )
        order = layout or contents.layout or "oihw"
        for name, entry in found.items():
            reason = "" if entry.is_matrix else entry.unsuitable
            if name not in names:
                reason = "is not in the index"
            if reason:
                skipped.append((name, reason))
            else:
                kernel = kernel_of(shard, entry, order)
                kernels.append(replace(kernel, not_writable_because=SHARDED))
    return Network(tuple(kernels), tuple(skipped), _refuse)


def shards_of(path: Path) -> dict[Path, set[str]]:
    """The files of a checkpoint in their order, and what the index says is in each."""
    with parsing("index of a checkpoint"):
        weights = json.loads(path.read_bytes())["weight_map"]
        if not isinstance(weights, dict):
            raise TypeError("`weight_map` is no object")
    shards: dict[Path, set[str]] = {}
    for name, file in weights.items():
        shards.setdefault(_beside(path, file), set()).add(name)
    return dict(sorted(shards.items()))


def _beside(path: Path, file: Any) -> Path:
    """The path of a shard, which the index names without any folder."""
    plain = isinstance(file, str) and PureWindowsPath(file).name == file
    if not plain or not file.lower().endswith(".safetensors"):
        raise Refusal(
            "An index must name .safetensors files in its own folder, got "
            f"{str(file)[:100]!r}. Fetch the checkpoint again."
        )
    shard = path.parent / file
    if not shard.is_file():
        raise Refusal(
            f"All files of a checkpoint must lie beside its index, got no file {file!r}"
            " there. Fetch the checkpoint again."
        )
    return shard


def _refuse(target: Path, _: Mapping[str, np.ndarray]) -> None:
    raise ValueError(
        f"{str(target)!r} cannot be written in one step: a sharded checkpoint is "
        "several files. Change its shards one by one."
    )
