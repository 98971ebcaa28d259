"""From a file to a report on its layers, and to the document that is kept of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from .._checkpoint.select import Options, StoredLayer, select
from .._layer.layer import Layer
from .affordable import Excess, excesses, values_seconds
from .layer_spectrum import LayerSpectrum, layer_spectrum
from .spectra import Report

QUICK_RTOL = 1e-2  # of a first look
QUICK = (
    "A first look: upper bounds hold for every input size, to "
    f"{100 * QUICK_RTOL:g} %, and\nthere are no values. Leave out --quick for more."
)
INTERRUPTED = "was not reached before the interrupt"
POINTS = 512  # of a curve that are kept, first and last among them
SIDE = 128  # of a kept map over frequencies; of larger ones blocks keep their largest
DIGITS = 5  # of the values that are drawn

Watch = Callable[[list[StoredLayer]], Iterable[StoredLayer]]


@dataclass(frozen=True, slots=True, eq=False)
class FileReport:
    """A report on a file, what a reader must know of it, and its layers at hand."""

    report: Report
    notes: list[str]
    load: Callable[[str], Layer]  # a layer by name, its weight read again
    interrupted: bool = False  # before all layers were analysed


def report_on(path: Path, options: Options, watch: Watch = iter) -> FileReport:
    """Report on every kernel of a file.

    A kernel that cannot be analysed is skipped with the reason; that none can is an
    error. `watch` is shown the layers, and passes them on one by one. An interrupt
    ends the work, and what is done by then is reported.
    """
    selected = select(path, options)
    layers, skipped = selected.layers, selected.skipped
    found: list[LayerSpectrum] = []
    beyond = {} if options.quick else excesses(layers, options.budget)
    seconds = values_seconds(layers)
    interrupted = False
    try:
        for layer in watch(layers):
            try:
                left_out = beyond.get(layer.name, Excess())
                found.append(_analysed(layer, left_out, options, seconds))
            except (ValueError, TypeError, ArithmeticError) as error:
                skipped[layer.name] = f"{error}".rstrip(".")
    except KeyboardInterrupt:
        if not found:
            raise
        interrupted = True
        done = {one.name for one in found} | skipped.keys()
        rest = [layer.name for layer in layers if layer.name not in done]
        skipped |= dict.fromkeys(rest, INTERRUPTED)
    if not found:
        name = layers[0].name
        raise ValueError(
            f"No kernel of this file could be analysed; the first error was: {name!a}: "
            f"{skipped[name]}."
        )
    report = Report(tuple(found), skipped)
    quick = [QUICK] if options.quick else []
    by_name = {layer.name: layer for layer in layers}
    return FileReport(
        report=report,
        notes=[*quick, *report.notes(), *selected.network.advice],
        load=lambda name: by_name[name].load(),
        interrupted=interrupted,
    )


def _analysed(
    layer: StoredLayer, left_out: Excess, options: Options, total_seconds: float
) -> LayerSpectrum:
    return layer_spectrum(
        layer.load(),
        max(options.rtol, QUICK_RTOL) if options.quick else options.rtol,
        layer.unknown,
        budget=options.budget,
        every_size=options.quick or bool(left_out.size),
        with_values=not (options.quick or left_out.values),
        left_out=str(left_out),
        total_seconds=total_seconds,
    )


def document_on(path: Path, options: Options) -> dict[str, Any]:
    """As `report_on`, as a document: what a worker sends back."""
    found = report_on(path, options)
    return document_of(found.report, path.absolute().name, found.notes)


def document_of(report: Report, title: str, notes: list[str]) -> dict[str, Any]:
    """Return all that is shown of a report; curves and maps are thinned."""
    return {
        "title": title,
        "version": version("convspectra"),
        "notes": notes,
        "summary": report.summary(),
        "layers": [
            {**layer.row(), "curve": curve(layer), "heat": heat(layer)}
            for layer in report.layers
        ],
        "skipped": [
            {"name": name, "reason": reason} for name, reason in report.skipped.items()
        ],
    }


def curve(layer: LayerSpectrum) -> dict[str, list[float]] | None:
    """The sorted values at some ranks: every one, or `POINTS`, denser at both ends."""
    values = layer.sorted_values()
    if not values.size:
        return None
    ranks = thinned(values.size)
    return {"rank": ranks.tolist(), "values": _short(values[ranks])}


def thinned(count: int) -> np.ndarray:
    """Ranks that show a curve of `count` points: the first, the last, and some between.

    Half of them are evenly spread; the others crowd toward both ends, where curves on a
    logarithmic axis bend.
    """
    if count <= POINTS:
        return np.arange(count)
    even = np.linspace(0, count - 1, POINTS // 2)
    near = np.geomspace(1, count / 2, POINTS // 4) - 1
    return np.unique(np.concatenate([even, near, count - 1 - near]).astype(int))


def heat(layer: LayerSpectrum) -> dict[str, Any] | None:
    """The largest value at each frequency, as rows of an image of one or two axes."""
    if layer.values is None or layer.values.ndim not in (3, 4):
        return None
    image = np.atleast_2d(layer.values[..., 0].max(axis=-1))
    if image.size == 1:
        return None
    rows, columns = (-(-n // SIDE) for n in image.shape)
    starts = (np.arange(0, n, step) for n, step in zip(image.shape, (rows, columns)))
    for axis, start in enumerate(starts):
        image = np.maximum.reduceat(image, start, axis=axis)
    return {
        "top": [_short(row) for row in image],
        "thinned": rows * columns > 1,
    }


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
