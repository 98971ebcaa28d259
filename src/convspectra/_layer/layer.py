"""A named layer: a kernel and its geometry, checked against each other."""

from dataclasses import dataclass

from .._arrays.array import Array, check_weight, namespace
from .geometry import Geometry
from .stencil import stencil_of


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A convolution with a name.

    Parameters
    ----------
    name : str
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer: PyTorch's layouts.
    geometry : Geometry
        If it leaves the number of axes open, the kernel determines it.
    """

    name: str
    weight: Array
    geometry: Geometry

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"`name` must be a string, got {self.name!r}.")
        stencil = stencil_of(self.weight, self.geometry)
        spread = self.geometry.broadcast_to(len(stencil.kernel))
        object.__setattr__(self, "geometry", spread)

    @classmethod
    def from_oihw(cls, name: str, weight: Array, geometry: Geometry) -> "Layer":
        """Make a layer from the layout of PyTorch and ONNX, (out, in, *kernel)."""
        return cls(name, weight, geometry)

    @classmethod
    def from_hwio(cls, name: str, weight: Array, geometry: Geometry) -> "Layer":
        """Make a layer from the layout of Keras, TensorFlow, Flax: (*kernel, in, out).

        For a transposed layer that layout is (*kernel, out, in).
        """
        check_weight(weight)
        count = len(weight.shape)
        if count < 3:
            return cls(name, weight, geometry)  # which says what is wrong with it
        axes = (count - 1, count - 2, *range(count - 2))
        return cls(name, namespace(weight).permute_dims(weight, axes), geometry)


def scale_outputs(weight: Array, gains: Array, geometry: Geometry) -> Array:
    """The kernel that gives each output channel multiplied by its gain."""
    xp, ones = namespace(weight), (1,) * (len(weight.shape) - 2)
    if not geometry.transposed:
        return weight * xp.reshape(gains, (-1, 1, *ones))
    # (in, out / groups, *kernel): input channels of a group share its outputs.
    by_group = xp.reshape(weight, (geometry.groups, -1, *weight.shape[1:]))
    gains = xp.reshape(gains, (geometry.groups, 1, -1, *ones))
    return xp.reshape(by_group * gains, weight.shape)
