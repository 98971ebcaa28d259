"""Singular values, certified norms and norm bounds of convolutional layers."""

import typing as _typing
from importlib import import_module as _import_module

from ._bound.clip import clip as clip
from ._bound.project import Projection as Projection
from ._bound.project import project as project
from ._bound.scale import scale_to as scale_to
from ._layer.geometry import Geometry as Geometry
from ._layer.layer import Layer as Layer
from ._maps.dense import dense_matrix as dense_matrix
from ._norm.operator_norm import NormBounds as NormBounds
from ._norm.operator_norm import operator_norm as operator_norm
from ._norm.top_vectors import TopVectors as TopVectors
from ._norm.top_vectors import top_vectors as top_vectors
from ._plan import Plan as Plan
from ._plan import plan as plan
from ._price import Cost as Cost
from ._report.spectra import LayerSpectrum as LayerSpectrum
from ._report.spectra import Report as Report
from ._report.spectra import spectra as spectra
from ._spectrum import Summary as Summary
from ._spectrum import singular_values as singular_values
from ._spectrum import summarize as summarize

if _typing.TYPE_CHECKING:
    from . import jax as jax
    from . import keras as keras
    from . import torch as torch

    __version__: str
    """The version of the installed package."""
else:

    def __getattr__(name: str) -> _typing.Any:
        """Import what takes long when it is asked for: frameworks, and the metadata."""
        if name in ("jax", "keras", "torch"):
            return _import_module(f".{name}", __name__)
        if name == "__version__":
            return _import_module("importlib.metadata").version(__name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
