"""What jobs will cost. How well that holds is measured by the benchmark, not here."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from routes import machine

from convspectra import Geometry, _plan, _price, plan
from convspectra._layer.stencil import stencil_of
from convspectra._maps.symbol import count_frequencies, frequencies_of, pattern_of
from convspectra._norm.boxes import CONTINUOUS, first_boxes
from convspectra._route.cost import route_cost, typical_cost
from convspectra._route.norm import norm_route
from convspectra._route.records import NormRoute


@pytest.fixture
def rates(monkeypatch):
    """A machine that takes 1 s to begin and 1 ms per matrix, whatever its size."""
    known = {(job, c): (1.0, 1e-3) for job in _plan.JOBS for c in _plan.CALIBRATION}
    monkeypatch.setattr(_plan, "_measured", lambda: known)
    monkeypatch.setattr(_plan, "LISTING_SECONDS", 0.0)
    with machine(1e9, cores=1):
        yield


def weight(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


def test_half_of_the_frequencies_are_counted(rates):
    found = plan(weight(16, 16, 3, 3), Geometry(grid=(8, 8)))
    for cost in (found.values, found.clip):
        assert cost.seconds == pytest.approx(1 + 34e-3)  # 4 are real, 30 pairs
    fixed, times = _price.VALUES_WORK
    work = 34 * (fixed + times * 16**3) / 1e9
    assert found.norm.seconds == pytest.approx(_price.START_SECONDS + work)


def test_complex_kernels_have_all_frequencies(rates):
    found = plan(weight(16, 16, 3, 3, dtype="complex64"), Geometry(grid=(8, 8)))
    for cost in (found.values, found.clip):
        assert cost.seconds == pytest.approx(1 + 64e-3)


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("dilation", [1, 2, 5])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 1), (3, 3), (7, 2)])
@pytest.mark.parametrize("rows", [(1, 1), (2, 5), (6, 4), (10, 10)])
def test_frequencies_are_counted_as_they_are_listed(rows, kernel, dilation, real):
    geometry = Geometry(rows, dilation=dilation)
    pattern = pattern_of(stencil_of(weight(1, 1, *kernel), geometry))
    listed = frequencies_of(pattern, rows, real=real)
    assert count_frequencies(pattern, rows, real=real) == len(listed)


def test_a_large_grid_is_planned_in_little_memory(rates):
    tracemalloc.start()
    try:
        found = plan(weight(2, 2, 3, 3), Geometry(grid=(20000, 20000)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.values.seconds > 1e5  # 2e8 matrices
    assert peak < 2**24


def test_double_precision_and_groups_cost_more(rates):
    geometry = Geometry(grid=(8, 8))
    double = plan(weight(16, 16, 3, 3, dtype="float64"), geometry)
    assert double.values.seconds == pytest.approx(1 + 68e-3)
    single = plan(weight(16, 16, 3, 3), geometry)
    assert double.norm.seconds == single.norm.seconds  # always in double
    grouped = plan(weight(64, 16, 3, 3), Geometry(grid=(8, 8), groups=4))
    assert grouped.values.seconds == pytest.approx(1 + 136e-3)


@pytest.mark.parametrize("job", ["values", "clip"])
def test_frequencies_and_their_phase_factors_are_priced(rates, job, monkeypatch):
    def cost(*shape):
        return getattr(plan(weight(*shape), Geometry(2**16)), job)

    count, more = 2**15 + 1, 256 - 9
    products = 4 * 2 * 2 / _plan.product_rate()
    assert cost(2, 2, 256).seconds == pytest.approx(
        1 + count * (1e-3 + more * (_plan.PHASE_SECONDS + products))
    )
    # Those of one channel come from a transform, not one by one.
    seconds = 2**16 * _plan.TRANSFORM_SECONDS[job]
    assert cost(1, 1, 256).seconds == pytest.approx(1 + seconds)
    assert cost(1, 1, 256).memory > cost(1, 1, 3).memory + 40 * 2**16
    monkeypatch.setattr(_plan, "LISTING_SECONDS", 1e-3)
    assert cost(2, 2, 3).seconds == pytest.approx(1 + (count + 2**16) * 1e-3)


def test_a_clip_needs_the_phase_factors_of_all_taps(rates):
    found = plan(weight(4, 4, 7, 7, 7), Geometry((32,) * 3))
    more = found.clip.seconds - found.values.seconds
    count = (32**3 + 8) // 2
    assert more == pytest.approx(count * (343 - (7 + 49)) * _plan.PHASE_SECONDS)


def test_beyond_what_was_measured_costs_grow_with_the_cube(rates):
    largest = max(_plan.CALIBRATION)
    geometry = Geometry(grid=(4, 4))
    small = plan(weight(largest, largest, 3, 3), geometry)
    large = plan(weight(2 * largest, 2 * largest, 3, 3), geometry)
    assert large.values.seconds == pytest.approx(8 * small.values.seconds)


@pytest.mark.parametrize("channels", [64, 1024])
def test_of_depthwise_layers_a_few_groups_are_priced_by_their_band(rates, channels):
    kernel = weight(channels, 1, 3, 3)
    geometry = Geometry((14, 14), groups=channels, boundary="zeros")
    stencil = stencil_of(kernel, geometry)
    route = norm_route(stencil, real=True, on_host=True, rtol=_plan.RTOL)
    assert route.method == "banded"
    few = replace(stencil, groups=2)
    with machine(_price.NOMINAL.product_rate, _price.NOMINAL.cores):
        most, least = (
            route_cost(route, all_or_few, _price.this_machine(), real=True)
            for all_or_few in (stencil, few)
        )
        found = plan(kernel, geometry).norm
    assert least.seconds < found.seconds < most.seconds


def test_without_groups_the_price_is_that_by_which_a_route_is_chosen(rates):
    for closing in (None, "banded"):
        route = NormRoute("compression", "every frequency", closing=closing)
        stencil = stencil_of(weight(16, 16, 3, 3), Geometry((14, 14), boundary="zeros"))
        args = route, stencil, _price.this_machine()
        assert typical_cost(*args, real=True) == route_cost(*args, real=True)


def test_large_grids_are_searched_for_the_norm_only(rates):
    found = plan(weight(16, 16, 3, 3), Geometry(grid=(500, 500)))
    assert found.norm.seconds < found.values.seconds / 10


def test_a_layer_that_has_no_values_in_reach(rates):
    shape, grid = weight(64, 64, 3, 3), (56, 56)
    found = plan(shape, Geometry(grid=grid, boundary="zeros"))
    assert found.values is None
    assert found.norm.seconds > found.clip.seconds  # Lanczos on top of the torus
    small = plan(weight(4, 4, 3, 3), Geometry(grid=(6, 6), boundary="zeros"))
    assert small.values.seconds > 0


def test_dilation_costs_the_norm_nothing(rates):
    shape = weight(80, 80, 3, 3)
    plain = plan(shape, Geometry(grid=(16, 16)))
    dilated = plan(shape, Geometry(grid=(64, 64), dilation=4))
    assert dilated.norm.seconds == pytest.approx(plain.norm.seconds)


def test_large_kernels_cost_the_norm_more_that_is_screened(rates):
    def norm(kernel, grid):
        shape = weight(80, 80, kernel, kernel)
        return plan(shape, Geometry(grid=(grid, grid))).norm.seconds

    more = 4 * 80 * 80 / 1e9  # axis by axis 10 taps for 9, in each transform
    nodes = 28 * _price.NODE_WORK[1] * 80**3 / 1e9  # 41 in place of 13
    assert norm(5, 32) == pytest.approx(norm(3, 32) + 514 * more + nodes)
    fixed, times = _price.DOUBLE_WORK  # for 34 frequencies 41 nodes are too many
    assert norm(5, 8) == pytest.approx(
        _price.START_SECONDS + 34 * (more + (fixed + times * 80**3) / 1e9)
    )


@pytest.mark.parametrize(
    "kernel", [(3, 3), (11, 7), (24, 2), (1, 40), (2048,), (5,) * 3]
)
@pytest.mark.parametrize("real", [True, False])
def test_as_many_boxes_are_priced_as_a_search_begins_with(kernel, real):
    torus = stencil_of(weight(1, 1, *kernel), Geometry(None))
    degree = np.array(kernel) - 1
    begun = first_boxes(degree, np.where(degree, CONTINUOUS, 1), real=real)
    assert _price.symbol_size(torus, real=real).first_boxes == len(begun)


def test_a_search_with_many_taps_is_left_to_another_bound():
    large = norm_route(
        stencil_of(weight(3, 3, 256, 256), Geometry(None)), real=True, on_host=True
    )
    assert large.method == "reshaped"
    small = norm_route(
        stencil_of(weight(3, 3, 32, 32), Geometry(None)), real=True, on_host=True
    )
    assert small.algorithm == "search by values"


def test_one_matrix_is_one_product(rates):
    found = plan(weight(64, 256, 1, 1), Geometry(grid=(56, 56)))
    assert found.norm.seconds < 0.1  # without the second that it takes to begin
    patches = plan(weight(64, 64, 2, 2), Geometry(grid=(56, 56), stride=2))
    assert patches.norm.seconds == pytest.approx(found.norm.seconds)


def test_no_grid_at_all(rates):
    assert plan(weight(4, 4, 3, 3), Geometry(grid=None)).values is None


def test_memory_is_bounded_on_any_grid(rates):
    huge = plan(weight(1024, 1024, 3, 3), Geometry(grid=(224, 224)))
    assert huge.norm.memory < 2 * 2**30
    assert huge.values.memory > 4 * 224 * 224 * 1024  # the values themselves


def test_the_machine_is_measured_once(monkeypatch):
    _plan._measured.cache_clear()
    monkeypatch.setattr(_plan, "CALIBRATION", {2: (2, 4)})
    runs = []
    real = _plan._seconds
    monkeypatch.setattr(
        _plan, "_seconds", lambda *args: runs.append(args) or real(*args)
    )
    for _ in range(2):
        found = plan(weight(2, 2, 3, 3), Geometry(grid=(8, 8)))
    assert found.values.seconds > 0
    assert len(runs) == 4  # two grids and two jobs
    _plan._measured.cache_clear()
