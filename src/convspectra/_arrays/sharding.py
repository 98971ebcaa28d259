"""Arrays of JAX whose type says how they are split: those on meshes of explicit axes.

There every function must say how its result is split, which ours cannot know; on meshes
of automatic axes JAX itself decides. A kernel is small, so that it is taken as a whole.
"""

from typing import Any

import array_api_compat

from .array import Array, is_host, is_traced


def replicated(weight: Array) -> Array:
    """`weight`, whole on all devices if its type says that it is split."""
    sharding = _explicit(weight)
    return weight if sharding is None else _placed(weight, _whole(sharding))


def split_like(weight: Array, found: Array) -> Array:
    """An array of the shape of `weight`, or a number, on the devices of `weight`."""
    sharding = _explicit(weight)
    if sharding is None:
        return found
    return _placed(found, sharding if found.shape else _whole(sharding))


def _explicit(weight: Array) -> Any:
    """The sharding that the type of an array states, None if it states none."""
    if is_host(weight) or not array_api_compat.is_jax_array(weight):
        return None
    import jax

    sharding = jax.typeof(weight).sharding
    if sharding.mesh.empty:
        return None
    return sharding if is_traced(weight) else weight.sharding


def _whole(sharding: Any) -> Any:
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(sharding.mesh, PartitionSpec())


def _placed(x: Array, sharding: Any) -> Array:
    import jax

    move = jax.sharding.reshard if is_traced(x) else jax.device_put
    return move(x, sharding)
