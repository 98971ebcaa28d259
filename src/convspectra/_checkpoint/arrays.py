"""Kernels among the arrays of .npy, .npz and .safetensors files."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from .files import Entry, entries, layout_of, read, write_copy
from .records import Kernel, Network


def read_arrays(path: Path, layout: str | None) -> Network:
    """Every floating-point array with at least 3 axes is a kernel.

    Its layout is the one given; else what the file says; else (out, in, *kernel).
    """
    found, layout = entries(path), layout or layout_of(path) or "oihw"
    return Network(
        kernels=tuple(kernel_of(path, e, layout) for e in found if not e.unsuitable),
        skipped=tuple((e.name, e.unsuitable) for e in found if e.unsuitable),
        write=partial(_write, path, layout),
    )


def kernel_of(path: Path, entry: Entry, layout: str) -> Kernel:
    """One array of a file, turned to the layout of `Layer`."""
    order = _order(layout, len(entry.shape))
    return Kernel(
        name=entry.name,
        shape=tuple(entry.shape[axis] for axis in order),
        stated={},
        load=lambda: np.transpose(read(path, entry), order),
    )


def _order(layout: str, axes: int) -> tuple[int, ...]:
    """Where each axis of a kernel (out, in, *kernel) stands in the layout."""
    if layout == "oihw":
        return tuple(range(axes))
    return (axes - 1, axes - 2, *range(axes - 2))


def _write(
    source: Path, layout: str, target: Path, arrays: Mapping[str, np.ndarray]
) -> None:
    turned = {
        name: np.transpose(array, np.argsort(_order(layout, array.ndim)))
        for name, array in arrays.items()
    }
    write_copy(source, target, turned)
