"""The layers of a model, each with its actual geometry."""

from collections import Counter
from dataclasses import dataclass

import keras

from .._layer.layer import Layer, scale_outputs
from .._text import cell
from .._training import FoundLayers
from ._record import Recorder, Use, batch_norm_gain, check_is_built


@dataclass(frozen=True, slots=True, eq=False)
class Layers(FoundLayers[Use]):
    """The layers of a model, as a sequence; see `layers`.

    Attributes
    ----------
    found : tuple of Layer
    skipped : dict of str to str
        The names of other layers with kernels, and of each BatchNormalization that may
        have to be folded but is not, and why.
    """


def layers(model: keras.layers.Layer, *, fold_batch_norm: bool = False) -> Layers:
    """Every convolution and Dense layer of a model, with its actual input size.

    The model is not called, and is left unchanged. The sizes are those that Keras
    infers from the shapes of the model's inputs; in a model without a graph of layers
    (a subclass of `keras.Model`), those that each layer was built with.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        It must be built.
    fold_batch_norm : bool
        Whether to fold a BatchNormalization, with its moving statistics, into the layer
        before it, as in deployment. The layer is then named "layer+norm". One whose
        output several of them read appears once with each, and also by itself if
        anything else reads it, or the model returns it. A layer with an activation of
        its own is not folded. What comes before a BatchNormalization is known in graphs
        of layers alone; elsewhere it is skipped.

    Returns
    -------
    Layers
        In the order of execution, named as in a file of the model: "block/conv/kernel".
        Weights are copies, as NumPy arrays. A kernel whose input size is not known has
        the grid None, which means every size. A layer that is used with several input
        sizes appears once for each, as "name@32x32"; a separable one appears as its two
        kernels; a Dense layer is a kernel with one tap.
    """
    check_is_built(model)
    recorder = Recorder(model, batch_norms=fold_batch_norm)
    uses = recorder.uses
    several = Counter(name for name, _ in {(use.name, use.geometry) for use in uses})
    found = tuple(_layer(use, several[use.name] > 1) for use in uses)
    return Layers(found, recorder.skipped | recorder.not_folded, tuple(uses))


def _layer(use: Use, several: bool) -> Layer:
    name, weight = use.name, use.kernel
    if use.batch_norm is not None:
        name = f"{name}+{use.batch_norm.name}"
        gain = batch_norm_gain(use.batch_norm).astype(weight.dtype)
        weight = scale_outputs(weight, gain, use.geometry)
    if several:
        name = f"{name}@{cell(use.geometry.grid)}"
    try:
        return Layer(name, weight, use.geometry)
    except (ValueError, TypeError) as error:
        raise type(error)(f"Layer {name!r}: {error}") from None
