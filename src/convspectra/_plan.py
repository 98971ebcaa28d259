"""What will a job on a layer cost, before it is run?"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ._arrays.array import Array, dtype_name
from ._arrays.threads import cores
from ._base import cached
from ._bound.clip import circular_surrogate, clip
from ._layer.geometry import Geometry
from ._layer.stencil import Stencil, embedding, stencil_of
from ._maps.matrix import matrix_shape
from ._maps.symbol import SEPARABLE, WORKING_SET, frequencies_of, pattern_of
from ._maps.tiling import tiling, working_set
from ._norm.operator_norm import operator_norm
from ._route import (
    NormRoute,
    SymbolSize,
    affordable_band,
    norm_route,
    symbol_size,
    values_route,
)
from ._spectrum import singular_values

# Kernels that are measured: 3x3, with so many channels, each on two grids. The
# difference between the grids tells what one matrix costs.
CALIBRATION = {1: (16, 96), 2: (8, 64), 16: (8, 40), 64: (16, 32), 192: (8, 14)}
# Taps of these kernels, and nodes of their screening.
TAPS, NODES = 9, 13
# A search makes the matrices of about twice as many boxes as it begins with, in about
# five rounds, each of which takes as long to start as a whole norm does.
BOX_FACTOR, ROUNDS = 2, 5
# Seconds per entry of a matrix: to make it at a node, and for all that is done with the
# only matrix of a 1x1 kernel. Measured.
NODE_SECONDS, ENTRY_SECONDS = 1.2e-8, 6e-8
# A compression takes about as long as so many norms of its torus.
COMPRESSION = 2.5
# Applications of a layer in Lanczos: of its matrix, and without one, where two in
# single precision count as one. And the seconds that each takes at least.
MATRIX_APPLICATIONS, APPLICATIONS, APPLICATION_SECONDS = 100, 20, 1.5e-3
# Seconds that a column of tiles takes at least, and the speed of a banded factorization
# on one core over that of a product: tiles are rounded up, and each column is solved.
COLUMN_SECONDS, BAND_SPEED = 1e-4, 0.5
# The tolerance of the norm that is priced: the default.
RTOL = 1e-4
# Bytes that are always needed: threads, their workspaces, small arrays.
BASE_MEMORY = 2**25
JOBS: dict[str, Callable[[Array, Geometry], object]] = {
    "values": singular_values,
    "norm": operator_norm,
    # At about half of the norm.
    "clip": lambda weight, geometry: clip(weight, geometry, 3 * len(weight) ** 0.5),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, and peak memory in bytes in addition to the weight."""

    seconds: float
    memory: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The predicted cost of each job on a layer; see `plan`.

    Attributes
    ----------
    values : Cost or None
        Of `singular_values`; None if it would raise, because there is no grid or the
        matrix is too large.
    norm, clip : Cost
        Of `operator_norm` and of `clip`.
    """

    values: Cost | None
    norm: Cost
    clip: Cost


def plan(weight: Array, geometry: Geometry) -> Plan:
    """Predict the time and memory of the jobs on a layer without running them.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        Only its shape and precision matter.
    geometry : Geometry

    Returns
    -------
    Plan
        For arrays on the CPU of this machine when it is otherwise idle; usually within
        a factor of two. For depthwise layers the prediction is several times too high.
        On large grids the cost of a norm depends on the kernel, and the prediction is
        for a kernel without structure. The first call takes two or three seconds to
        measure the speed of the machine.
    """
    stencil = stencil_of(weight, geometry)
    double = dtype_name(weight) in ("float64", "complex128")
    torus = circular_surrogate(stencil, geometry)
    values, route = None, None
    if stencil.axes is not None:
        route = values_route(stencil, on_host=True)
    if route == "matrix":
        values = _of_matrix(stencil, products=20)
    elif route in ("one matrix", "compiled"):
        values = _on_torus("values", torus, double=double)
    return Plan(values, _norm(stencil), _on_torus("clip", torus, double=double))


def _norm(stencil: Stencil) -> Cost:
    route = norm_route(stencil, real=True, on_host=True, rtol=RTOL)
    if route.algorithm == "matrix":
        return _plus(
            _of_matrix(stencil, products=1), _lanczos(stencil, MATRIX_APPLICATIONS)
        )
    if route.algorithm == "banded":
        return _plus(_of_band(stencil), _lanczos(stencil, APPLICATIONS))
    torus = embedding(stencil)[0]
    if route.algorithm == "one matrix":
        cost = _of_one_matrix(torus)
    else:
        cost = _on_torus("norm", torus, double=True, route=route)
    if route.method == "compression" and not symbol_size(torus, real=True).is_searched:
        cost = Cost(COMPRESSION * cost.seconds, cost.memory)
    has_borders = route.method in ("compression", "embedding")
    return _plus(cost, _lanczos(stencil, APPLICATIONS)) if has_borders else cost


def _on_torus(
    job: str, torus: Stencil, *, double: bool, route: NormRoute | None = None
) -> Cost:
    """Of a job on the matrices of a torus."""
    size = symbol_size(torus, real=True)
    side, other = size.side, size.longer_side
    count = _frequencies_made(torus, size, is_norm=route is not None)
    matrices = count * torus.groups
    single = not double and route is None
    fixed, each = _measured_at(job, side)
    if route is None:
        each *= other / side * (1 if single else 2)
    # Transforming more taps than the measured kernels have costs extra.
    taps = torus.taps if torus.taps < SEPARABLE else 2 * torus.taps / torus.kernel[0]
    each += 4 * side * other * max(taps - TAPS, 0) / _product_rate()
    if route is not None:
        fixed *= ROUNDS if size.is_searched else 1
        if route.is_screened:
            fixed += max(size.nodes - NODES, 0) * _of_a_node(side, other)
    number = 4 if single else 8
    kernel = torus.groups * torus.out_channels * torus.in_channels * torus.taps
    memory = 10 * number * kernel + BASE_MEMORY
    memory += min(3 * matrices * side * other * 2 * number, WORKING_SET)
    if job == "values" and torus.axes is not None:
        memory += 2 * number * math.prod(torus.rows) * torus.groups * side
    return Cost(fixed + matrices * each, memory)


def _of_a_node(side: int, other: int) -> float:
    """Seconds for a Gram matrix at a node of screening."""
    return 4 * side * side * other / _product_rate() + NODE_SECONDS * side * other


def _of_one_matrix(torus: Stencil) -> Cost:
    """Of the norm of a 1x1 kernel: one product, and several passes over its entries."""
    side, other = sorted((torus.out_channels, torus.in_channels * torus.taps))
    products = 2 * side * side * other
    seconds = (
        APPLICATION_SECONDS + products / _product_rate() + ENTRY_SECONDS * side * other
    )
    return Cost(seconds, 8 * (6 * side * other + 4 * side * side) + BASE_MEMORY)


def _frequencies_made(torus: Stencil, size: SymbolSize, *, is_norm: bool) -> int:
    """How many frequencies have their matrices made."""
    if torus.axes is None or (is_norm and size.is_searched):
        return int(min(size.frequencies, BOX_FACTOR * size.boxes))
    if is_norm:
        return int(size.frequencies)
    return len(frequencies_of(pattern_of(torus), torus.rows, real=True))


def _of_matrix(stencil: Stencil, *, products: int) -> Cost:
    """Of the layer's own matrix, with work worth so many Gram matrices."""
    side, other = sorted(matrix_shape(stencil))
    work = 2 * side * side * other * stencil.groups * products
    memory = 8 * stencil.groups * (2 * side * other + 3 * side * side)
    return Cost(work / _product_rate(), memory + BASE_MEMORY)


