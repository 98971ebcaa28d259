"""Inputs that attain the norm: plane waves on a torus, otherwise by Lanczos."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._arrays.array import (
    Array,
    asarray_like,
    conj,
    is_complex,
    is_host,
    namespace,
    normalized,
    to_numpy,
    widen,
)
from .._arrays.host import detach_to_numpy, scalar_like, with_one_thread
from .._base import fraction
from .._layer.geometry import Geometry
from .._layer.stencil import Stencil, embedding, stencil_of
from .._maps.matrix_free import Operator, operator_of
from .._maps.symbol import Taps, fold_back, phase_factors, taps_of, to_kernel
from .._route import torus_route
from .lanczos import Pair, gain_of, top_pair
from .peak import Peak
from .search import norm_on_torus

# Lanczos runs in at most so many groups: those in which POWER_STEPS steps of power
# iteration reach the largest gains.
GROUPS, POWER_STEPS = 4, 8
# Noise that is added to a start of Lanczos, relative, so that no direction is missing.
NOISE = 1e-2


@dataclass(frozen=True, slots=True, eq=False)
class TopVectors:
    """A top singular pair of a layer: input, output and gain; see `top_vectors`."""

    input: Array
    output: Array
    gain: Any


def top_vectors(weight: Array, geometry: Geometry, *, rtol: float = 1e-6) -> TopVectors:
    """An input that attains the operator norm of the layer, and its output.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        (in, out / groups, *kernel) for a transposed layer.
    geometry : Geometry
    rtol : float
        Relative difference allowed between gain and norm: certified if the layer is
        block diagonal in the Fourier basis, otherwise estimated by the Lanczos
        iteration.

    Returns
    -------
    TopVectors
        input : array, shape (in, *grid), of norm 1, real for real weights;
        output : array, shape (out, *out_grid), the layer's output, of norm `gain`;
        gain : scalar, a lower bound on the norm up to rounding.
    """
    stencil, rtol = stencil_of(weight, geometry), fraction("rtol", rtol)
    double, scale = normalized(detach_to_numpy(weight))
    torus, factor = embedding(stencil)

    def top(double: Array) -> tuple[Pair, int]:
        taps, real = taps_of(double, torus), not is_complex(double)
        host = is_host(double)
        route = torus_route("frequencies", torus, real=real, on_host=host)
        peak = norm_on_torus(taps, torus.rows, route, real=real, rtol=rtol)
        if not stencil.is_torus:
            upper = factor * peak.upper
            return pair_near_peak(double, stencil, taps, peak, rtol=rtol, upper=upper)
        operator = one_group(double, stencil, peak.group)
        wave = asarray_like(double, peak_wave(operator, taps, peak))
        return gain_of(operator.apply, wave), peak.group

    pair, group = with_one_thread(top, double)
    x, y = pair.x, pair.y * scale
    if stencil.transposed:  # the layer is the transpose, not the adjoint
        x, y = conj(pair.y) / (pair.gain or 1.0), conj(pair.x) * (pair.gain * scale)
    return TopVectors(
        input=_as_image(x, weight, stencil, group),
        output=_as_image(y, weight, stencil, group),
        gain=scalar_like(weight, pair.gain * scale),
    )


def _as_image(x: Array, weight: Array, stencil: Stencil, group: int) -> Array:
    """An image of one group among all groups, in library and precision of `weight`."""
    part = to_numpy(x)[0]
    full = np.zeros((stencil.groups, *part.shape), dtype=part.dtype)
    full[group] = part
    return asarray_like(widen(weight), full.reshape(-1, *part.shape[1:]))


def one_group(weight: Array, stencil: Stencil, group: int) -> Operator:
    """This group of the layer, as a layer of one group."""
    own = slice(group * stencil.out_channels, (group + 1) * stencil.out_channels)
    return operator_of(weight[own, ...], replace(stencil, groups=1))


def peak_wave(operator: Operator, taps: Taps, peak: Peak) -> np.ndarray:
    """The plane wave of the peak's frequency and vector: (1, in, *columns)."""
    stencil = operator.stencil
    site = np.indices(stencil.columns).reshape(len(stencil.columns), -1).T
    row, residue = np.divmod(site + stencil.pad_before, stencil.stride)
    same = (residue[:, None, :] == taps.pattern.residues).all(axis=-1)
    # (sites, polyphase components)
    phase = np.exp(-2j * np.pi * (row @ peak.cycles % 1.0))
    channels = to_numpy(peak.right).reshape(len(taps.pattern.residues), -1)
    wave = (same * phase[:, None]) @ channels  # (sites, in)
    wave = wave.T.reshape(1, -1, *stencil.columns)
    if is_complex(operator.taps):
        return wave
    # The layer is real, so that both parts have the same gain: take the longer one.
    return max((wave.real, wave.imag), key=np.linalg.norm)


