"""Bound a Keras network while it trains, and see what its layers do."""

from .._base import require as _require

try:
    _require("keras", extra="keras")
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "Keras's backend must be installed, and `tensorflow` is not. Run `pip install "
        "'convspectra[keras]'`, or set the variable KERAS_BACKEND to jax or torch.",
        name=_error.name,
    ) from None

from .._training import Change as Change
from .._training import Pass as Pass
from ._bounded import bounded as bounded
from ._in_place import clip_ as clip_
from ._in_place import project_ as project_
from ._layers import Layers as Layers
from ._layers import layers as layers
from ._penalty import penalty as penalty
from ._spectral_clip import SpectralClip as SpectralClip
