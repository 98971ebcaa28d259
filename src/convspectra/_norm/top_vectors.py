"""Inputs that attain the norm: plane waves on a torus, otherwise by Lanczos."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .._arrays.array import (
    Array,
    asarray_like,
    astype,
    conj,
    is_complex,
    is_host,
    namespace,
    normalized,
    to_double,
    to_numpy,
    widen,
)
from .._arrays.host import detach_to_numpy, scalar_like, with_one_thread
from .._base import fraction
from .._layer.geometry import Geometry
from .._layer.stencil import Stencil, embedding, stencil_of
from .._maps.matrix_free import Operator, operator_of
from .._maps.symbol import Taps, fold_back, phase_factors, taps_of, to_kernel
from .._route.norm import method_of
from .._route.torus import torus_route
from .lanczos import Pair, top_vector, unit_pair
from .peak import Peak
from .rounding import of_layer
from .torus_norm import norm_on_torus

# Lanczos runs in at most so many groups. Where their bounds are not known, in those in
# which POWER_STEPS steps of power iteration reach the largest gains.
GROUPS, POWER_STEPS = 4, 8
# Noise that is added to a start of Lanczos, relative, so that no direction is missing.
NOISE = 1e-2
# Steps of Lanczos that gain nothing before it stops.
PATIENCE = 3
# The part of the tolerance by which a lower bound may be below the upper one: a
# step of Lanczos takes as long as much of the upper bound does.
ENOUGH = 0.98
# Relative differences of gains that single precision still tells apart.
SINGLE_RTOL = 1e-6


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

    def top(double: Array) -> tuple[Pair, int]:
        if method_of(stencil) in ("matrix", "banded"):
            return pair_from_noise(double, stencil, rtol=rtol / 10)
        torus, factor = embedding(stencil)
        taps, real = taps_of(double, torus), not is_complex(double)
        host = is_host(double)
        route = torus_route("frequencies", torus, real=real, on_host=host)
        peak = norm_on_torus(taps, torus.rows, route, real=real, rtol=rtol)
        if not stencil.is_torus:
            goal = factor * peak.upper * (1 - rtol)
            return pair_near_peak(double, stencil, taps, peak, rtol=rtol, goal=goal)
        operator = one_group(double, stencil, peak.group)
        wave = asarray_like(double, peak_wave(double, stencil, taps, peak))
        return unit_pair(operator.apply, wave), peak.group

    pair, group = with_one_thread(top, double)
    if stencil.transposed:  # the layer is the transpose, not the adjoint
        adjoint = one_group(double, stencil, group).apply_adjoint
        pair = with_one_thread(partial(unit_pair, adjoint), pair.y)
        pair = Pair(pair.gain, conj(pair.x), conj(pair.y))
    return TopVectors(
        input=_as_image(pair.x, weight, stencil, group),
        output=_as_image(pair.y * scale, weight, stencil, group),
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
    return some_groups(weight, stencil, slice(group, group + 1))


def some_groups(weight: Array, stencil: Stencil, groups: slice) -> Operator:
    """These groups of the layer, as a layer of their own."""
    out = stencil.out_channels
    own = weight[groups.start * out : groups.stop * out, ...]
    return operator_of(own, replace(stencil, groups=groups.stop - groups.start))


def peak_wave(weight: Array, stencil: Stencil, taps: Taps, peak: Peak) -> np.ndarray:
    """The plane wave of the peak's frequency and vector: (1, in, *columns)."""
    site = np.indices(stencil.columns).reshape(len(stencil.columns), -1).T
    row, residue = np.divmod(site + stencil.pad_before, stencil.stride)
    same = (residue[:, None, :] == taps.pattern.residues).all(axis=-1)
    # (sites, polyphase components)
    phase = np.exp(-2j * np.pi * (row @ peak.cycles % 1.0))
    channels = to_numpy(peak.right).reshape(len(taps.pattern.residues), -1)
    wave = (same * phase[:, None]) @ channels  # (sites, in)
    wave = wave.T.reshape(1, -1, *stencil.columns)
    if is_complex(weight):
        return wave
    # The layer is real, so that both parts have the same gain: take the longer one.
    return max((wave.real, wave.imag), key=np.linalg.norm)


