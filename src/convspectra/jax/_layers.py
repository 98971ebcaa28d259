"""The layers of a Flax model, each with its actual geometry."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from .._layer.layer import Layer, scale_outputs
from .._text import cell
from .._training import FoundLayers
from ._modules import to_layer
from ._paths import Path, leaves_by_path, without_collection
from ._record import BatchNorm, Call, Recorder, Use, follow_linen, follow_nnx

STATISTICS = "batch_stats"  # linen's name for what BatchNorms have counted


@dataclass(frozen=True, slots=True, eq=False)
class Layers(FoundLayers[Use]):
    """The layers of a model, as a sequence; see `layers`.

    Attributes
    ----------
    found : tuple of Layer
    skipped : dict of str to str
        The names of other kernels, and why they are left out.
    """


def layers(
    model: Any, example: Any, params: Any = None, *, fold_batch_norm: bool = False
) -> Layers:
    """Every convolution and dense layer of a Flax model, with its actual input size.

    The model is traced by shapes: nothing is computed, and the model is left unchanged.

    Parameters
    ----------
    model : flax.nnx.Module or flax.linen.Module
        Or `functools.partial` of one, with arguments that it takes by name.
    example : array, jax.ShapeDtypeStruct, or tuple
        An input of the model, or all of its arguments. Only the shapes and dtypes of
        arrays matter.
    params : pytree, optional
        The parameters of a linen model, or all of its variables. An nnx model has its
        own.
    fold_batch_norm : bool
        Whether to fold a BatchNorm, with its running statistics, into the layer before
        it, as in deployment. The layer is then named "layer+norm". One whose output
        several BatchNorms read appears once with each, and also by itself if anything
        else reads it, or the model returns it. For a linen model, `params` must be all
        variables: "params" and "batch_stats".

    Returns
    -------
    Layers
        In the order of execution, named by their path in the parameters:
        "block/conv/kernel". A layer that is used with several input sizes appears once
        for each, as "name@32x32"; a dense layer is a kernel with one tap. Weights are
        JAX arrays in the layout of `Layer`.
    """
    call = _call_of(model, example)
    arrays = _arrays_of(call.model, params)
    recorder = Recorder(arrays, batch_norms=fold_batch_norm)
    follow = follow_nnx if isinstance(call.model, nnx.Module) else follow_linen
    follow(call, recorder)
    uses, skipped = recorder.uses, recorder.skipped
    known = {use.path for use in uses}
    for path, leaf in arrays.items():
        if path[-1] == "kernel" and leaf.ndim > 1 and path not in known:
            why = "no convolution or dense layer of Flax was called with it"
            skipped.setdefault("/".join(path), why)
    several = Counter(path for path, _ in {(use.path, use.geometry) for use in uses})
    found = tuple(_layer(use, arrays, several[use.path] > 1) for use in uses)
    return Layers(found, skipped, uses)


def _call_of(model: Any, example: Any) -> Call:
    args = example if isinstance(example, tuple) else (example,)
    if isinstance(model, partial):
        return Call(model.func, (*model.args, *args), model.keywords)
    return Call(model, args, {})


def _arrays_of(model: Any, params: Any) -> dict[Path, Any]:
    """The parameters of a model, and the statistics of BatchNorms if they are known.

    A linen model's parameters are without the name of their collection.
    """
    if isinstance(model, nnx.Module):
        if params is not None:
            raise TypeError(
                "`params` must be None for an nnx model, which has its own."
            )
        arrays = leaves_by_path(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    elif isinstance(model, linen.Module):
        if params is None:
            raise TypeError(
                "`params` must be the parameters of a linen model, got None. Pass "
                '`model.init(key, example)["params"]`, or the trained ones.'
            )
        whole = leaves_by_path(params)
        arrays = {without_collection(path): leaf for path, leaf in whole.items()}
    else:
        raise TypeError(
            "`model` must be a module of flax.nnx or flax.linen, got "
            f"{type(model).__name__}."
        )
    for path, leaf in arrays.items():
        if not hasattr(leaf, "__array__"):
            raise TypeError(
                f"The parameters of the model must be arrays, got {leaf!r} for "
                f"{'/'.join(path)!r}. Initialize it first."
            )
    return arrays


def _layer(use: Use, arrays: Mapping[Path, jax.Array], several: bool) -> Layer:
    name, weight = use.name, to_layer(use.role, arrays[use.path])
    if use.batch_norm is not None:
        name = f"{name}+{'/'.join(use.batch_norm.path)}"
        gain = _gain(use.batch_norm, arrays).astype(weight.dtype)
        weight = scale_outputs(weight, gain, use.geometry)
    name = f"{name}@{cell(use.geometry.grid)}" if several else name
    try:
        return Layer(name, weight, use.geometry)
    except (ValueError, TypeError) as error:
        raise type(error)(f"Layer {name!r}: {error}") from None


def _gain(norm: BatchNorm, arrays: Mapping[Path, jax.Array]) -> jax.Array:
    """What a BatchNorm multiplies each channel with, once it is trained."""
    own = (*norm.path, "var")
    variance = arrays.get(own, arrays.get((STATISTICS, *own)))
    if variance is None:
        raise ValueError(
            f"`params` must have the statistics of {'/'.join(norm.path)!r} to fold it, "
            'and has none. Pass all variables: {"params": ..., "batch_stats": ...}.'
        )
    gain = 1 / jnp.sqrt(variance + norm.epsilon)
    scale = arrays.get((*norm.path, "scale"))
    return gain if scale is None else gain * scale
