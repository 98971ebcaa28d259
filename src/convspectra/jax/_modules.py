"""What Flax's modules say of their kernels, and Flax's layouts."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._layer.geometry import Geometry

DENSE = ("Dense", "Linear")
KINDS = ("Conv", "ConvTranspose", *DENSE)  # of nnx and linen


def role_of(module: Any) -> str:
    """How a module's kernel lies in memory; empty if it is no module of Flax's own."""
    kind = type(module)
    if kind.__name__ not in KINDS or not kind.__module__.startswith("flax."):
        return ""
    if kind.__name__ in DENSE:
        return "dense"
    if kind.__name__ == "Conv":
        return "conv"
    return "transpose" if module.transpose_kernel else "flipped"


def to_layer(role: str, kernel: jax.Array) -> jax.Array:
    """A kernel in the layout of `Layer`, from (*kernel, in, out).

    A transposed layer of Flax correlates with its kernel, unless `transpose_kernel`
    says that it is the one of the convolution to be transposed, (*kernel, out, in).
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
    if role == "dense":
        return Geometry(1, padding="valid", boundary="zeros")
    axes = len(kernel_shape) - 2
    size = module.kernel_size
    if axes != (1 if isinstance(size, int) else len(size)):
        raise ValueError("its kernel is one of several in an array")
    if module.mask is not None:
        raise ValueError("its kernel is masked")
    grid, kernel = tuple(input_shape[-1 - axes : -1]), tuple(kernel_shape[:axes])
    stride, dilation = (
        _spread(x, axes) for x in (module.strides, module.kernel_dilation)
    )
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel))
    if role != "conv":
        return Geometry(
            grid, stride, dilation, **_transposed(module.padding, stride, reach)
        )
    if any(d != 1 for d in _spread(module.input_dilation, axes)):
        raise ValueError("it dilates its input")
    groups = module.feature_group_count
    return Geometry(grid, stride, dilation, groups, **_padding(module.padding, reach))


def _padding(stated: Any, reach: tuple[int, ...]) -> dict[str, Any]:
    """Padding and boundary of a convolution."""
    if stated in ("SAME", "VALID"):
        return {"padding": stated.lower(), "boundary": "zeros"}
    if stated in ("CIRCULAR", "REFLECT"):
        pads = tuple(((r - 1) // 2, r // 2) for r in reach)
        return {"padding": pads, "boundary": stated.lower()}
    if stated == "CAUSAL":  # on one axis
        return {"padding": tuple((r - 1, 0) for r in reach), "boundary": "zeros"}
    return {"padding": _pairs(stated, len(reach)), "boundary": "zeros"}


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
