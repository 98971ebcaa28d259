"""A kernel on inputs of every size, which is all that a constraint can know of it."""

from dataclasses import asdict, dataclass
from typing import Any

import keras

from .._arrays.array import Array
from .._base import size
from .._checkpoint.keras_config import by_name, from_layer, to_layer
from .._layer.geometry import Geometry

Sizes = int | tuple[int, ...] | list[int]


@dataclass(frozen=True, slots=True)
class AnySize:
    """How a layer uses its kernel, apart from the size of its input.

    Neither padding nor dilation changes the supremum of the norm over all sizes, and a
    transposed layer has that of the convolution which it transposes.
    """

    stride: int | tuple[int, ...]
    groups: int
    depthwise: bool

    def role(self, shape: tuple[int, ...]) -> str:
        if len(shape) == 2:
            return "dense"
        return "depthwise" if self.depthwise else "conv"

    def geometry(self, shape: tuple[int, ...]) -> Geometry:
        """The geometry of a kernel of this shape in Keras's layout."""
        role = self.role(shape)
        if role == "dense":
            return Geometry(**by_name(role, shape))
        stated = {"groups": self.groups, **by_name(role, shape)}
        return Geometry(grid=None, stride=self.stride, boundary="zeros", **stated)

    def to_layer(self, weight: Any) -> Array:
        """A weight of a layer as a kernel in the layout of `Layer`."""
        tensor: Any = keras.ops.convert_to_tensor(weight)
        if isinstance(weight, keras.Variable):
            tensor = weight.value  # which on TensorFlow the line above is not
        return to_layer(self.role(tuple(weight.shape)), tensor)

    def from_layer(self, kernel: Array, shape: tuple[int, ...]) -> Array:
        return from_layer(self.role(shape), kernel, shape)

    def config(self) -> dict[str, Any]:
        return asdict(self)


def any_size(stride: Sizes, groups: int, depthwise: bool) -> AnySize:
    """Check what is stated of a layer; lists are what a file has for tuples."""
    checked = Geometry(grid=None, stride=stride, groups=size("groups", groups, least=1))
    if not isinstance(depthwise, bool):
        raise TypeError(f"`depthwise` must be True or False, got {depthwise!r}.")
    return AnySize(checked.stride, checked.groups, depthwise)
