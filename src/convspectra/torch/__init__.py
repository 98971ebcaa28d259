"""Analyse the layers of a PyTorch model, and bound their norms during training."""

from .._training import Change as Change
from .._training import Pass as Pass
from ._bounded import bounded as bounded
from ._in_place import clip_ as clip_
from ._in_place import project_ as project_
from ._layers import Layers as Layers
from ._layers import layers as layers
from ._penalty import penalty as penalty
from ._spectral_clip import SpectralClip as SpectralClip
