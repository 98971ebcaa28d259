"""What of a file's layers fits into time and memory? Known before any work is done."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._checkpoint.select import StoredLayer
from .._layer.stencil import stencil_of
from .._plan import of_frequencies
from .._price import NOMINAL, Machine, of_values, this_machine

# What all the values of a file may take together, unless the user states a budget.
SECONDS = 60.0
# Memory that they may take together, and as much that each norm may take.
BYTES = 2**32
# Memory that is needed at most, measured. For each byte of the values while their
# statistics are computed; and for each number of the padded input and the output while
# a layer that is no torus is applied to both.
VALUES_BYTES, NUMBER_BYTES = 6, 50
# Numbers of a padded input and output up to which other commands apply a layer: these
# are asked for that very size.
MOST_NUMBERS = 2**30
DOUBLE = ("float64", "complex128")  # dtypes whose values are in double precision


@dataclass(frozen=True, slots=True)
class Excess:
    """Why less is computed of a layer than could be, and what would help.

    Attributes
    ----------
    values : str
        Why there are no singular values; empty if there are.
    size : str
        Why bounds on the norm are those for every size; empty if they are for its own.
    """

    values: str = ""
    size: str = ""

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.size, self.values)))


@dataclass(frozen=True, slots=True)
class _Cost:
    """Of the values and the norm of a layer.

    Attributes
    ----------
    seconds : of the values
    kept_bytes : of the values, which are kept until the report is done
    values_bytes : memory while they and their statistics are computed
    numbers : of the padded input and the output that the layer is applied to
    """

    seconds: float = 0.0
    kept_bytes: float = 0.0
    values_bytes: float = 0.0
    numbers: float = 0.0

    @property
    def norm_bytes(self) -> float:
        """Memory while the layer is applied, for its norm."""
        return NUMBER_BYTES * self.numbers


def too_large(layer: StoredLayer) -> str:
    """Why a layer cannot be applied to any input, empty if it can, or need not be."""
    cost = _cost(layer, NOMINAL)
    if cost.numbers <= MOST_NUMBERS:
        return ""
    return (
        f"has a padded input and output of {cost.numbers:.2g} numbers, and at most "
        f"{MOST_NUMBERS:.2g} are allowed: give less --padding or another --grid, or "
        "--grid none for bounds that hold for every size"
    )


def excesses(layers: Sequence[StoredLayer], budget: float | None) -> dict[str, Excess]:
    """What is left out, by the names of the layers.

    Values of small layers come first, so that few large ones are left out rather than
    many small ones. A stated budget is in seconds of this machine. Without one, every
    machine leaves out the same. Memory is limited whatever the budget.
    """
    most = SECONDS if budget is None else budget
    machine = NOMINAL if budget is None else this_machine()
    costs = {layer.name: _cost(layer, machine) for layer in layers}
    found: dict[str, Excess] = {}
    seconds = kept = 0.0
    for name, cost in sorted(costs.items(), key=lambda item: item[1].seconds):
        values = _why_no_values(cost, seconds, most, kept)
        if not values:
            seconds, kept = seconds + cost.seconds, kept + cost.kept_bytes
        size = ""
        if cost.norm_bytes > BYTES:
            size = (
                f"the norm at this size would take {_allowed(cost.norm_bytes)}, so "
                "that its bounds are those for every size: state a smaller input or "
                "less padding"
            )
        if values or size:
            found[name] = Excess(values, size)
    return found


def _why_no_values(cost: _Cost, seconds: float, most: float, kept: float) -> str:
    """Why a layer's values are left out, after others that take so much; or empty."""
    if cost.values_bytes > BYTES:
        return f"values would take {_allowed(cost.values_bytes)}: state a smaller input"
    if seconds + cost.seconds > most:
        return (
            f"values would take about {cost.seconds:.2g} s, which is beyond the budget "
            f"of {most:g} s for all layers: --budget SECONDS allows more"
        )
    if kept + cost.values_bytes > BYTES:
        return (
            "values would take, with those of other layers, "
            f"{_allowed(kept + cost.values_bytes)}: select fewer layers by --key"
        )
    return ""


def _allowed(bytes: float) -> str:
    """So much memory, and what the limit is."""
    gibibytes = f"{bytes / 2**30:.2g} GiB of memory"
    return f"{gibibytes}, and at most {BYTES / 2**30:.2g} GiB are allowed"


def values_seconds(layers: Sequence[StoredLayer]) -> float:
    """What all values of these layers are predicted to take, on every machine."""
    return math.fsum(_cost(layer, NOMINAL).seconds for layer in layers)


def _cost(layer: StoredLayer, machine: Machine) -> _Cost:
    """Of the values of a layer, by its shapes alone."""
    shape, geometry = layer.kernel.shape, layer.geometry
    weight = np.broadcast_to(np.float32(0), shape)
    if geometry.grid is None:
        return _Cost()
    try:
        stencil = stencil_of(weight, geometry)
        torus = stencil_of(weight, geometry.torus(stencil.kernel))
    except (ValueError, TypeError):
        return _Cost()  # the analysis says what is wrong with it
    steps = zip(stencil.rows, stencil.stride, stencil.dilation, stencil.kernel)
    padded = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in steps]
    read = math.prod(map(max, padded, stencil.columns))
    written = math.prod(stencil.rows)
    numbers = stencil.in_channels * read + stencil.out_channels * written
    cost = of_values(torus, machine)
    kept = cost.memory * (2 if layer.kernel.dtype in DOUBLE else 1)
    frequencies = of_frequencies("values", torus, real=True)
    return _Cost(
        seconds=cost.seconds + frequencies.seconds,
        kept_bytes=kept,
        values_bytes=frequencies.memory + VALUES_BYTES * kept,
        # A torus is not applied: its norm is that of a matrix for some frequency.
        numbers=0.0 if stencil.is_torus else stencil.groups * numbers,
    )
