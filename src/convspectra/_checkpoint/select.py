"""Which kernels of a file are asked for, and what geometry does each have?"""

import fnmatch
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._layer.geometry import Geometry
from .._layer.layer import Layer, scale_outputs
from .._layer.stencil import misfit_on_circles
from .._text import sentence_of
from . import Kernel, Network, Sizes, read_network
from .idle import idle_fold, idle_input, idle_like
from .like import Describe, described_by

Table = Mapping[str, Mapping[str, Any]]
FIELDS = tuple(field.name for field in fields(Geometry))
DEFAULTS = asdict(Geometry(None))
NAMED = 20  # arrays that an error lists
# Fields without which a geometry is not known. Where all are stated, others that are
# not have the defaults of `Geometry`, as the options document them.
DECIDING = ("grid", "stride", "groups", "boundary")
MATRIX = "has fewer than 3 axes: --linear takes a matrix for a linear layer"
POINTWISE = "has one tap, and --skip-pointwise leaves it out"


@dataclass(frozen=True, slots=True)
class Options:
    """What a user says of a file beyond what is in it.

    Attributes
    ----------
    keys : list of str, optional
        Names or patterns of the kernels to take.
    geometry : mapping
        Arguments of `Geometry`, for what the file does not state.
    table : mapping
        Geometries by names or patterns for names, which hold in any case.
    like : Path, optional
        Another file of the same network, for what this one does not state.
    layout : str, optional
        Of kernels among arrays.
    sizes : tuple of int, optional
        Of the network's input.
    fold : bool
        Whether a BatchNorm after a layer is taken together with it.
    linear : bool
        Whether arrays with 2 axes are linear layers, where the file does not say.
    skip_pointwise : bool
        Whether kernels with one tap, 1x1 convolutions and matrices, are left out.
    rtol : float
        Relative gap between the bounds of a norm.
    quick : bool
        Whether bounds that hold for every input size will do, without any values.
    budget : float, optional
        Seconds that a norm may take.
    """

    keys: list[str] | None = None
    geometry: Mapping[str, Any] = field(default_factory=dict)
    table: Table = field(default_factory=dict)
    like: Path | None = None
    layout: str | None = None
    sizes: tuple[int, ...] | None = None
    fold: bool = False
    linear: bool = False
    skip_pointwise: bool = False
    rtol: float = 1e-4
    quick: bool = False
    budget: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StoredLayer:
    """A layer whose weight is still in the file."""

    kernel: Kernel
    geometry: Geometry
    unknown: tuple[str, ...]  # fields that nobody states, and that have defaults
    fold: bool = False  # a BatchNorm after the layer into its weight

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def unknown_without_size(self) -> tuple[str, ...]:
        """The unknown fields, none if the size of the input is stated.

        Whoever states a size to a command on kernels means a layer with the documented
        defaults of what is not stated. A report is on layers that differ in these.
        """
        return self.unknown if self.geometry.grid is None else ()

    def load(self) -> Layer:
        """Read the weight."""
        weight = self.kernel.load()
        if self.fold and self.kernel.factors is not None:
            weight = weight.astype(np.result_type(weight, np.float32))
            weight = scale_outputs(weight, self.kernel.factors(), self.geometry)
        return Layer(self.name, weight, self.geometry)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The layers of a file that are asked for, and why others are not among them."""

    network: Network
    layers: list[StoredLayer]
    skipped: dict[str, str]  # reasons by name


def select(path: Path, options: Options) -> Selection:
    """Find the kernels of a file that the options ask for, with their geometries."""
    network = read_network(path, layout=options.layout, sizes=options.sizes)
    network = network if options.linear else without_matrices(network)
    kernels, skipped = choose(network, options.keys)
    check_table(options.table, [kernel.name for kernel in kernels])
    if options.skip_pointwise:
        kernels, pointwise = leave_out_pointwise(kernels)
        skipped |= pointwise
    idle = [] if options.sizes is None else idle_input(path, options.like)
    if options.fold:
        idle += idle_fold(kernels)
    if options.like is not None:
        describe = _described_by(options.like, options.sizes)
        more = [replace(x, stated={**describe(x), **x.stated}) for x in kernels]
        idle += idle_like(options.like, kernels, more)
        kernels = more
    network = replace(network, advice=(*network.advice, *idle))
    layers, misfits = with_geometry(kernels, options)
    return Selection(network, layers, skipped | misfits)


def _described_by(path: Path, sizes: Sizes) -> Describe:
    """As `described_by`; an error names this file, which is not the one to be read."""
    try:
        return described_by(path, sizes)
    except (OSError, ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(f"`--like` {path}: {sentence_of(error)}") from error


def without_matrices(network: Network) -> Network:
    """The network without arrays that only may be linear layers."""
    matrices = [(kernel.name, MATRIX) for kernel in network.kernels if kernel.by_shape]
    return replace(
        network,
        kernels=tuple(kernel for kernel in network.kernels if not kernel.by_shape),
        skipped=(*network.skipped, *matrices),
    )


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
            raise ValueError(
                f"`--key` must name an array of the file, got {key!r}. There are: "
                f"{_listed(names)}."
            )

    def wanted(name: str) -> bool:
        return keys is None or any(_matches(name, key) for key in keys)

    chosen = [kernel for kernel in kernels if wanted(kernel.name)]
    skipped = {name: reason for name, reason in others.items() if wanted(name)}
    if not chosen:
        some = [f"{name!a} {why}" for name, why in list(skipped.items())[:5]]
        more = len(skipped) - len(some)
        reasons = "; ".join([*some, *([f"and {more} more"] if more else [])])
        raise ValueError(
            "The file must hold a floating-point array with at least 3 axes, got none: "
            f"{reasons or 'it is empty'}."
        )
    return chosen, skipped


def leave_out_pointwise(kernels: list[Kernel]) -> tuple[list[Kernel], dict[str, str]]:
    """Return the kernels with more than one tap, and why others are not among them."""
    wide = [kernel for kernel in kernels if math.prod(kernel.shape[2:]) > 1]
    if not wide:
        raise ValueError(
            "With `--skip-pointwise` some kernel must have more than one tap, got "
            f"{len(kernels)} with one. Leave the option out."
        )
    kept = {kernel.name for kernel in wide}
    left_out = [kernel.name for kernel in kernels if kernel.name not in kept]
    return wide, dict.fromkeys(left_out, POINTWISE)


def with_geometry(
    kernels: Iterable[Kernel], options: Options
) -> tuple[list[StoredLayer], dict[str, str]]:
    """Return the kernels that have a geometry, and why others have none, by name.

    It is what the file states, completed by the options; where their table has
    something for a name, that holds. If no kernel has one, that is an error.
    """
    layers: list[StoredLayer] = []
    skipped: dict[str, str] = {}
    for kernel in kernels:
        try:
            stated = _stated(kernel, options)
            geometry = _geometry(kernel, stated)
        except (ValueError, TypeError) as error:
            skipped[kernel.name] = f"{error}".rstrip(".")
        else:
            unknown = () if kernel.linear else unstated(stated)
            layers.append(StoredLayer(kernel, geometry, unknown, options.fold))
    if not layers:
        name, reason = next(iter(skipped.items()))
        raise ValueError(f"{name!a}: {reason}.")
    return layers, skipped


def completed(layer: StoredLayer, other: StoredLayer, options: Options) -> StoredLayer:
    """The layer, with what only another file of its network states of its geometry.

    As with `--like`, that counts more than options for all kernels.
    """
    missing = unstated(layer.kernel.stated)
    if "transposed" in missing:
        missing = (*missing, "output_padding")
    more = {k: v for k, v in other.kernel.stated.items() if k in missing}
    kernel = replace(layer.kernel, stated={**layer.kernel.stated, **more})
    (found,), _ = with_geometry([kernel], options)
    return found


def unstated(stated: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a geometry that are not known from what is stated."""
    missing = [name for name in FIELDS if stated.get(name) is None]
    if set(missing) & set(DECIDING) <= {"grid"}:
        missing = [name for name in missing if name == "grid"]
    return tuple(name for name in missing if name != "output_padding")


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


