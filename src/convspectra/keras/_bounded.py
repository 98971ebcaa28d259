"""A constraint that bounds the norm of a layer."""

from typing import Any

import keras

from .._base import positive
from .._bound.scale import scale_to
from ._any_size import Sizes, any_size


@keras.saving.register_keras_serializable(package="convspectra")
class Bounded(keras.constraints.Constraint):
    """Scale a kernel down until its certified norm is at most `max_norm`."""

    def __init__(
        self,
        max_norm: float = 1.0,
        stride: Sizes = 1,
        groups: int = 1,
        depthwise: bool = False,
    ) -> None:
        self.max_norm = positive("max_norm", max_norm)
        self.use = any_size(stride, groups, depthwise)

    def __call__(self, w: Any) -> Any:
        kernel, shape = self.use.to_layer(w), tuple(w.shape)
        scaled = scale_to(kernel, self.use.geometry(shape), self.max_norm)
        return self.use.from_layer(scaled, shape)

    def get_config(self) -> dict[str, Any]:
        return {"max_norm": self.max_norm, **self.use.config()}


def bounded(
    max_norm: float = 1.0,
    *,
    stride: Sizes = 1,
    groups: int = 1,
    depthwise: bool = False,
) -> keras.constraints.Constraint:
    """A constraint that keeps a layer's norm at most `max_norm`, at every input size.

    Pass it as `kernel_constraint` (`depthwise_constraint` and `pointwise_constraint` of
    separable layers). After each update of the optimizer, Keras applies it: the kernel
    is scaled down until its certified norm satisfies the bound. It is saved and loaded
    with the model, if `convspectra.keras` is imported.

    A constraint sees the kernel alone. The bound always holds, for convolutions,
    transposed and depthwise ones and Dense layers with any padding, dilation and data
    format; but if stride, groups or depthwise are not stated, the kernel is scaled down
    more than needed.

    Norms are computed on the host, which XLA does not allow: in TensorFlow, models with
    this constraint must be compiled with `jit_compile=False`, the default on CPUs.

    Parameters
    ----------
    max_norm : float
    stride : int or tuple of int
        The `strides` of the layer.
    groups : int
        The `groups` of the layer.
    depthwise : bool
        Whether the layer is depthwise, or the kernel is that of a separable layer's
        depthwise part.

    Returns
    -------
    keras.constraints.Constraint
    """
    return Bounded(max_norm, stride, groups, depthwise)
