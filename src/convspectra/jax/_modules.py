"""What Flax's modules say of their kernels, and Flax's layouts."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._layer.geometry import Geometry

DENSE = ("Dense", "Linear")
XLA = jax.lax.conv_general_dilated
KINDS = ("Conv", "ConvTranspose", *DENSE)  # of nnx and linen
WRAPPERS = ("WeightNorm", "SpectralNorm")


def role_of(module: Any) -> str:
    """How a module's kernel lies in memory; empty if it is no module of Flax's own."""
    kind = type(module)
    if kind.__name__ not in KINDS or not kind.__module__.startswith("flax."):
        return ""
    if kind.__name__ in DENSE:
        return "dense"
    if kind.__name__ == "Conv":
        return "flipped" if _dilates_input(module) else "conv"
    return "transpose" if module.transpose_kernel else "flipped"


def is_batch_norm(module: Any) -> bool:
    """Whether a module is the BatchNorm of nnx or linen."""
    kind = type(module)
    return kind.__name__ == "BatchNorm" and kind.__module__.startswith("flax.")


def computes_kernels(module: Any) -> bool:
    """Whether a module has others compute with kernels that it makes of theirs."""
    kind = type(module)
    return kind.__name__ in WRAPPERS and kind.__module__.startswith("flax.")


def to_layer(role: str, kernel: jax.Array) -> jax.Array:
    """A kernel in the layout of `Layer`, from (*kernel, in, out).

    A transposed layer of Flax correlates with its kernel, unless `transpose_kernel`
    says that it is the one of the convolution to be transposed, (*kernel, out, in). A
    convolution that dilates its input is such a transposed layer.
    """
    if role == "dense":
        return kernel.T[..., None]
    sites = tuple(range(kernel.ndim - 2))
    if role == "flipped":
        turned = jnp.flip(kernel, sites)
        return jnp.permute_dims(turned, (kernel.ndim - 2, kernel.ndim - 1, *sites))
    return jnp.permute_dims(kernel, (kernel.ndim - 1, kernel.ndim - 2, *sites))


def from_layer(role: str, weight: jax.Array) -> jax.Array:
    """A kernel in Flax's layout, from that of `Layer`."""
    if role == "dense":
        return weight[..., 0].T
    sites = tuple(range(2, weight.ndim))
    if role == "flipped":
        turned = jnp.permute_dims(weight, (*sites, 0, 1))
        return jnp.flip(turned, range(len(sites)))
    return jnp.permute_dims(weight, (*sites, 1, 0))


def geometry_of(
    module: Any, role: str, input_shape: Sequence[int], kernel_shape: Sequence[int]
) -> Geometry:
    """The geometry of a module on inputs of a shape.

    Raises ValueError or TypeError if that cannot be stated.
    """
    axes, size = len(kernel_shape) - 2, getattr(module, "kernel_size", ())
    if axes != (1 if isinstance(size, int) else len(size)):
        raise ValueError("its kernel is one of several in an array")
    if role == "dense":
        return Geometry(1, padding="valid", boundary="zeros")
    if module.mask is not None:
        raise ValueError("its kernel is masked")
    if getattr(module, "conv_general_dilated", None) not in (None, XLA):
        raise ValueError("it convolves by a function of its own")
    grid, kernel = tuple(input_shape[-1 - axes : -1]), tuple(kernel_shape[:axes])
    stride, dilation = (
        _spread(x, axes) for x in (module.strides, module.kernel_dilation)
    )
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel))
    groups = getattr(module, "feature_group_count", 1)
    if role == "conv":
        padding = _padding(module.padding, grid, stride, reach)
        return Geometry(grid, stride, dilation, groups, **padding)
    if _dilates_input(module):
        if groups != 1 or any(s != 1 for s in stride):
            raise ValueError("it dilates its input, and has strides or groups")
        stride = _spread(module.input_dilation, axes)
    padding = _transposed(module.padding, stride, reach)
    return Geometry(grid, stride, dilation, **padding)


def _dilates_input(module: Any) -> bool:
    stated = getattr(module, "input_dilation", None)
    return any(d != 1 for d in _spread(stated, 1))


def _padding(
    stated: Any, grid: Sequence[int], stride: Sequence[int], reach: Sequence[int]
) -> dict[str, Any]:
    """Padding and boundary of a convolution."""
    if stated in ("CIRCULAR", "REFLECT"):
        pads = tuple(((r - 1) // 2, r // 2) for r in reach)
        return {"padding": pads, "boundary": stated.lower()}
    if stated == "CAUSAL":  # on one axis
        pads = tuple((r - 1, 0) for r in reach)
    elif not isinstance(stated, str):
        pads = _pairs(stated, len(reach))
    elif stated.upper() in ("SAME", "VALID"):
        pads = stated.lower()
    else:  # "SAME_LOWER"
        pads = tuple(jax.lax.padtype_to_pads(grid, reach, stride, stated))
    return {"padding": pads, "boundary": "zeros"}


def _transposed(
    stated: Any, stride: tuple[int, ...], reach: tuple[int, ...]
) -> dict[str, Any]:
    """Padding and boundary of a transposed layer, which XLA computes as a correlation.

    XLA pads the input, with its sites a stride apart; `reach - 1` on both sides give
    the whole output, of which a smaller padding cuts off the difference.
    """
    if stated == "CIRCULAR":  # a rotation of the output does not matter
        return {"padding": "same", "boundary": "circular", "transposed": True}
    if isinstance(stated, str):
        pads = [_transposed_pads(stated, s, r) for s, r in zip(stride, reach)]
    else:
        pads = _pairs(stated, len(reach))
    cut = [(r - 1 - a, r - 1 - b) for (a, b), r in zip(pads, reach)]
    if any(before < 0 for before, _ in cut):
        raise ValueError(f"`padding` {stated} goes before the whole output")
    return {
        "padding": tuple((before, max(after, 0)) for before, after in cut),
        "output_padding": tuple(max(-after, 0) for _, after in cut),
        "boundary": "zeros",
        "transposed": True,
    }


def _transposed_pads(stated: str, stride: int, reach: int) -> tuple[int, int]:
    """As in `jax.lax.conv_transpose`."""
    total = reach + stride - 2
    if stated == "VALID":
        total += max(reach - stride, 0)
        before = reach - 1
    elif stated == "SAME":
        before = reach - 1 if stride > reach - 1 else -(-total // 2)
    else:
        raise ValueError(f"`padding` is {stated}")
    return before, total - before


def _pairs(stated: Any, axes: int) -> tuple[tuple[int, int], ...]:
    """A pair per axis, from what Flax takes for it."""
    each = (stated,) * axes if isinstance(stated, int) else tuple(stated)
    return tuple((p, p) if isinstance(p, int) else (p[0], p[1]) for p in each)


def _spread(value: Any, axes: int) -> tuple[int, ...]:
    value = 1 if value is None else value
    return (value,) * axes if isinstance(value, int) else tuple(value)
