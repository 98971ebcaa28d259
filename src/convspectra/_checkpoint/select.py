"""The kernels of a network that are asked for, each with its geometry."""

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from .._layer.geometry import Geometry
from .._layer.layer import Layer, scale_outputs
from . import Kernel, Network

Table = Mapping[str, Mapping[str, Any]]
FIELDS = tuple(field.name for field in fields(Geometry))


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A kernel at its geometry."""

    kernel: Kernel
    geometry: Geometry
    assumed: bool  # that the boundary is circular, since nobody says what it is

    def layer(self, *, fold: bool = False) -> Layer:
        """Read the numbers; `fold` takes them together with a BatchNorm after them."""
        weight = self.kernel.load()
        if fold and self.kernel.factors is not None:
            weight = weight.astype(np.result_type(weight, np.float32))
            weight = scale_outputs(weight, self.kernel.factors(), self.geometry)
        return Layer(self.kernel.name, weight, self.geometry)


def choose(network: Network, keys: list[str] | None) -> tuple[list[Kernel], dict]:
    """Return the kernels that `keys` ask for, and why other arrays are none, by name.

    A key that is the very name of an array must be a kernel. What a pattern finds
    besides kernels is skipped.
    """
    kernels, others = network.kernels, dict(network.skipped)
    names = [*(kernel.name for kernel in kernels), *others]
    for key in keys or ():
        if key in others:
            raise ValueError(
                "A kernel must be a floating-point array with at least 3 axes; "
                f"{key!r} {others[key]}."
            )
        if not any(_matches(name, key) for name in names):
            more = ", ..." if len(names) > 20 else ""
            raise ValueError(
                f"`--key` must name an array of the file, got {key!r}. There are: "
                f"{', '.join(names[:20])}{more}."
            )

    def wanted(name: str) -> bool:
        return keys is None or any(_matches(name, key) for key in keys)

    chosen = [kernel for kernel in kernels if wanted(kernel.name)]
    skipped = {name: reason for name, reason in others.items() if wanted(name)}
    if not chosen:
        reasons = "; ".join(
            f"{name!a} {why}" for name, why in list(skipped.items())[:5]
        )
        raise ValueError(
            "The file must hold a floating-point array with at least 3 axes, got none: "
            f"{reasons or 'it is empty'}."
        )
    return chosen, skipped


def place(
    kernels: Iterable[Kernel], options: Mapping[str, Any], table: Table
) -> tuple[list[Placed], dict[str, str]]:
    """Return the kernels that have a geometry, and why others have none, by name.

    It is what the file states, completed by the `options`; where the `table` has
    something for a name, that holds. If no kernel has one, that is an error.
    """
    placed: list[Placed] = []
    skipped: dict[str, str] = {}
    for kernel in kernels:
        try:
            stated = _stated(kernel, options, table)
            geometry = _geometry(kernel, stated)
            assumed = geometry.grid is not None and "boundary" not in stated
            placed.append(Placed(kernel, geometry, assumed))
        except (ValueError, TypeError) as error:
            skipped[kernel.name] = f"{error}".rstrip(".")
    if not placed:
        name, reason = next(iter(skipped.items()))
        raise ValueError(f"{name!a}: {reason}.")
    return placed, skipped


def read_table(path: Path) -> Table:
    """Read geometries by name from a .toml file.

    Each table is headed by the name of a kernel or by a pattern for names, and has some
    of the arguments of `Geometry`.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} must be readable: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a file in TOML, got {error}.") from error
    for key, stated in found.items():
        if not isinstance(stated, dict) or not set(stated) <= set(FIELDS):
            raise ValueError(
                f"{path}: a table must have some of {', '.join(FIELDS)}, got "
                f"{stated!r} for {key!r}."
            )
    return found


def check_table(table: Table, names: Iterable[str]) -> None:
    """Refuse a table that is for no kernel: its name must have been meant otherwise."""
    names = list(names)
    for key in table:
        if not any(_matches(name, key) for name in names):
            raise ValueError(
                f"Each table of `--geometry` must be for a kernel of the file, got "
                f"{key!r}. There are: {', '.join(names[:20])}."
            )


def _stated(kernel: Kernel, options: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """What is said of the geometry of a kernel, by whomever."""
    stated = {"grid": None, **options, **kernel.stated}
    for key, more in table.items():
        if _matches(kernel.name, key):
            stated |= {name: _plain(value) for name, value in more.items()}
    return stated


def _geometry(kernel: Kernel, stated: Mapping[str, Any]) -> Geometry:
    geometry = Geometry(**stated).broadcast_to(len(kernel.shape) - 2)
    if kernel.shape[0] % geometry.groups:
        raise ValueError(
            f"has {kernel.shape[0]} channels, which {geometry.groups} groups do not "
            "divide"
        )
    return geometry


def _plain(value: Any) -> Any:
    """Lists of a TOML file as the tuples that `Geometry` takes; "none" for no grid."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return None if value == "none" else value


def _matches(name: str, key: str) -> bool:
    return name == key or fnmatch.fnmatchcase(name, key)
