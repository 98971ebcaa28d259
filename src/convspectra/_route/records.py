"""What a route says: how a norm is certified, and how values are computed."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Method: TypeAlias = Literal[
    "frequencies",
    "matrix",
    "banded",
    "compression",
    "block compression",
    "embedding",
    "supremum",
    "reshaped",
]
NormAlgorithm: TypeAlias = Literal[
    "one matrix",
    "small matrices",
    "every frequency",
    "search by values",
    "search",
    "matrix",
    "banded",
]
ValuesAlgorithm: TypeAlias = Literal[
    "one matrix", "compiled", "LAPACK", "array library", "matrix", "too large"
]


@dataclass(frozen=True, slots=True)
class NormRoute:
    """How the norm of a layer is certified.

    These are all combinations, and who follows them (modules of `_norm`):

        method             algorithm   closing            followed by
        frequencies        of a torus  -                  norm_bounds
        supremum           of a torus  -                  norm_bounds
        embedding          of a torus  -                  norm_bounds
        matrix             matrix      -                  matrix_norm
        banded             banded      -                  banded_norm
        block compression  banded      banded             banded_norm, for both
        compression        of a torus  -                  zero_padding
        compression        of a torus  block compression  zero_padding, for both
        compression        of a torus  banded             zero_padding; banded_norm
        reshaped           one matrix  -                  reshaped

    Attributes
    ----------
    method : what certifies the upper bound
    algorithm : what is done with the matrices of the torus, or of the layer
    is_screened : whether single precision settles most of them first
    closing : what is tried next if upper / lower - 1 > max(rtol, allowed_gap)
    allowed_gap : not 0 only where a block compression closes: its seconds must pay
    """

    method: Method
    algorithm: NormAlgorithm
    is_screened: bool = False
    closing: Method | None = None
    allowed_gap: float = 0.0