def top_pair_from(
    operator: Operator, start: np.ndarray | None, *, rtol: float, goal: float
) -> Pair:
    """The top singular pair by Lanczos from `start`, or from noise without one."""
    stencil = operator.stencil
    shape = (stencil.groups, stencil.in_channels, *stencil.columns)
    noise = np.random.default_rng(0).standard_normal(shape)
    noise = noise / np.linalg.norm(noise)
    if start is not None:
        noise = NOISE * noise + start / (np.linalg.norm(start) or 1.0)
    image = asarray_like(operator.taps, noise)

    def gram(x: Array) -> Array:
        return operator.apply_adjoint(operator.apply(x))

    return top_pair(operator.apply, gram, image, rtol=rtol, goal=goal)


def pair_near_peak(
    weight: Array,
    stencil: Stencil,
    taps: Taps,
    peak: Peak,
    *,
    rtol: float,
    upper: float,
) -> tuple[Pair, int]:
    """The top singular pair of the most promising groups, and its group.

    In the group of the peak Lanczos starts from the peak's wave, damped towards the
    edge. It stops at a gain within `rtol` of `upper`, an upper bound of the norm.
    """
    pairs, goal = [], upper * (1 - rtol)
    for group in promising_groups(weight, stencil):
        operator, start = one_group(weight, stencil, group), None
        if group == peak.group:
            start = peak_wave(operator, taps, peak)
            for axis, n in enumerate(stencil.columns, start=2):
                window = np.sin(np.pi * np.arange(1, n + 1) / (n + 1))
                start = start * window.reshape((-1,) + (1,) * (start.ndim - axis - 1))
        pair = top_pair_from(operator, start, rtol=rtol, goal=goal)
        pairs.append((pair, group))
        if pair.gain >= goal:
            break
    return max(pairs, key=lambda pair_and_group: pair_and_group[0].gain)


def promising_groups(weight: Array, stencil: Stencil) -> list[int]:
    """All groups if they are few; else those in which power iteration gains most."""
    if stencil.groups <= GROUPS:
        return list(range(stencil.groups))
    xp, operator = namespace(weight), operator_of(weight, stencil)
    shape = (stencil.groups, stencil.in_channels, *stencil.columns)
    axes = tuple(range(1, len(shape)))
    x = asarray_like(weight, np.random.default_rng(0).standard_normal(shape))
    for _ in range(POWER_STEPS):
        x = operator.apply_adjoint(operator.apply(x))
        sizes = xp.linalg.vector_norm(x, axis=axes, keepdims=True)
        x = x / xp.where(sizes > 0, sizes, xp.ones_like(sizes))
    gains = to_numpy(xp.linalg.vector_norm(operator.apply(x), axis=axes))
    return [int(group) for group in np.argsort(-gains)[:GROUPS]]


def peak_derivative(taps: Taps, peak: Peak, weight: Array) -> Array:
    """The derivative of the norm at a peak: left right^H, folded back to the kernel."""
    xp = namespace(taps.weight)
    outer = peak.left[:, None] * xp.conj(peak.right)[None, :]
    group = np.arange(taps.channel_shape[0]).reshape(1, -1, 1, 1) == peak.group
    phase = phase_factors(taps.shifts, peak.cycles[None, :], np.ones(len(peak.cycles)))
    flat = fold_back(
        outer[None, None, :, :] * asarray_like(outer, group),
        taps,
        asarray_like(outer, phase),
    )
    return to_kernel(flat, taps, weight)


def pair_derivative(operator: Operator, pair: Pair, weight: Array) -> Array:
    """The derivative of the gain of a top singular pair, shaped like `weight`."""
    xp = namespace(pair.x)
    taps = operator.derivative(pair.x, pair.y / (pair.gain or 1.0))
    kernel = xp.reshape(xp.permute_dims(taps, (1, 2, 3, 0)), weight.shape)
    return xp.astype(kernel, weight.dtype)
