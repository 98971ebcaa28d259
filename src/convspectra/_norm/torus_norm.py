"""The norm of a layer on a torus, by the algorithm of its route."""

from dataclasses import replace

import numpy as np

from .._base import cached
from .._maps.symbol import Pattern, Taps, common_steps, frequencies_of
from .._route.records import NormRoute
from .boxes import CONTINUOUS, first_boxes, half_step_delta, single_points
from .one_matrix import norm_of_one_matrix
from .peak import Peak
from .rounding import effective_rtol
from .search import Search
from .small_matrices import norm_of_small_matrices


def norm_on_torus(
    taps: Taps,
    rows: tuple[int, ...] | None,
    route: NormRoute,
    *,
    real: bool,
    rtol: float,
) -> Peak:
    """The largest norm over the frequencies of a grid with these rows.

    Without rows the supremum over all the frequencies there are. Where all shifts on an
    axis are multiples of a common step, as under dilation, the taps with their shifts
    divided by it have the same matrices, at other frequencies.
    """
    if route.algorithm == "one matrix":
        return norm_of_one_matrix(taps, rtol)
    taps, step = dilation_reduced(taps)
    shared = np.gcd(step, rows) if rows else np.ones_like(step)
    grid = rows // shared if rows else np.full_like(step, CONTINUOUS)
    peak = _norm_on_grid(taps, grid, route, real=real, rtol=rtol)
    if (step == 1).all():
        return peak
    if rows is None:
        return replace(peak, cycles=peak.cycles / step)
    # Frequency f of the layer is frequency f * step / shared of the reduced one.
    cycles = [
        round(cycle * (n // g)) * pow(int(s // g), -1, int(n // g)) % (n // g) / n
        for cycle, n, s, g in zip(peak.cycles, rows, step, shared)
    ]
    return replace(peak, cycles=np.array(cycles))


def dilation_reduced(taps: Taps) -> tuple[Taps, np.ndarray]:
    """The same taps with their shifts divided by a common step, and that per axis."""
    step = common_steps(taps.shifts)
    if (step == 1).all():
        return taps, step
    return replace(taps, pattern=_reduced(taps.pattern)), step


@cached(maxsize=256)
def _reduced(pattern: Pattern) -> Pattern:
    """Cached: equal arguments give the identical object.

    On whose identity other caches are keyed.
    """
    return replace(pattern, shifts=pattern.shifts // common_steps(pattern.shifts))


def _norm_on_grid(
    taps: Taps, grid: np.ndarray, route: NormRoute, *, real: bool, rtol: float
) -> Peak:
    """As `norm_on_torus`, for taps whose shifts have no common step."""
    grid_sizes = np.where(taps.degree > 0, grid, 1)
    if route.algorithm in ("search", "search by values"):
        boxes = first_boxes(taps.degree, grid_sizes, real=real)
        half_step = half_step_delta(taps.degree, grid_sizes)
        return Search(taps, boxes, route, rtol, half_step).run()
    kept = frequencies_of(taps.pattern, tuple(map(int, grid_sizes)), real=real)
    if route.algorithm == "small matrices":
        return norm_of_small_matrices(taps, kept)
    boxes = single_points(kept.points, taps.degree, grid_sizes)
    return Search(taps, boxes, route, effective_rtol(rtol)).run()
