"""Analyse the layers of a PyTorch model, and bound their norms during training."""

from ._bounded import bounded as bounded
from ._in_place import clip_ as clip_
from ._in_place import project_ as project_
from ._layers import Layers as Layers
from ._layers import layers as layers
from ._pass import Change as Change
from ._pass import Pass as Pass
from ._penalty import penalty as penalty
from ._spectral_clip import SpectralClip as SpectralClip
