"""Bound a JAX network while it trains, and see what its layers do."""

from .._base import require as _require

for _name in ("jax", "flax", "optax"):
    _require(_name, extra="jax")

from ._layers import Layers as Layers  # noqa: E402
from ._layers import layers as layers  # noqa: E402
from ._on_device import clip as clip  # noqa: E402
from ._on_device import norm_estimate as norm_estimate  # noqa: E402
from ._spectral_clip import SpectralClipState as SpectralClipState  # noqa: E402
from ._spectral_clip import spectral_clip as spectral_clip  # noqa: E402
from ._trees import clip_tree as clip_tree  # noqa: E402
from ._trees import penalty as penalty  # noqa: E402
from ._trees import project_tree as project_tree  # noqa: E402
