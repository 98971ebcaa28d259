"""What a reader finds in a file: kernels, still on disk, and what is none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The weight of one layer in a file; its numbers are read when asked for.

    Attributes
    ----------
    name : str
        Different from those of all other kernels of the file.
    shape : tuple of int
        In the layout of `Layer`: (out, in / groups, *kernel), or
        (in, out / groups, *kernel) for a transposed layer.
    stated : mapping
        What the file says of the geometry, as arguments of `Geometry`. What it does
        not say is not there: nothing is guessed.
    load : function
        Returns the numbers, in `shape`.
    factors : function, optional
        Returns what a BatchNorm after the layer multiplies each output channel with;
        for files that show one.
    linear : bool
        A matrix, as a layer on a grid of one.
    fixed : str
        Why other numbers cannot be written in its place; empty if they can.
    """

    name: str
    shape: tuple[int, ...]
    stated: Mapping[str, Any]
    load: Callable[[], np.ndarray]
    factors: Callable[[], np.ndarray] | None = None
    linear: bool = False
    fixed: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """The kernels of a file in their order, and (name, reason) of what is no kernel.

    `write(target, arrays)` writes a copy of the file to `target`, with other numbers in
    the kernels that `arrays` names: of the shape and dtype that `load` has given. All
    else in the file is kept. It writes to a temporary file and renames that.
    """

    kernels: tuple[Kernel, ...]
    skipped: tuple[tuple[str, str], ...]
    write: Callable[[Path, Mapping[str, np.ndarray]], None]
