"""A penalty for a norm above a bound, as a regularizer of a layer."""

from typing import Any

import keras

from .._base import positive
from .._norm.operator_norm import operator_norm
from ._any_size import Sizes, any_size


@keras.saving.register_keras_serializable(package="convspectra")
class Penalty(keras.regularizers.Regularizer):
    """The square by which a certified norm exceeds a bound, times a factor."""

    def __init__(
        self,
        max_norm: float = 1.0,
        factor: float = 1.0,
        stride: Sizes = 1,
        groups: int = 1,
        depthwise: bool = False,
    ) -> None:
        self.max_norm = positive("max_norm", max_norm)
        self.factor = positive("factor", factor)
        self.use = any_size(stride, groups, depthwise)

    def __call__(self, x: Any) -> Any:
        kernel, ops = self.use.to_layer(x), keras.ops
        upper = operator_norm(kernel, self.use.geometry(tuple(x.shape))).upper
        excess = ops.square(ops.relu(upper - self.max_norm))
        return ops.cast(self.factor * excess, keras.backend.result_type(x.dtype, float))

    def get_config(self) -> dict[str, Any]:
        stated = {"max_norm": self.max_norm, "factor": self.factor}
        return stated | self.use.config()


def penalty(
    max_norm: float = 1.0,
    *,
    factor: float = 1.0,
    stride: Sizes = 1,
    groups: int = 1,
    depthwise: bool = False,
) -> keras.regularizers.Regularizer:
    """A regularizer: `factor` times the square by which a norm exceeds `max_norm`.

    Pass it as `kernel_regularizer`. The norm is the certified one at every input size;
    its derivative is finite also at zero and at repeated singular values.

    Parameters
    ----------
    max_norm, stride, groups, depthwise
        As for `bounded`. If they are not stated, the norm may be overestimated.
    factor : float

    Returns
    -------
    keras.regularizers.Regularizer
    """
    return Penalty(max_norm, factor, stride, groups, depthwise)
