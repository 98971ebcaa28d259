"""The boundaries: what a layer reads beyond its input, in one table keyed by name.

`dense_matrix`, the judge of this table, has one of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class Boundary:
    """What is read at each site of an axis with n columns, and beyond them.

    Attributes
    ----------
    columns_at : function
        From sites, an array of whole numbers, and n to the columns that are read there,
        -1 for a zero. At sites from 0 to n - 1 these are the sites themselves.
    is_circular, is_zero : bool
        Whether the axis is a circle, and whether all sites beyond it are zeros. For
        these two the bounds are sharper than for a boundary in general.
    """

    columns_at: Callable[[np.ndarray, int], np.ndarray]
    is_circular: bool = False
    is_zero: bool = False

    def repeats(self, padding: int) -> int:
        """At how many sites a column is read at most, on a grid of any size.

        Parameters
        ----------
        padding : int
            Sites of padding on both sides; on a circle no more than make the layer a
            torus, or part of one.
        """
        # In general: at its own site, and at all of the padding on a grid of one site.
        return 1 if self.is_circular or self.is_zero else 1 + padding


def _zeros(site: np.ndarray, n: int) -> np.ndarray:
    return np.where((site >= 0) & (site < n), site, -1)


def _reflect(site: np.ndarray, n: int) -> np.ndarray:
    period = max(2 * n - 2, 1)  # there and back again, each edge once
    return np.minimum(site % period, 2 * n - 2 - site % period)


# For type checkers, which cannot read the table.
BoundaryName: TypeAlias = Literal["circular", "zeros", "reflect", "replicate"]
_BY_NAME: dict[BoundaryName, Boundary] = {
    "circular": Boundary(lambda site, n: site % n, is_circular=True),
    "zeros": Boundary(_zeros, is_zero=True),
    "reflect": Boundary(_reflect),
    "replicate": Boundary(lambda site, n: np.clip(site, 0, n - 1)),
}
BOUNDARIES: tuple[BoundaryName, ...] = tuple(_BY_NAME)


def boundary_of(name: str) -> Boundary:
    """The boundary of this name; an error if there is none."""
    if name not in _BY_NAME:
        raise ValueError(
            f"A boundary must be one of {', '.join(_BY_NAME)}, got {name!r}, which "
            "is not defined. Define in `_layer/boundary.py` what it reads."
        )
    return _BY_NAME[name]
