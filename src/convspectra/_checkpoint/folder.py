"""A network as a folder: its weights, and a configuration beside them."""

import fnmatch
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .hugging_face import described
from .records import Network
from .stored import Refusal, parsing

CONFIG = "config.json"
CONFIG_BYTES = 2**24  # of a configuration: it is parsed as a whole
# What a folder may hold the weights in; the first of these that is there counts.
WEIGHTS = (
    "saved_model.pb",
    "model.safetensors.index.json",
    "model.safetensors",
    "*.safetensors.index.json",
    "*.safetensors",
    "pytorch_model.bin",
)


def weights_file(path: Path) -> Path:
    """The file with the weights: the path itself, or one in it if it is a folder."""
    if not path.is_dir():
        return path
    names = sorted(file.name for file in path.iterdir() if file.is_file())
    for pattern in WEIGHTS:
        found = fnmatch.filter(names, pattern)
        if len(found) > 1:
            raise ValueError(
                f"A folder must hold one network, got {len(found)} files like "
                f"{found[0]!r}. Name one of them."
            )
        if found:
            return path / found[0]
    raise ValueError(
        "A folder must hold a network in a file like model.safetensors, got none. Name "
        "the file."
    )


def config_in(folder: Path) -> list[Path]:
    """The configuration in a folder, if there is one."""
    path = folder / CONFIG
    return [path] if path.is_file() else []


def with_config(network: Network, folder: Path) -> Network:
    """Add what the configuration in a folder states, where the weights' file does not.

    It is of transformers or timm; one of anything else describes no kernel.
    """
    found = config_in(folder)
    if not found:
        return network
    config = read_config(found[0])
    kernels = [
        kernel
        if kernel.linear
        else replace(kernel, stated={**described(config, kernel), **kernel.stated})
        for kernel in network.kernels
    ]
    return replace(network, kernels=tuple(kernels))


def read_config(path: Path) -> Mapping[str, Any]:
    """Read a configuration in JSON."""
    size = path.stat().st_size
    if size > CONFIG_BYTES:
        raise Refusal(
            f"A configuration must have at most {CONFIG_BYTES} bytes, got {size}."
        )
    with parsing("configuration of a model"):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise TypeError("it is no object")
    return found
