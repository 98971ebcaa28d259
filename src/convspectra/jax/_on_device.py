"""Clipping and an estimate of the norm that stay on the device, for circular layers."""

import jax
import jax.numpy as jnp

from .._arrays.array import adjoint, widen
from .._arrays.sharding import replicated, split_like
from .._base import positive
from .._bound.blocks import TorusBlocks, torus_blocks
from .._layer.geometry import Geometry
from .._layer.stencil import circular_surrogate, stencil_of
from .._maps.symbol import fold_back, symbol


def clip(weight: jax.Array, geometry: Geometry, max_norm: float) -> jax.Array:
    """Clip the singular values to `max_norm`, then crop to the kernel, on the device.

    One round of `convspectra.clip`, in the precision of the weight (single if it is
    half): batched products and Hermitian eigenproblems, without a callback. Like that
    one, it usually leaves the norm somewhat above the bound.

    Parameters
    ----------
    weight : jax.Array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
        If the boundary is not circular, its `torus()` is clipped, as in the paper.
    max_norm : float

    Returns
    -------
    jax.Array
        Of the shape and dtype of `weight`; a constant to automatic differentiation.
    """
    most = positive("max_norm", max_norm)
    torus = circular_surrogate(stencil_of(weight, geometry), geometry)
    wide, scale = _normalized(jax.lax.stop_gradient(weight))
    blocks = torus_blocks(wide, torus)
    phases = blocks.all_phases
    removed = _soft_threshold(symbol(blocks.taps, phases), most / scale)
    weights = jnp.asarray(blocks.weights, wide.dtype)[:, None, None, None]
    change = fold_back(removed * weights, blocks.taps, phases)
    merged = jnp.asarray(1 / blocks.merged, wide.dtype)[:, None]
    clipped = blocks.kernel(blocks.start - change * merged, wide)
    clipped = split_like(weight, (clipped * scale).astype(weight.dtype))
    return jax.lax.stop_gradient(clipped)


def norm_estimate(weight: jax.Array, geometry: Geometry) -> jax.Array:
    """An estimate of a circular layer's norm, on the device.

    The largest singular value over all frequencies of the layer's grid, by Hermitian
    eigenproblems in the precision of the weight (single if it is half). It differs from
    the norm by rounding errors only, but no bound on these is certified:
    `convspectra.operator_norm` has one.

    Parameters
    ----------
    weight : jax.Array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
        With a grid, and a circular boundary: of another layer, its `torus()`.

    Returns
    -------
    jax.Array
        A scalar, with a derivative that is finite also at ties and at zero.
    """
    stencil = stencil_of(weight, geometry)
    if not stencil.is_torus or stencil.axes is None:
        raise ValueError(
            f"`geometry` must be circular and have a grid, got {geometry}. Take its "
            "`torus()`, or the certified `convspectra.operator_norm`."
        )
    wide, scale = _normalized(weight)
    blocks = torus_blocks(wide, stencil)
    fixed = torus_blocks(jax.lax.stop_gradient(wide), stencil)
    place, u, v = _top_pair(fixed)
    # The pair as constants: then the derivative is that of u^H Y v at all ties.
    phase = jnp.take(blocks.all_phases, place[0][None], axis=0)
    y = jnp.take(symbol(blocks.taps, phase)[0], place[1], axis=0)
    return jnp.real(jnp.vdot(u, y @ v)) * scale


def _normalized(weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The weight over its largest entry: squares neither overflow nor underflow."""
    wide = widen(replicated(weight))
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(wide)))
    scale = jnp.where(largest > 0, largest, 1)
    return wide / scale, scale


def _soft_threshold(y: jax.Array, most: jax.Array) -> jax.Array:
    """U max(S - most, 0) V^H of each matrix."""
    if y.shape[-1] > y.shape[-2]:
        return adjoint(_soft_threshold(adjoint(y), most))
    squares, v = jnp.linalg.eigh(adjoint(y) @ y)
    s = jnp.sqrt(jnp.maximum(squares, jnp.finfo(squares.dtype).tiny))
    kept = jnp.maximum(1 - most / s, 0)
    return (y @ v * kept[..., None, :]) @ adjoint(v)


def _top_pair(
    blocks: TorusBlocks,
) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array]:
    """The frequency and group of the largest value, and its singular vectors."""
    y = symbol(blocks.taps, blocks.all_phases)
    wide = y.shape[-1] > y.shape[-2]
    turned = adjoint(y) if wide else y
    squares, vectors = jnp.linalg.eigh(adjoint(turned) @ turned)
    place = jnp.unravel_index(jnp.argmax(squares[..., -1]), squares.shape[:2])
    v = vectors[..., -1][place]
    u = turned[place] @ v
    length = jnp.linalg.norm(u)
    u = u / jnp.where(length > 0, length, 1)
    return place, *((v, u) if wide else (u, v))
