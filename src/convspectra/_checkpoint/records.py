"""What a reader finds in a file: kernels, still on disk, and what is none."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Parts of the names of operators that are layers, read or not, in any format. What
# computes the gradient of a weight is none.
_LAYERS = re.compile(
    r"conv(?!ert|.*backpropfilter)|gemm|matmul|einsum|attention|lstm|gru|rnn",
    re.IGNORECASE,
)
# What is stated of a matrix: it is a layer on a grid of one.
LINEAR = {"grid": (1,), "groups": 1, "padding": ((0, 0),), "boundary": "zeros"}


def names_layer(operator: str) -> bool:
    """Whether an operator of this name is a layer, one that can be read or not."""
    return _LAYERS.search(operator) is not None


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The weight of one layer in a file; its values are read when asked for.

    Attributes
    ----------
    name : str
        Different from those of all other kernels of the file.
    shape : tuple of int
        In the layout of `Layer`: (out, in / groups, *kernel), or
        (in, out / groups, *kernel) for a transposed layer.
    dtype : str
        NumPy's name of it, such as "float32" or "bfloat16".
    stated : mapping
        What the file says of the geometry, as arguments of `Geometry`. What it does
        not say is not there: nothing is guessed.
    load : function
        Returns the array, of this shape and dtype.
    factors : function, optional
        Returns what a BatchNorm after the layer multiplies each output channel with;
        for files that show one.
    linear : bool
        A matrix, as a layer on a grid of one.
    by_shape : bool
        That it is one is known by its 2 axes alone: it may be an embedding, too.
    not_writable_because : str
        Why the file cannot get another array here; empty if it can.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stated: Mapping[str, Any]
    load: Callable[[], np.ndarray]
    factors: Callable[[], np.ndarray] | None = None
    linear: bool = False
    by_shape: bool = False
    not_writable_because: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """The kernels of a file in their order, and (name, reason) of what is no kernel.

    `copy_with(target, arrays)` is the reader's part of `write`. `advice` are sentences
    on what a user could add, so that more is known, and on options without effect.
    """

    kernels: tuple[Kernel, ...]
    skipped: tuple[tuple[str, str], ...]
    copy_with: Callable[[Path, Mapping[str, np.ndarray]], None]
    advice: tuple[str, ...] = ()

    def write(self, target: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a copy of the file to `target`, with other arrays for some kernels.

        `arrays` has them by name, each of the shape and dtype of its kernel. All else
        in the file is kept. A temporary file is written first, and then renamed.
        """
        kernels = {kernel.name: kernel for kernel in self.kernels}
        for name, array in arrays.items():
            if name not in kernels:
                raise ValueError(f"{name!r} must be a kernel of the file, and is none.")
            _check(kernels[name], array)
        self.copy_with(target, arrays)


def _check(kernel: Kernel, array: np.ndarray) -> None:
    """Refuse what cannot take the place of a kernel."""
    name, reason = kernel.name, kernel.not_writable_because
    if reason:
        raise ValueError(f"{name!r} {reason}: its numbers must stay.")
    if array.shape != kernel.shape or array.dtype.name != kernel.dtype:
        raise ValueError(
            f"{name!r} must keep shape {kernel.shape} and dtype {kernel.dtype}, got "
            f"{array.shape} and {array.dtype.name}."
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{name!r} must stay finite, got NaN or infinity in it.")
