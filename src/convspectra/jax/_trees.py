"""Bound the kernels in a tree of parameters, and penalize their norms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .._arrays.array import check_weight
from .._arrays.host import call_on_host
from .._bound.enforce import enforce
from .._layer.geometry import Geometry
from .._norm.operator_norm import operator_norm
from .._training import Bounds, bounds_of
from ._layers import Layers
from ._modules import from_layer, to_layer
from ._on_device import clip
from ._paths import Path, leaves_at, map_at


@dataclass(frozen=True, slots=True)
class Target:
    """A kernel to be bounded, at all geometries that it is used at."""

    path: Path
    role: str
    max_norm: float
    geometries: tuple[Geometry, ...]

    @property
    def name(self) -> str:
        return "/".join(self.path)


def clip_tree(
    params: Any, layers: Layers, max_norm: Bounds = 1.0, *, linear: bool = False
) -> Any:
    """Clip the singular values of the kernels in a tree; see `clip`.

    Pure, and on the device.

    Parameters
    ----------
    params : pytree
        The parameters of the model, as optax takes them: of linen a dictionary, of nnx
        `nnx.state(model, nnx.Param)`.
    layers : Layers
        What `layers` found in the model.
    max_norm : float, or mapping of str to float or None
        The bound on the norm of each layer. A mapping maps shell-style patterns for the
        names of `layers` to bounds, and the first pattern that matches applies; a layer
        with None, or without a match, is skipped.
    linear : bool
        Whether to clip dense layers too.

    Returns
    -------
    pytree
        Like `params`, with other kernels.
    """
    return enforce_tree(params, targets_of(layers, max_norm, linear=linear), "clip")


def project_tree(
    params: Any, layers: Layers, max_norm: Bounds = 1.0, *, linear: bool = False
) -> Any:
    """Move the kernels in a tree to the nearest ones that are certified within a bound.

    Pure; the work is done on the host, under `jit` by a callback. See
    `convspectra.project`.

    Parameters
    ----------
    params, layers, max_norm, linear
        As for `clip_tree`.

    Returns
    -------
    pytree
        Like `params`, with other kernels.
    """
    return enforce_tree(params, targets_of(layers, max_norm, linear=linear), "project")


def penalty(
    params: Any, layers: Layers, max_norm: Bounds = 1.0, *, linear: bool = False
) -> jax.Array:
    """The sum of squares by which a model's layers exceed a bound.

    Of the certified upper bounds on the norms, which are computed on the host, under
    `jit` by a callback.

    Parameters
    ----------
    params, layers, max_norm, linear
        As for `clip_tree`.

    Returns
    -------
    jax.Array
        A scalar, 0 if all layers satisfy the bound; its derivative is finite also at
        zero and at repeated singular values.
    """
    targets = targets_of(layers, max_norm, linear=linear)
    kernels, total = kernels_of(params, targets), jnp.zeros(())
    for target, kernel in zip(targets, kernels):
        weight = to_layer(target.role, kernel)
        for geometry in target.geometries:
            upper = operator_norm(weight, geometry).upper
            total = total + jnp.maximum(upper - target.max_norm, 0) ** 2
    return total


def targets_of(layers: Layers, max_norm: Bounds, *, linear: bool) -> list[Target]:
    """The kernels to be bounded, each once."""
    if not isinstance(layers, Layers):
        raise TypeError(
            "`layers` must be what `convspectra.jax.layers` returns, got "
            f"{type(layers).__name__}."
        )
    if any(use.batch_norm is not None for use in layers.uses):
        raise ValueError(
            "`layers` must be without `fold_batch_norm`: the parameters lack the "
            "statistics of BatchNorms, on which the bound would depend."
        )
    found: dict[Path, Target] = {}
    names = [use.name for use in layers.uses]
    left_out = [use.role == "dense" and not linear for use in layers.uses]
    bounds = bounds_of(
        names, max_norm, layers.skipped, dense="dense", left_out=left_out
    )
    for use, bound, is_left_out in zip(layers.uses, bounds, left_out):
        if bound is not None and not is_left_out:
            known = found.get(use.path)
            geometries = (*(known.geometries if known else ()), use.geometry)
            found[use.path] = Target(use.path, use.role, bound, geometries)
    return list(found.values())


def kernels_of(params: Any, targets: Sequence[Target]) -> list[jax.Array]:
    """The kernels to be bounded, as they are in a tree."""
    return leaves_at(params, [target.path for target in targets])


def enforce_tree(params: Any, targets: Sequence[Target], method: str) -> Any:
    """The tree with each kernel brought to its bound."""
    return map_at(params, {t.path: partial(enforced, t, method) for t in targets})


def enforced(target: Target, method: str, kernel: jax.Array) -> jax.Array:
    """A kernel in Flax's layout, brought to its bound."""
    weight = to_layer(target.role, kernel)
    try:
        return from_layer(target.role, _bounding(target, method)(weight))
    except (ValueError, TypeError) as error:
        raise type(error)(f"Layer {target.name!r}: {error}") from None


def _bounding(target: Target, method: str) -> Callable[[jax.Array], jax.Array]:
    def on_device(weight: jax.Array) -> jax.Array:
        for geometry in target.geometries:
            weight = clip(weight, geometry, target.max_norm)
        return weight

    def on_host(weight: jax.Array) -> jax.Array:
        check_weight(weight)
        return call_on_host(
            lambda plain: (
                enforce(plain, target.geometries, target.max_norm, method).weight,
            ),
            weight,
            arrays=1,
        )[0]

    return on_device if method == "clip" else on_host