def check_table(table: Table, names: list[str]) -> None:
    """Refuse a table that is for no kernel: its name must have been meant otherwise."""
    for key in table:
        if not any(_matches(name, key) for name in names):
            raise ValueError(
                f"Each table of `--geometry` must be for a kernel of the file, got "
                f"{key!r}. There are: {_listed(names)}."
            )


def _stated(kernel: Kernel, options: Options) -> dict[str, Any]:
    """What is said of the geometry of a kernel, by whomever.

    A table for a kernel states all of it: what the table leaves out has its default.
    """
    stated = {"grid": None, **options.geometry, **kernel.stated}
    tables = [more for key, more in options.table.items() if _matches(kernel.name, key)]
    if tables:
        stated = DEFAULTS | stated
    for more in tables:
        stated |= {name: _plain(value) for name, value in more.items()}
    return stated


def _geometry(kernel: Kernel, stated: Mapping[str, Any]) -> Geometry:
    geometry = Geometry(**stated).broadcast_to(len(kernel.shape) - 2)
    if kernel.shape[0] % geometry.groups:
        raise ValueError(
            f"has {kernel.shape[0]} channels, which {geometry.groups} groups do not "
            "divide"
        )
    if (
        stated.get("boundary") is None
        and geometry.grid is None
        and misfit_on_circles(geometry, kernel.shape[2:]) is not None
    ):
        # By default it is a circle, which this padding rules out.
        return replace(geometry, boundary="zeros")
    return geometry


def _plain(value: Any) -> Any:
    """Lists of a TOML file as the tuples that `Geometry` takes; "none" for no grid."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return None if value == "none" else value


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f", and {more} more" if more > 0 else "")


def _matches(name: str, key: str) -> bool:
    return name == key or fnmatch.fnmatchcase(name, key)
