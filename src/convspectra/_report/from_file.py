"""From a file to a report: its kernels, their geometry, and what they do."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._checkpoint import Network, read_network
from .._checkpoint.select import Placed, Table, check_table, choose, place
from .._layer.layer import Layer
from .document import document_of
from .spectra import LayerSpectrum, Report, layer_spectrum

ASSUMED = (
    "Neither the file nor the options state a boundary, so the layers are assumed to\n"
    "be circular. With zero padding a norm can be larger."
)
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
    table : mapping
        Geometries by names or patterns for names, which hold in any case.
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
    table: Table = field(default_factory=dict)
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
    check_table(options.table, (kernel.name for kernel in kernels))
    placed, misfits = place(kernels, options.geometry, options.table)
    return network, placed, skipped | misfits


@dataclass(frozen=True, slots=True, eq=False)
class FileReport:
    """A report on a file, what a reader must know of it, and its layers at hand."""

    report: Report
    notes: list[str]
    layer: Callable[[str], Layer]  # by name, its numbers read again


def report_on(path: Path, options: Options, watch: Watch = iter) -> FileReport:
    """Report on every kernel of a file.

    A kernel that cannot be looked at is skipped with the reason; that none can is an
    error. `watch` is shown the kernels, and passes them on one by one.
    """
    _, placed, skipped = kernels_of(path, options)
    found: list[LayerSpectrum] = []
    for one in watch(placed):
        try:
            layer = one.layer(fold=options.fold)
            found.append(layer_spectrum(layer, options.rtol))
        except (ValueError, TypeError) as error:
            skipped[one.kernel.name] = f"{error}".rstrip(".")
    if not found:
        name = placed[0].kernel.name
        raise ValueError(
            f"No kernel of this file could be analysed; the first error was: {name!a}: "
            f"{skipped[name]}."
        )
    report = Report(tuple(found), skipped)
    by_name = {one.kernel.name: one for one in placed}
    return FileReport(
        report=report,
        notes=[*report.notes(), *assumptions(placed)],
        layer=lambda name: by_name[name].layer(fold=options.fold),
    )


def assumptions(placed: list[Placed]) -> list[str]:
    """What was taken for granted of the layers, in sentences."""
    return [ASSUMED] if any(one.assumed for one in placed) else []


def document_on(path: Path, options: Options) -> dict[str, Any]:
    """As `report_on`, as a document: what a worker sends back."""
    found = report_on(path, options)
    return document_of(found.report, path.name, found.notes)
