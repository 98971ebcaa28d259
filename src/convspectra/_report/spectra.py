"""The spectra of the layers of a network: the data, and a plain table of them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from .._base import require
from .._layer.layer import Layer
from .._text import Lower, Upper, aligned, cell, cells, tree
from .layer_spectrum import LayerSpectrum as LayerSpectrum
from .layer_spectrum import layer_spectrum

COLUMNS = {
    "layer": "name",
    "kernel": "shape",
    "input": "grid",
    "stride": "stride",
    "dilation": "dilation",
    "groups": "groups",
    "norm from": "norm_lower",
    "to": "norm_upper",
    "reshaped": "reshaped",
    "smallest": "smallest",
    "condition": "condition",
    "stable rank": "stable_rank",
    "effective rank": "effective_rank",
    "above 1": "above_one",
    "values of": "values_of",
    "seconds": "seconds",
}
RARE = ("dilation", "groups")  # columns that are shown where one is not 1
SURROGATE = (
    "Values of a layer that is not circular are those of its circular surrogate\n"
    "(torus). They approximate the layer's own values and do not bound them."
)
NOTE = f"{SURROGATE} Norm bounds hold for the layer itself."
EVERY_SIZE = (
    "No input size is stated for some layers: their upper bounds hold for every size\n"
    "(with a circular boundary that repeats no output, for every size that the stride\n"
    "divides)."
)
NO_VALUES = f"{EVERY_SIZE} They have no values."
ASSUMED = (
    "Where neither the file nor an option says more, values assume stride 1, one\n"
    "group and a circular boundary (assumption)."
)
DEPTHWISE = (
    "have one input channel per group: each is\n"
    "depthwise, or reads an input of one channel. The upper bounds hold for both. If\n"
    "they are depthwise, their norms are at most:"
)
LARGEST = 3  # layers of largest norm that a summary names
NAMED = 6  # skipped layers that are named per reason


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """The spectra of several layers; `print` shows a table.

    Attributes
    ----------
    layers : tuple of LayerSpectrum
    skipped : dict of str to str
        The names of layers that were left out, and the reasons.
    """

    layers: tuple[LayerSpectrum, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict of plain numbers per layer, ready for JSON."""
        return [layer.row() for layer in self.layers]

    def to_dataframe(self) -> Any:
        """Return the rows as a pandas.DataFrame, indexed by layer name."""
        pandas = require("pandas", extra="report")
        return pandas.DataFrame(self.rows()).set_index("name")

    def summary(self) -> dict[str, Any]:
        """Return the layers of largest norm, and the log10 of the product of all norms.

        The product lies between 10**log10_product_lower and 10**log10_product_upper. It
        bounds the norm of a plain chain of these layers. A logarithm is None if the
        corresponding bound of some layer is zero or unknown.
        """
        lower = _log10_product([float(layer.norm.lower) for layer in self.layers])
        upper = _log10_product([float(layer.norm.upper) for layer in self.layers])
        descending = sorted(self.layers, key=lambda layer: -float(layer.norm.upper))
        return {
            "layers": len(self.layers),
            "skipped": len(self.skipped),
            "largest": [layer.name for layer in descending[:LARGEST]],
            "log10_product_lower": None if lower is None else Lower(lower),
            "log10_product_upper": None if upper is None else Upper(upper),
        }

    def notes(self) -> list[str]:
        """Return sentences that explain how to read the numbers."""
        found = []
        if any(
            x.values is not None and not (x.exact or x.unknown) for x in self.layers
        ):
            found.append(NOTE)
        if any(x.values is not None and x.unknown for x in self.layers):
            found.append(ASSUMED)
        if any(x.geometry.grid is None for x in self.layers):
            found.append(NO_VALUES)
        return [*found, *_unknown(self.layers), *_left_out(self.layers)]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and the cells of the table."""
        rows = self.rows()
        ones = {key: all(_is_one(row[key]) for row in rows) for key in RARE}
        columns = {k: v for k, v in COLUMNS.items() if not ones.get(v, False)}
        return list(columns), cells(columns, [_with_unknown(row) for row in rows])

    def __str__(self) -> str:
        headings, lines = self.table()
        table = aligned(headings, tree(lines))
        return "\n\n".join([table, *summary_lines(self), *self.notes()])

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        headings, lines = self.table()
        head = "".join(f"<th>{escape(name)}</th>" for name in headings)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in line) + "</tr>"
            for line in lines
        )
        notes = "".join(
            f"<p>{escape(text)}</p>" for text in [*summary_lines(self), *self.notes()]
        )
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"
        )


def _is_one(value: Any) -> bool:
    return value is not None and set(
        value if isinstance(value, tuple) else [value]
    ) == {1}


def _with_unknown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for people, who read "unknown" where JSON has null."""
    fields = {*row["unknown"], "norm_lower"}
    return {k: "unknown" if v is None and k in fields else v for k, v in row.items()}


