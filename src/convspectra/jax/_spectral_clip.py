"""An optax transformation that keeps the norms of a model's layers bounded."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._arrays.array import spacing
from .._arrays.sharding import replicated
from .._base import size
from .._bound.enforce import METHODS, norm_lipschitz
from .._training import Bounds
from ._layers import Layers
from ._modules import to_layer
from ._paths import leaves_by_path, map_at
from ._trees import Target, enforced, targets_of


class SpectralClipState(NamedTuple):
    """The state of `spectral_clip`.

    Attributes
    ----------
    steps : jax.Array
        The number of updates so far.
    """

    steps: jax.Array


def spectral_clip(
    layers: Layers,
    max_norm: Bounds = 1.0,
    every: int = 100,
    *,
    method: str = "clip",
    linear: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Bound the norms of a model's layers every `every` updates.

    The last transformation of a chain: it changes updates such that the parameters
    satisfy their bounds after `optax.apply_updates`.

    Parameters
    ----------
    layers : Layers
        What `layers` found in the model.
    max_norm, linear
        As for `clip_tree`.
    every : int
        The number of updates from one pass to the next.
    method : {"clip", "project", "scale"}
        "clip" is the paper's method, on the device: cheap, and near the bound
        afterwards. "project" moves to a kernel within the bound, usually at most 5 %
        further than to the nearest, "scale" scales the kernel down; both certify the
        bound, on the host.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        Its state is a `SpectralClipState`.
    """
    every = size("every", every, least=1)
    if method not in METHODS:
        raise ValueError(
            f"`method` must be one of {', '.join(METHODS)}, got {method!r}."
        )
    targets = targets_of(layers, max_norm, linear=linear)

    def init(params: Any) -> SpectralClipState:
        map_at(params, {t.path: lambda leaf: leaf for t in targets})  # they are there
        return SpectralClipState(jnp.zeros((), jnp.int32))

    def update(
        updates: Any, state: Any, params: Any = None, **_: Any
    ) -> tuple[Any, SpectralClipState]:
        if params is None:
            raise ValueError(
                "`update` must be given the parameters: `update(grads, state, params)`."
            )
        steps = state.steps + 1
        kernels = leaves_by_path(params)

        def bounded(updates: Any) -> Any:
            return map_at(
                updates,
                {
                    t.path: partial(_bounded, t, method, kernels[t.path])
                    for t in targets
                },
            )

        is_due = steps % every == 0
        updates = jax.lax.cond(is_due, bounded, lambda same: same, updates)
        return updates, SpectralClipState(steps)

    return optax.GradientTransformationExtraArgs(init, update)


def _bounded(
    target: Target, method: str, kernel: jax.Array, update: jax.Array
) -> jax.Array:
    """The update after which a kernel satisfies its bound."""
    proposed = (kernel + update).astype(kernel.dtype)  # as optax adds them
    inside = enforced(target, method, proposed, in_training=True)
    changed = jnp.any(inside != proposed)
    if method != "clip":
        inside = _with_margin(target, kernel, update, inside)
    return jnp.where(changed, (inside - kernel).astype(update.dtype), update)


def _with_margin(
    target: Target, kernel: jax.Array, update: jax.Array, inside: jax.Array
) -> jax.Array:
    """A kernel scaled down so that rounding does not take it out of its bound.

    What is applied is kernel + (inside - kernel). The difference is rounded by at most
    half a spacing times |kernel| + |inside|, the sum and the scaling by as much times
    |inside| each; updates may be less precise than the kernel.
    """
    weight, kernel = to_layer(target.role, inside), replicated(kernel)
    lipschitz = max(norm_lipschitz(weight, g) for g in target.geometries)
    whole = replicated(inside)
    lengths = jnp.linalg.norm(kernel.ravel()) + 2 * jnp.linalg.norm(whole.ravel())
    unit = max(spacing(inside), spacing(update))
    margin = lipschitz * unit * lengths / target.max_norm
    return (inside * (1 - margin)).astype(inside.dtype)
