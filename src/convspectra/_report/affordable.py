"""What of a file's layers is within the budget? Known before any work is done."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._checkpoint.select import StoredLayer
from .._layer.stencil import stencil_of
from .._price import NOMINAL, Machine, of_values, this_machine

# What all the values of a file may take together, unless the user states a budget.
SECONDS, BYTES = 60.0, 2**30
# Numbers of a layer's padded input and output, beyond which it is not applied.
NUMBERS = 2**24
# The same where a norm for that very size is what is asked for: 4 GiB each time.
MOST_NUMBERS = 2**30


@dataclass(frozen=True, slots=True)
class Excess:
    """Why less is computed of a layer than could be; empty where nothing is left out.

    Attributes
    ----------
    values : str
        Why there are no singular values.
    size : str
        Why its size does not count, so that bounds are those for every size.
    """

    values: str = ""
    size: str = ""


@dataclass(frozen=True, slots=True)
class _Cost:
    seconds: float
    bytes: float
    numbers: float  # of the padded input and the output
    is_torus: bool = False


def too_large(layer: StoredLayer) -> str:
    """Why a layer cannot be applied to any input, empty if it can, or need not be."""
    cost = _cost(layer, NOMINAL)
    if cost.numbers <= MOST_NUMBERS or cost.is_torus:
        return ""
    return (
        f"has a padded input and output of {cost.numbers:.2g} numbers, and at most "
        f"{MOST_NUMBERS:.2g} are allowed: give less --padding or another --grid, or "
        "--grid none for bounds that hold for every size"
    )


def excesses(layers: Sequence[StoredLayer], budget: float | None) -> dict[str, Excess]:
    """What is beyond the budget, by the names of the layers.

    Values of small layers come first, so that few large ones are left out rather than
    many small ones. A stated budget, in seconds of this machine, raises the limit on
    the memory, too. Without one, every machine leaves out the same.
    """
    most = SECONDS if budget is None else budget
    machine = NOMINAL if budget is None else this_machine()
    memory = BYTES * max(most / SECONDS, 1)
    costs = {layer.name: _cost(layer, machine) for layer in layers}
    found: dict[str, Excess] = {}
    seconds = used = 0.0
    for name, cost in sorted(costs.items(), key=lambda item: item[1].seconds):
        if cost.numbers > NUMBERS:
            size = f"padded input and output have {cost.numbers:.2g} numbers"
            found[name] = Excess(values=size, size=size)
        elif seconds + cost.seconds > most:
            found[name] = Excess(
                f"values would take about {cost.seconds:.2g} s, which is beyond the "
                f"budget of {most:g} s for all layers"
            )
        elif used + cost.bytes > memory:
            found[name] = Excess(
                f"values would take {cost.bytes / 2**30:.2g} GiB, which is beyond the "
                f"budget of {memory / 2**30:.2g} GiB for all layers"
            )
        else:
            seconds, used = seconds + cost.seconds, used + cost.bytes
    return found


def values_seconds(layers: Sequence[StoredLayer]) -> float:
    """What all values of these layers are predicted to take, on every machine."""
    return math.fsum(_cost(layer, NOMINAL).seconds for layer in layers)


def _cost(layer: StoredLayer, machine: Machine) -> _Cost:
    """Of the values of a layer, by its shapes alone."""
    shape, geometry = layer.kernel.shape, layer.geometry
    weight = np.broadcast_to(np.float32(0), shape)
    if geometry.grid is None:
        return _Cost(0.0, 0.0, 0.0)
    try:
        stencil = stencil_of(weight, geometry)
        torus = stencil_of(weight, geometry.torus(stencil.kernel))
    except (ValueError, TypeError):
        return _Cost(0.0, 0.0, 0.0)  # the analysis says what is wrong with it
    steps = zip(stencil.rows, stencil.stride, stencil.dilation, stencil.kernel)
    padded = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in steps]
    read = math.prod(map(max, padded, stencil.columns))
    written = math.prod(stencil.rows)
    numbers = stencil.in_channels * read + stencil.out_channels * written
    cost, count = of_values(torus, machine), stencil.groups * numbers
    return _Cost(cost.seconds, cost.memory, count, stencil.is_torus)
