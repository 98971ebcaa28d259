"""What will a job on a layer cost, before it is run?"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ._arrays.array import Array, dtype_name, is_complex
from ._base import cached, positive
from ._bound.clip import clip
from ._layer.geometry import Geometry
from ._layer.stencil import Stencil, circular_surrogate, stencil_of
from ._maps.symbol import (
    WORKING_SET,
    count_frequencies,
    factors_needed,
    pattern_of,
    varying_sizes,
)
from ._maps.transform import transform_count
from ._price import (
    BASE_MEMORY,
    TAPS,
    Cost,
    of_matrix,
    product_rate,
    symbol_size,
    taps_each,
    this_machine,
)
from ._route.cost import typical_cost
from ._route.norm import norm_route
from ._route.values import values_route
from ._spectrum import singular_values

# Kernels that are measured: 3x3, with so many channels, each on two grids. The
# difference between the grids tells what one matrix costs.
CALIBRATION = {1: (16, 96), 2: (8, 64), 16: (8, 40), 64: (16, 32), 192: (8, 14)}
# Seconds and bytes per point of a grid, while its frequencies are listed; seconds per
# phase factor; and for each point and transform of a whole grid (in the clip there and
# back), and the bytes that it takes: measured.
LISTING_SECONDS, LISTING_BYTES, PHASE_SECONDS = 3e-8, 65, 2e-8
TRANSFORM_SECONDS, TRANSFORM_BYTES = {"values": 5e-8, "clip": 1.2e-7}, 64
# The tolerance of the norm that is priced: the default.
RTOL = 1e-4
Job: TypeAlias = Literal["values", "clip"]
JOBS: dict[Job, Callable[[Array, Geometry], object]] = {
    "values": singular_values,
    # At about half of the norm.
    "clip": lambda weight, geometry: clip(weight, geometry, 3 * len(weight) ** 0.5),
}


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


def plan(weight: Array, geometry: Geometry, *, budget: float | None = None) -> Plan:
    """Predict the time and memory of the jobs on a layer without running them.

    Parameters
    ----------
    weight : array, shape (out, in / groups, *kernel)
        Only its shape and precision matter.
    geometry : Geometry
    budget : float, optional
        That of the norm, in seconds: see `operator_norm`.

    Returns
    -------
    Plan
        For arrays on the CPU of this machine when it is otherwise idle; usually within
        a factor of two. For depthwise layers the prediction is up to three times too
        high, and up to ten times on grids as small as 7x7 and on circular ones.
        On large grids the cost of a norm depends on the kernel, and the prediction is
        for a kernel without structure. The first call takes two or three seconds to
        measure the speed of the machine.
    """
    stencil = stencil_of(weight, geometry)
    if budget is not None:
        budget = positive("budget", budget)
    real = not is_complex(weight)
    by = norm_route(stencil, real=real, on_host=True, rtol=RTOL, budget=budget)
    double = dtype_name(weight) in ("float64", "complex128")
    torus = circular_surrogate(stencil, geometry)
    values, route = None, None
    if stencil.axes is not None:
        route = values_route(stencil, on_host=True)
    if route == "matrix":
        values = of_matrix(stencil, this_machine(), products=20)
    elif route in ("one matrix", "compiled"):
        values = _on_torus("values", torus, real=real, double=double)
    return Plan(
        values=values,
        norm=typical_cost(by, stencil, this_machine(), real=real),
        clip=_on_torus("clip", torus, real=real, double=double),
    )


def _on_torus(job: Job, torus: Stencil, *, real: bool, double: bool) -> Cost:
    """Of all matrices of a torus that has a grid."""
    size = symbol_size(torus, real=real)
    side, other = size.side, size.longer_side
    matrices = torus.groups * count_frequencies(
        pattern_of(torus), torus.rows, real=real
    )
    fixed, each = _measured_at(job, side)
    each *= other / side * (2 if double else 1)
    # Transforming more taps than the measured kernels have costs extra.
    each += 4 * side * other * max(taps_each(torus) - TAPS, 0) / product_rate()
    number = 8 if double else 4
    kernel = torus.groups * torus.out_channels * torus.in_channels * torus.taps
    frequencies = of_frequencies(job, torus, real=real)
    memory = 10 * number * kernel + BASE_MEMORY + frequencies.memory
    if _transforms(torus):
        each = 0.0
    else:
        memory += min(3 * matrices * side * other * 2 * number, WORKING_SET)
    if job == "values":
        memory += 2 * number * math.prod(torus.rows) * torus.groups * side
    return Cost(fixed + frequencies.seconds + matrices * each, memory)


def of_frequencies(job: Job, torus: Stencil, *, real: bool) -> Cost:
    """Of what a job does before there are matrices: lists, phase factors, transforms.

    But for the phase factors that the measured kernels have as well: see `TAPS`.
    """
    pattern, points = pattern_of(torus), math.prod(torus.rows)
    seconds, memory = LISTING_SECONDS * points, LISTING_BYTES * points
    if transforms := _transforms(torus):
        sites = math.prod(varying_sizes(pattern, torus.rows).tolist())
        seconds += TRANSFORM_SECONDS[job] * transforms * sites
        memory += TRANSFORM_BYTES * transforms // torus.groups * sites
    else:
        # A clip goes back to the kernel, and needs those of all taps for that.
        each = torus.taps if job == "clip" else factors_needed(pattern)
        count = count_frequencies(pattern, torus.rows, real=real)
        seconds += PHASE_SECONDS * count * max(each - TAPS, 0)
    return Cost(seconds, memory)


def _transforms(torus: Stencil) -> int:
    """Transforms of the whole grid that take the place of phase factors, if any."""
    shape = (torus.groups, torus.out_channels, torus.in_channels)
    return transform_count(pattern_of(torus), shape)


def _measured_at(job: Job, side: int) -> tuple[float, float]:
    """Seconds that a job takes to start, and per matrix: measured, or interpolated."""
    sides = list(CALIBRATION)
    beyond = max(side / sides[-1], 1.0) ** 3
    fixed, each = (
        math.exp(np.interp(math.log(side), np.log(sides), np.log(seconds))) * beyond
        for seconds in zip(*(_measured()[job, known] for known in sides))
    )
    return fixed, each


@cached(maxsize=None)
def _measured() -> dict[tuple[Job, int], tuple[float, float]]:
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


def _random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _seconds(run: Callable[..., object], *args: object) -> float:
    """The time of a second run: the first compiles and fills caches."""
    run(*args)
    start = time.perf_counter()
    run(*args)
    return time.perf_counter() - start
