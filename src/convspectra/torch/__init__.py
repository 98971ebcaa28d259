"""Analyse the layers of a PyTorch model, and bound their norms during training."""

from .._base import require as _require

_require("torch", extra="torch")

from .._network.bounds import LipschitzBounds as LipschitzBounds  # noqa: E402
from .._network.bounds import LipschitzPart as LipschitzPart  # noqa: E402
from .._training import Change as Change  # noqa: E402
from .._training import Pass as Pass  # noqa: E402
from ._bounded import bounded as bounded  # noqa: E402
from ._in_place import clip_ as clip_  # noqa: E402
from ._in_place import project_ as project_  # noqa: E402
from ._layers import Layers as Layers  # noqa: E402
from ._layers import layers as layers  # noqa: E402
from ._lipschitz import lipschitz as lipschitz  # noqa: E402
from ._penalty import penalty as penalty  # noqa: E402
from ._spectral_clip import SpectralClip as SpectralClip  # noqa: E402
