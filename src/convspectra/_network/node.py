"""One operation of a network, as far as its Lipschitz constant goes."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .._layer.layer import Layer


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An operation on arrays that depend on the network's input.

    Attributes
    ----------
    name, operator : str
        What people call it, and what the framework calls what it does.
    sources : tuple of (Node, float)
        What it reads, each multiplied by a factor; none for an input of the network.
    gain : float, Layer or array
        The Lipschitz constant of what it does to its sources once they are joined, or
        an upper bound; the layer that it is; or the factor of each channel. None if
        nothing is known.
    joined : {"sum", "stack"}
        Whether several sources are added, or stand beside each other.
    axis : int, optional
        Where the channels of a layer's output, or of the factors, are.
    why : str
        How the constant is known, or why it is not.
    """

    name: str
    operator: str
    sources: "tuple[tuple[Node, float], ...]" = ()
    gain: "float | Layer | np.ndarray | None" = 1.0
    joined: Literal["sum", "stack"] = "sum"
    axis: int | None = None
    why: str = ""
