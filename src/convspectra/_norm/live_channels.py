"""Channels that a layer does not read or write, as pruning leaves them, are left out.

A channel is dead if all its taps are 0. Without such rows and columns a layer has the
same norm, smaller matrices, and perhaps a route with closer bounds.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .._arrays.array import Array, is_host
from .._layer.stencil import Stencil
from .bounds import Bounds


def by_live_channels(
    bound: Callable[[Array, Stencil], Bounds], weight: Array, stencil: Stencil
) -> Bounds:
    """The norm of a layer by `bound`, without the channels that are dead in all groups.

    Of NumPy's arrays only: to look at others would take a transfer.
    """
    live = _live_channels(weight, stencil) if is_host(weight) else None
    if live is None:
        return bound(weight, stencil)
    outputs, inputs = live
    groups, kernel = stencil.groups, weight.shape[2:]
    kernels = weight.reshape(groups, -1, stencil.in_channels, *kernel)
    kept = np.ascontiguousarray(kernels[:, outputs][:, :, inputs])
    smaller = replace(stencil, out_channels=len(outputs), in_channels=len(inputs))
    found = bound(kept.reshape(-1, len(inputs), *kernel), smaller)

    def derivative() -> Array:
        whole = np.zeros_like(kernels)
        places = np.ix_(np.arange(groups), outputs, inputs)
        whole[places] = found.derivative().reshape(kept.shape)
        return whole.reshape(weight.shape)

    return replace(found, derivative=derivative)


def _live_channels(
    weight: np.ndarray, stencil: Stencil
) -> tuple[np.ndarray, np.ndarray] | None:
    """The output and the input channels to keep, or None if these are all or none."""
    shape = (stencil.groups, stencil.out_channels, stencil.in_channels, -1)
    kernels = weight.reshape(shape)
    # Of most layers one output and one input channel show that all are live.
    if kernels[:, :, 0].any(axis=(0, 2)).all() and kernels[:, 0].any(axis=(0, 2)).all():
        return None
    outputs, inputs = (
        np.flatnonzero(kernels.any(axis=axes)) for axes in ((0, 2, 3), (0, 1, 3))
    )
    if not len(outputs) or (len(outputs), len(inputs)) == kernels.shape[1:3]:
        return None
    return outputs, inputs