def top_pair_from(
    weight: Array,
    stencil: Stencil,
    groups: slice,
    start: np.ndarray | None,
    *,
    rtol: float,
    goal: float,
    patience: int = PATIENCE,
) -> Pair:
    """The top singular pair of these groups by Lanczos from `start`, or from noise.

    In single precision, and if that is not close enough, from there on in double. What
    a vector is off by costs the square of that: the last gain is measured in double.
    For `patience` see `top_vector`.
    """
    shape = (groups.stop - groups.start, stencil.in_channels, *stencil.columns)
    noise = np.random.default_rng(0).random(shape, np.float32) - np.float32(0.5)
    x: np.ndarray = noise / np.linalg.norm(noise)
    if start is not None:  # a little noise, so that nothing is out of reach
        x = NOISE * x + start / (np.linalg.norm(start) or 1.0)
    single = astype(weight, "complex64" if is_complex(weight) else "float32")
    operator = some_groups(single, stencil, groups)
    x = asarray_like(operator.taps, x)
    x = _top_vector(operator, x, max(rtol, SINGLE_RTOL), goal, patience)
    operator = some_groups(weight, stencil, groups)
    pair = unit_pair(operator.apply, to_double(x))
    if rtol < SINGLE_RTOL and pair.gain < goal:
        x = _top_vector(operator, pair.x, rtol, goal, patience)
        pair = unit_pair(operator.apply, x)
    return pair


def _top_vector(
    operator: Operator, start: Array, rtol: float, goal: float, patience: int
) -> Array:
    def gram(x: Array) -> Array:
        return operator.apply_adjoint(operator.apply(x))

    return top_vector(gram, start, rtol=rtol, goal=goal, patience=patience)


def pair_near_peak(
    weight: Array,
    stencil: Stencil,
    taps: Taps,
    peak: Peak,
    *,
    rtol: float,
    goal: float,
    others: Callable[[float], Sequence[int]] | None = None,
) -> tuple[Pair, int]:
    """The top singular pair of the peak's group, or of another one; and its group.

    In the group of the peak, which comes first, Lanczos starts from the peak's wave,
    damped towards the edge. It stops at a gain of `goal`. With less than that
    `others(gain)` are tried: by default the most promising groups.
    """
    start = peak_wave(weight, stencil, taps, peak)
    for axis, n in enumerate(stencil.columns, start=2):
        window = np.sin(np.pi * np.arange(1, n + 1) / (n + 1))
        start = start * window.reshape((-1,) + (1,) * (start.ndim - axis - 1))

    def top_of(group: int, start: np.ndarray | None) -> tuple[Pair, int]:
        own = slice(group, group + 1)
        pair = top_pair_from(weight, stencil, own, start, rtol=rtol, goal=goal)
        return pair, group

    best = top_of(peak.group, start)
    if best[0].gain >= goal:
        return best
    tried = others(best[0].gain) if others else promising_groups(weight, stencil)
    for group in [group for group in tried if group != peak.group][: GROUPS - 1]:
        if best[0].gain < goal:
            best = max(best, top_of(group, None), key=lambda found: found[0].gain)
    return best


def pair_from_noise(
    weight: Array, stencil: Stencil, *, rtol: float
) -> tuple[Pair, int]:
    """As `pair_near_peak`, on small grids, where Lanczos needs no start near the top.

    It stops where it gains less than `rtol`.
    """
    pairs = []
    for group in promising_groups(weight, stencil):
        own = slice(group, group + 1)
        pair = top_pair_from(weight, stencil, own, None, rtol=rtol, goal=math.inf)
        pairs.append((pair, group))
    return max(pairs, key=lambda pair_and_group: pair_and_group[0].gain)


@dataclass(frozen=True, slots=True, eq=False)
class Attained:
    """A certified lower bound, and the pair with that gain."""

    lower: float
    pair: Pair


def attained_near_peak(
    weight: Array,
    stencil: Stencil,
    taps: Taps,
    peak: Peak,
    *,
    rtol: float,
    upper: float,
    others: Callable[[float], Sequence[int]] | None = None,
) -> Attained:
    """A certified lower bound, within `rtol` of an upper bound if it can be.

    For `others` see `pair_near_peak`.
    """
    near = max(rtol, 1e-6)
    goal = upper / (1 + ENOUGH * near)
    pair, _ = pair_near_peak(
        weight, stencil, taps, peak, rtol=near / 10, goal=goal, others=others
    )
    return Attained(attained_by(pair, weight, stencil), pair)


def attained_by(pair: Pair, weight: Array, stencil: Stencil) -> float:
    """A certified lower bound, from a pair of this layer or of one of its groups."""
    numbers = math.prod(pair.x.shape) + math.prod(pair.y.shape)
    return of_layer(weight, stencil, numbers).lower(pair.gain)


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