def _of_band(stencil: Stencil) -> Cost:
    """Of a factorization within the band of the Gram matrix, by all cores."""
    gram = affordable_band(stencil)
    assert gram is not None
    columns = sum(tiling(piece).count for piece in gram.pieces) * stencil.groups
    rate = BAND_SPEED * _product_rate() * min(cores(), 4)
    numbers = max((working_set(gram, piece) for piece in gram.pieces), default=0)
    seconds = gram.products / rate + columns * COLUMN_SECONDS
    return Cost(seconds, 8 * numbers + BASE_MEMORY)


def _lanczos(stencil: Stencil, count: int) -> Cost:
    image = stencil.groups * stencil.in_channels * math.prod(stencil.columns)
    products = 4 * image * stencil.out_channels * stencil.taps
    return Cost(
        count * (APPLICATION_SECONDS + products / _product_rate()), 8 * 40 * image
    )


def _plus(a: Cost, b: Cost) -> Cost:
    return Cost(a.seconds + b.seconds, max(a.memory, b.memory))


def _measured_at(job: str, side: int) -> tuple[float, float]:
    """Seconds that a job takes to start, and per matrix: measured, or interpolated."""
    sides = list(CALIBRATION)
    beyond = max(side / sides[-1], 1.0) ** 3
    fixed, each = (
        math.exp(np.interp(math.log(side), np.log(sides), np.log(seconds))) * beyond
        for seconds in zip(*(_measured()[job, known] for known in sides))
    )
    return fixed, each


@cached(maxsize=None)
def _measured() -> dict[tuple[str, int], tuple[float, float]]:
    """Seconds to start and per matrix, for each job and number of channels."""
    found = {}
    for channels, grids in CALIBRATION.items():
        weight = _random((channels, channels, 3, 3))
        for job, run in JOBS.items():
            taken = [_seconds(run, weight, Geometry(grid=(n, n))) for n in grids]
            # One of each conjugate pair, and the 4 that are real.
            few, many = (n * n / 2 + 2 for n in grids)
            each = max((taken[1] - taken[0]) / (many - few), 1e-9)
            found[job, channels] = max(taken[0] - few * each, 1e-5), each
    return found


@cached(maxsize=None)
def _product_rate() -> float:
    """Operations per second in products of real matrices of double precision."""
    a = _random((256, 256)).astype(np.float64)
    return 2 * 256**3 / _seconds(np.matmul, a, a)


def _random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _seconds(run: Callable[..., object], *args: object) -> float:
    """The time of a second run: the first compiles and fills caches."""
    run(*args)
    start = time.perf_counter()
    run(*args)
    return time.perf_counter() - start
