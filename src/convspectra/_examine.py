"""From a file to a report: its kernels, their geometry, and what they do."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._document import document_of
from ._kernels import Placed, choose, place, read_table
from ._readers import Network, read_network
from ._report import LayerSpectrum, Report, layer_spectrum

Watch = Callable[[list[Placed]], Iterable[Placed]]


@dataclass(frozen=True, slots=True)
class Options:
    """What a user says of a file beyond what is in it.

    Attributes
    ----------
    keys : list of str, optional
        Names or patterns of the kernels to take.
    geometry : mapping
        Arguments of `Geometry`, for what the file does not state.
    table : Path, optional
        A .toml file with geometries by name, which hold in any case.
    layout : str, optional
        Of kernels among arrays.
    sizes : tuple of int, optional
        Of the network's input.
    fold : bool
        Whether a BatchNorm after a layer is taken together with it.
    rtol : float
    """

    keys: list[str] | None = None
    geometry: Mapping[str, Any] = field(default_factory=dict)
    table: Path | None = None
    layout: str | None = None
    sizes: tuple[int, ...] | None = None
    fold: bool = False
    rtol: float = 1e-4


def kernels_of(
    path: Path, options: Options
) -> tuple[Network, list[Placed], dict[str, str]]:
    """A file, its kernels with their geometries, and why others are not among them."""
    network = read_network(path, layout=options.layout, sizes=options.sizes)
    kernels, skipped = choose(network, options.keys)
    table = {}
    if options.table is not None:
        table = read_table(options.table, (kernel.name for kernel in kernels))
    placed, misfits = place(kernels, options.geometry, table)
    return network, placed, skipped | misfits


def examine(path: Path, options: Options, watch: Watch = iter) -> Report:
    """Report on every kernel of a file; one that cannot be is skipped with the reason.

    `watch` is shown the kernels, and passes them on one by one.
    """
    _, placed, skipped = kernels_of(path, options)
    found: list[LayerSpectrum] = []
    for one in watch(placed):
        try:
            layer = one.layer(fold=options.fold)
            found.append(layer_spectrum(layer, options.rtol))
        except (ValueError, TypeError) as error:
            skipped[one.kernel.name] = f"{error}".rstrip(".")
    return Report(tuple(found), skipped)


def examined(path: Path, options: Options) -> dict[str, Any]:
    """As `examine`, as a document: what a worker sends back."""
    return document_of(examine(path, options), path.name)