def _unknown(layers: Iterable[LayerSpectrum]) -> list[str]:
    """What is not known of the layers, and what their bounds hold for, in sentences."""
    partly = [layer for layer in layers if layer.unknown]
    fields = dict.fromkeys(field for layer in partly for field in layer.unknown)
    found = []
    if partly:
        found.append(
            f"Unknown of {len(partly)} of the layers: {', '.join(fields)}.\n"
            "Their bounds hold for whatever these are, with zero padding, or a\n"
            "circular boundary that repeats no output; where no lower bound does, it\n"
            "is unknown. State what you know by --grid, --stride, --groups and\n"
            "--boundary, by --geometry or --like."
        )
    open_ = {x.name: x.upper_if_depthwise for x in partly if x.upper_if_depthwise}
    if open_:
        some = [f"{cell(k)} {cell(Upper(v))}" for k, v in list(open_.items())[:NAMED]]
        more = len(open_) - len(some)
        listed = ", ".join([*some, *([f"and {more} more"] if more else [])])
        found.append(f"{len(open_)} kernels {DEPTHWISE} {listed}.")
    return found


def _left_out(layers: Iterable[LayerSpectrum]) -> list[str]:
    """What was beyond time or memory, in sentences."""
    why = {layer.name: layer.left_out for layer in layers if layer.left_out}
    return reasons(why, "Left out")


def summary_lines(report: Report) -> list[str]:
    """The summary of a report, and what was skipped and why, in sentences."""
    if not report.layers:
        return reasons(report.skipped)
    found = report.summary()
    by_name = {layer.name: Upper(layer.norm.upper) for layer in report.layers}
    largest = ", ".join(
        f"{cell(name)} {cell(by_name[name])}" for name in found["largest"]
    )
    lower, upper = (
        "0" if log is None else f"10^{cell(log)}"
        for log in (found["log10_product_lower"], found["log10_product_upper"])
    )
    if not all(layer.has_lower for layer in report.layers):
        lower = "unknown"
    return [
        f"Largest norms: {largest}. Product of all norms: {lower} to {upper}.",
        *reasons(report.skipped),
    ]


def reasons(skipped: Mapping[str, str], verb: str = "Skipped") -> list[str]:
    """What was skipped, a sentence per reason, which names some."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        by_reason.setdefault(reason, []).append(ascii(name))
    for alike in by_reason.values():
        if len(alike) > NAMED:
            alike[NAMED:] = [f"and {len(alike) - NAMED} more"]
    return [
        f"{verb} ({reason}): {', '.join(alike)}." for reason, alike in by_reason.items()
    ]


def spectra(
    layers: Iterable[Layer], *, rtol: float = 1e-4, budget: float | None = None
) -> Report:
    """Compute the singular values and the certified norm of each layer.

    Parameters
    ----------
    layers : iterable of Layer
        A list, or the result of `convspectra.torch.layers(model, example)`, whose
        `skipped` the report keeps. A layer without a grid gets norm bounds for every
        input size, and no values.
    rtol : float
        Relative gap between the bounds of each norm; see `operator_norm`.
    budget : float, optional
        Seconds that each norm may take; see `operator_norm`.

    Returns
    -------
    Report

    Examples
    --------
    >>> import numpy as np, convspectra as cs
    >>> kernel = np.array([[[0.25, 0.5, 0.25]]])
    >>> blur = cs.Layer("blur", kernel, cs.Geometry(grid=5))
    >>> (found,) = spectra([blur]).layers
    >>> found.sorted_values().round(3)
    array([1.   , 0.655, 0.655, 0.095, 0.095])
    """
    found = tuple(layer_spectrum(layer, rtol, budget=budget) for layer in layers)
    return Report(found, dict(getattr(layers, "skipped", {})))


def _log10_product(norms: list[float]) -> float | None:
    return math.fsum(map(math.log10, norms)) if norms and all(norms) else None
