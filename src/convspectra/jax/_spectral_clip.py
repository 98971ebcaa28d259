"""An optax transformation that keeps the norms of a model's layers bounded."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .._arrays.array import check_weight
from .._arrays.sharding import replicated, split_like
from .._base import size
from .._bound.enforce import METHODS
from .._training import Bounds
from ._layers import Layers
from ._modules import from_layer, to_layer
from ._paths import map_at
from ._trees import Target, enforced, kernels_of, targets_of
from ._updates import certified_update


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

    Notes
    -----
    An update of half precision changes an entry by steps of 1/256 of it (bfloat16): of
    a kernel a hundred times above its bound little but rounding is left, and one that
    is farther above may need a second update to satisfy the bound. Bring such kernels
    there by `project_tree` first.
    """
    every = size("every", every, least=1)
    if method not in METHODS:
        raise ValueError(
            f"`method` must be one of {', '.join(METHODS)}, got {method!r}."
        )
    targets = targets_of(layers, max_norm, linear=linear)

    def init(params: Any) -> SpectralClipState:
        kernels_of(params, targets)  # they are there
        return SpectralClipState(jnp.zeros((), jnp.int32))

    def update(
        updates: Any, state: Any, params: Any = None, **_: Any
    ) -> tuple[Any, SpectralClipState]:
        if params is None:
            raise ValueError(
                "`update` must be given the parameters: `update(grads, state, params)`."
            )
        steps = state.steps + 1
        kernels = kernels_of(params, targets)
        for target, kernel in zip(targets, kernels):
            _check(target, kernel)  # here, as `cond` hides the numbers

        def bounded(updates: Any) -> Any:
            return map_at(
                updates,
                {
                    target.path: partial(_bounded, target, method, kernel)
                    for target, kernel in zip(targets, kernels)
                },
            )

        is_due = steps % every == 0
        updates = jax.lax.cond(is_due, bounded, lambda same: same, updates)
        return updates, SpectralClipState(steps)

    return optax.GradientTransformationExtraArgs(init, update)


def _check(target: Target, kernel: jax.Array) -> None:
    """Refuse a kernel that has no norm, by the name of its layer."""
    try:
        check_weight(kernel)
    except (ValueError, TypeError) as error:
        raise type(error)(f"Layer {target.name!r}: {error}") from None


def _bounded(
    target: Target, method: str, kernel: jax.Array, update: jax.Array
) -> jax.Array:
    """The update after which a kernel satisfies its bound."""
    if method != "clip":
        return _certified(target, method, kernel, update)
    proposed = (kernel + update).astype(kernel.dtype)  # as optax adds them
    inside = enforced(target, method, proposed)
    changed = jnp.any(inside != proposed)
    return jnp.where(changed, (inside - kernel).astype(update.dtype), update)


def _certified(
    target: Target, method: str, kernel: jax.Array, update: jax.Array
) -> jax.Array:
    """The update after which the bound is certified, by a callback.

    That takes the update itself, and not only the kernel: what is certified is what
    `optax.apply_updates` makes of it, rounding included.
    """
    whole, change = (to_layer(target.role, replicated(x)) for x in (kernel, update))
    found = jax.pure_callback(
        partial(certified_update, target, method),
        jax.ShapeDtypeStruct(change.shape, change.dtype),
        *(whole, change),
        vmap_method="sequential",
    )
    return split_like(update, from_layer(target.role, found))
