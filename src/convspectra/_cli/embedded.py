"""The network that comes with the package, for commands that are given no file."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from .render import say

EMBEDDED = "cifar10_resnet.onnx"


@contextmanager
def file_or_embedded(path: Path | None) -> Iterator[Path]:
    """The path that is given, or that of the network that comes with the package."""
    if path is not None:
        yield path
        return
    say("no file given: taking the small network that comes with the package.")
    with as_file(files("convspectra") / "_data" / EMBEDDED) as embedded:
        yield embedded
