"""One operation of a network, as far as its Lipschitz constant goes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .._layer.boundary import BoundaryName
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
    joined : {"sum", "stack"}
        Whether several sources are added, or stand beside each other.
    gain : float or array
        An upper bound on the Lipschitz constant of what it does with its sources once
        they are joined, or the factor of each channel. None if nothing is known.
    layer : function, optional
        Returns the layer that it is, whose result is multiplied by `gain`.
    axis : int, optional
        Where the channels of a layer's output, or of the factors, are.
    why : str
        How the gain is known, or why it is not.
    is_sigmoid : bool
        Whether it is the sigmoid of its source.
    padded : tuple of (boundary, pairs), optional
        What it adds before and after the last axes of its source, if it does just that:
        by which boundary of a `Geometry`, and how much on each of these axes.
    """

    name: str
    operator: str
    sources: "tuple[tuple[Node, float], ...]" = ()
    joined: Literal["sum", "stack"] = "sum"
    gain: float | np.ndarray | None = 1.0
    layer: Callable[[], Layer] | None = None
    axis: int | None = None
    why: str = ""
    is_sigmoid: bool = False
    padded: tuple[BoundaryName, tuple[tuple[int, int], ...]] | None = None
