"""Inputs that are stretched as much as can be: waves on a torus, or by Lanczos."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._array import (
    Array,
    conj,
    is_complex,
    like,
    namespace,
    normalized,
    numbers,
    one_thread,
    scalar_like,
    to_numpy,
    widen,
)
from ._certify import Peak, norm_on_torus
from ._geometry import Geometry
from ._iterate import Operator, Pair, length, operator_of, top_pair
from ._stencil import embedding, stencil_of
from ._symbol import Taps, fold_back, phase_factors, taps_of, to_kernel


@dataclass(frozen=True, slots=True, eq=False)
class TopVectors:
    """An input that attains the norm, and what becomes of it; see `top_vectors`."""

    input: Array
    output: Array
    gain: Any


def top_vectors(weight: Array, geometry: Geometry, *, rtol: float = 1e-6) -> TopVectors:
    """An input image that the layer stretches as much as it can.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
    rtol : float
        How close the gain is to be to the norm: certified for a circular layer that is
        block diagonal, an estimate of the Lanczos iteration for any other.

    Returns
    -------
    TopVectors
        input : array, shape (in, *grid), of length 1, real for real weights;
        output : array, shape (out, *out_grid), the layer's answer, of length `gain`;
        gain : scalar, attained, so never above the norm but for rounding.
    """
    stencil = stencil_of(weight, geometry)
    double, scale = normalized(numbers(weight))
    operator = operator_of(double, stencil)
    with one_thread(double):
        pair = _top_pair(operator, double, rtol)
    x, y = pair.x, pair.y * scale
    if stencil.transposed:  # the layer is the transpose, not the adjoint
        x, y = conj(pair.y) / (pair.gain or 1.0), conj(pair.x) * (pair.gain * scale)
    return TopVectors(
        input=_as_image(x, weight),
        output=_as_image(y, weight),
        gain=scalar_like(weight, pair.gain * scale),
    )


def _top_pair(operator: Operator, weight: Array, rtol: float) -> Pair:
    torus, _ = embedding(operator.stencil)
    taps, real = taps_of(weight, torus), not is_complex(weight)
    peak = norm_on_torus(taps, torus.rows, real=real, rtol=rtol)
    if operator.stencil.is_torus:
        return stretched(operator, like(weight, peak_wave(operator, taps, peak)))
    return attained(operator, likely_start(operator, taps, peak), rtol=rtol)


def _as_image(x: Array, weight: Array) -> Array:
    """Groups and channels on one axis, in the library and precision of `weight`."""
    flat = namespace(x).reshape(x, (-1, *x.shape[2:]))
    return like(widen(weight), to_numpy(flat))


def peak_wave(operator: Operator, taps: Taps, peak: Peak) -> np.ndarray:
    """The plane wave with the peak's frequency, (groups, into, *columns)."""
    stencil = operator.stencil
    site = np.indices(stencil.columns).reshape(len(stencil.columns), -1).T
    row, residue = np.divmod(site + stencil.before, stencil.stride)
    same = (residue[:, None, :] == taps.residues).all(axis=-1)  # (sites, phases)
    phase = np.exp(-2j * np.pi * (row @ peak.turns % 1.0))
    channels = to_numpy(peak.right).reshape(len(taps.residues), -1)
    wave = (same * phase[:, None]) @ channels  # (sites, into)
    full = np.zeros((stencil.groups, *wave.shape[::-1]), dtype=wave.dtype)
    full[peak.group] = wave.T
    full = full.reshape(*full.shape[:2], *stencil.columns)
    if is_complex(operator.taps):
        return full
    # Both parts are stretched alike, since the layer is real: take the longer one.
    parts = (full.real, full.imag)
    return max(parts, key=np.linalg.norm)


def stretched(operator: Operator, x: Array) -> Pair:
    """What the layer makes of the image `x`, scaled to length 1."""
    x = x / (length(x) or 1.0)
    y = operator.apply(x)
    return Pair(length(y), x, y)


def attained(
    operator: Operator, start: np.ndarray | None = None, *, rtol: float
) -> Pair:
    """The top singular pair of the layer as it is, by Lanczos from `start`."""
    stencil = operator.stencil
    shape = (stencil.groups, stencil.into, *stencil.columns)
    noise = np.random.default_rng(0).standard_normal(shape)
    if start is None:
        start = noise
    else:  # a little of everything, so that nothing is out of reach
        noise = 1e-2 / math.sqrt(noise.size) * noise
        start = noise + start / (np.linalg.norm(start) or 1.0)
    start = like(operator.taps, start)
    return top_pair(operator.apply, operator.apply_adjoint, start, rtol=rtol)


def likely_start(operator: Operator, taps: Taps, peak: Peak) -> np.ndarray:
    """The wave of the peak, fading out towards the boundary."""
    wave = peak_wave(operator, taps, peak)
    for axis, n in enumerate(operator.stencil.columns, start=2):
        bump = np.sin(np.pi * np.arange(1, n + 1) / (n + 1))
        wave = wave * bump.reshape((-1,) + (1,) * (wave.ndim - axis - 1))
    return wave


def peak_derivative(taps: Taps, peak: Peak, weight: Array) -> Array:
    """The derivative of the norm at a peak: left right^H, folded back to the taps."""
    xp = namespace(taps.weight)
    outer = peak.left[:, None] * xp.conj(peak.right)[None, :]
    group = np.arange(taps.block[0]).reshape(1, -1, 1, 1) == peak.group
    phase = phase_factors(taps.shifts, peak.turns[None, :], np.ones(len(peak.turns)))
    flat = fold_back(
        outer[None, None, :, :] * like(outer, group), taps, like(outer, phase)
    )
    return to_kernel(flat, taps, weight)


def pair_derivative(operator: Operator, pair: Pair, weight: Array) -> Array:
    """The derivative of the gain of a top singular pair, shaped like `weight`."""
    xp = namespace(pair.x)
    taps = operator.derivative(pair.x, pair.y / (pair.gain or 1.0))
    kernel = xp.reshape(xp.permute_dims(taps, (1, 2, 3, 0)), weight.shape)
    return xp.astype(kernel, weight.dtype)
