"""The kernels of a file that are asked for, as layers, and back in its layout."""

import fnmatch
from pathlib import Path

import numpy as np

from ._files import Entry, entries, read
from ._geometry import Geometry
from ._layer import Layer


def choose(
    path: Path, keys: list[str] | None
) -> tuple[list[Entry], list[tuple[str, str]]]:
    """Return the kernels of a file that `keys` ask for, and (name, reason) of others.

    A key that is the very name of an array must be a kernel; so must the one array of
    an .npy file. What a pattern finds besides kernels is skipped.
    """
    found = entries(path)
    named = {entry.name for entry in found if keys is None or entry.name in keys}
    must = named if keys is not None or path.suffix == ".npy" else set()
    for key in keys or ():
        if not any(_matches(entry.name, key) for entry in found):
            names = ", ".join(entry.name for entry in found[:20])
            more = ", ..." if len(found) > 20 else ""
            raise ValueError(
                f"`--key` must name an array of the file, got {key!r}. There are: "
                f"{names}{more}."
            )
    wanted = [
        entry
        for entry in found
        if keys is None or any(_matches(entry.name, key) for key in keys)
    ]
    for entry in wanted:
        if entry.name in must and entry.unsuitable:
            raise ValueError(
                f"A kernel must be a floating-point array with at least 3 axes; "
                f"{entry.name!r} {entry.unsuitable}."
            )
    skipped = [(entry.name, entry.unsuitable) for entry in wanted if entry.unsuitable]
    kernels = [entry for entry in wanted if not entry.unsuitable]
    if not kernels:
        reasons = "; ".join(f"{name} {reason}" for name, reason in skipped[:5])
        raise ValueError(
            "The file must hold a floating-point array with at least 3 axes, got none: "
            f"{reasons or 'it is empty'}."
        )
    return kernels, skipped


def fitting(
    kernels: list[Entry], geometry: Geometry, layout: str
) -> tuple[list[Entry], list[tuple[str, str]]]:
    """Return the kernels that the geometry is for, and (name, reason) of others.

    A single kernel is kept: what is wrong with it is the error of the command.
    """
    reasons = [(entry, _misfit(entry, geometry, layout)) for entry in kernels]
    fit = [entry for entry, reason in reasons if not reason]
    if not fit:
        return kernels[:1], []
    return fit, [(entry.name, reason) for entry, reason in reasons if reason]


def _misfit(entry: Entry, geometry: Geometry, layout: str) -> str:
    axes = len(entry.shape) - 2
    try:
        geometry.on(axes)
    except ValueError:
        return f"has a kernel with {axes} axes, which the options are not for"
    channels = entry.shape[-1] if layout == "hwio" else entry.shape[0]
    if channels % geometry.groups:
        return f"has {channels} channels, which {geometry.groups} groups do not divide"
    return ""


def load(path: Path, entry: Entry, geometry: Geometry, layout: str) -> Layer:
    """Return one kernel of a file as a layer; `layout` is "oihw" or "hwio"."""
    make = Layer.from_hwio if layout == "hwio" else Layer.from_oihw
    return make(entry.name, read(path, entry), geometry)


def in_layout(weight: np.ndarray, layout: str) -> np.ndarray:
    """Return the weight of a layer in the layout that `load` has read."""
    if layout == "oihw":
        return weight
    return np.transpose(weight, (*range(2, weight.ndim), 1, 0))


def _matches(name: str, key: str) -> bool:
    return name == key or fnmatch.fnmatchcase(name, key)
