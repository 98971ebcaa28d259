"""The command that bounds the Lipschitz constant of a whole network."""

import argparse
import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from .._checkpoint.onnx_network import read_computation
from .._network.bounds import LipschitzBounds
from .._network.compose import compose
from .._network.node import Node
from .._report.spectra import reasons
from .._text import Upper
from .embedded import file_or_embedded
from .progress import progress
from .render import PARTS, as_json, say, table

SUFFIX = ".onnx"


def lipschitz(args: argparse.Namespace) -> int:
    """Bound the Lipschitz constant of a network, part by part."""
    with file_or_embedded(args.file) as path:
        args.file = path  # which errors name from here on
        if path.suffix.lower() != SUFFIX:
            raise ValueError(
                "The file must be an .onnx file, which holds the whole computation, "
                f"got {path.suffix or 'a name without a suffix'}. Export the network "
                "with torch.onnx or tf2onnx, or call `convspectra.torch.lipschitz`."
            )
        with progress("lipschitz", f"reading {path.name}") as shown:
            read = read_computation(path, args.sizes)

            def watch(kept: list[Node]) -> Iterable[Node]:
                return shown.of(kept, lambda node: node.name)

            parts = (read.nodes, read.outputs, args.rtol, args.budget)
            found = compose(*parts, watch)
    if args.json:
        as_json(_document(found, path.name) | {"inputs": read.inputs})
    else:
        rows = [asdict(part) for part in found.parts]
        for row in rows:
            row |= {key: _upper(row[key]) for key in ("norm", "total")}
        table(PARTS, rows)
        sizes = ", ".join(f"{x} {_sizes(each)}" for x, each in read.inputs.items())
        say(f"{found}, for inputs of the size {sizes}.")
    for sentence in reasons(found.unknown, "Without a bound"):
        say(sentence)
    return int(args.fail_above is not None and found.upper > args.fail_above)


def _sizes(sizes: list[int | None] | None) -> str:
    """Those of an array, with a question mark for what the file leaves open."""
    return "?" if sizes is None else "x".join(str(size or "?") for size in sizes)


def _upper(value: float | None) -> Upper | None:
    return None if value is None else Upper(value)


def _document(found: LipschitzBounds, name: str) -> dict[str, Any]:
    """All that was found, for JSON, which has only null for what is infinite."""
    known = math.isfinite(found.upper) and found.upper > 0
    return {
        "file": name,
        "upper": found.upper,
        "log10_upper": math.log10(found.upper) if known else None,
        "method": found.method,
        "parts": [asdict(part) for part in found.parts],
        "unknown": [
            {"name": part, "reason": reason} for part, reason in found.unknown.items()
        ],
    }
