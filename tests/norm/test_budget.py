"""How long a norm may take, and what comes back where that is not enough."""

import math
import tracemalloc

import numpy as np
import pytest
from oracles import norm_by_matrix
from random_layers import draw
from routes import machine, norm_along

from convspectra import Geometry, Layer, operator_norm, plan, spectra
from convspectra._layer.stencil import stencil_of
from convspectra._norm import reshaped
from convspectra._norm.part import part_inside, part_that_attains
from convspectra._route.norm import norm_route

ROOM = 1e-13  # what the dense matrix's own norm may be off by
ZEROS = Geometry((12, 12), boundary="zeros")


def outside(seeds):
    """The random layers whose norm is not between the bounds of the reshaped kernel."""
    for seed in seeds:
        weight, geometry = draw(np.random.default_rng(seed))
        norm = norm_by_matrix(weight, geometry)
        found = norm_along(weight, geometry, method="reshaped")
        if not found.lower * (1 - ROOM) <= norm <= found.upper * (1 + ROOM):
            yield f"seed {seed}: {weight.shape} {geometry}: {norm} {found}"


def test_the_reshaped_kernel_bounds_every_random_layer():
    assert not list(outside(range(50)))


def test_a_factor_too_small_is_noticed(monkeypatch):
    monkeypatch.setattr(reshaped, "UP", 0.95)
    # By the judge: without a lower bound that would contradict it.
    monkeypatch.setattr(reshaped, "some_row_reads_all_taps", lambda stencil: False)
    assert next(outside(range(100)), None)


def test_a_row_that_reads_a_site_twice_is_noticed(monkeypatch):
    monkeypatch.setattr(reshaped, "some_row_reads_all_taps", lambda stencil: True)
    assert next(outside(range(200)), None)


@pytest.mark.parametrize("budget", [0, -1, math.nan, math.inf, "1", True, 1j])
def test_a_budget_is_a_positive_number(budget, rng):
    weight = rng.standard_normal((2, 2, 3, 3))
    for job in (operator_norm, plan):
        with pytest.raises(ValueError, match="`budget` must be a positive, finite"):
            job(weight, ZEROS, budget=budget)


def test_a_kernel_of_many_taps_is_planned_in_little_memory(rng):
    """The windows of speech networks: a table of which taps couple would take 2 GB."""
    weight = rng.standard_normal((4, 1, 128))
    geometry = Geometry(128, stride=64, padding="valid", boundary="zeros")
    tracemalloc.start()
    try:
        found = operator_norm(weight, geometry)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    norm = norm_by_matrix(weight, geometry)
    assert found.lower * (1 - ROOM) <= norm <= found.upper * (1 + ROOM)
    assert peak < 2**27


def test_without_time_the_reshaped_kernel_bounds_the_norm(rng):
    weight = rng.standard_normal((4, 4, 3, 3))
    for geometry in (ZEROS, Geometry((12, 12)), Geometry(None)):
        close = operator_norm(weight, geometry)
        quick = operator_norm(weight, geometry, budget=1e-9)
        assert quick.method == "reshaped"
        assert quick.lower <= close.lower <= close.upper <= quick.upper
        assert quick.gap == pytest.approx(2, rel=1e-3)  # sqrt(taps) - 1
        (layer,) = spectra([Layer("layer", weight, geometry)], budget=1e-9).layers
        assert layer.norm == quick


def test_a_larger_budget_buys_closer_bounds():
    # 256 channels on 14 x 14, as in a ResNet-50; nothing of this is run.
    geometry = Geometry((14, 14), boundary="zeros")
    stencil = stencil_of(np.zeros((256, 256, 3, 3), np.float32), geometry)

    def method(budget):
        found = norm_route(stencil, real=True, on_host=True, rtol=1e-4, budget=budget)
        return found.method

    with machine(4e10, cores=2):
        assert method(None) == "compression"
        assert method(300) == "banded"
        assert method(0.3) == "embedding"
        assert method(1e-4) == "reshaped"


def test_a_compression_that_falls_short_is_followed_by_a_banded_factor(rng):
    weight = rng.standard_normal((2, 2, 3, 3))
    geometry = Geometry((24, 24), boundary="zeros")
    stencil = stencil_of(weight, geometry)
    methods = {}
    for rtol in (1e-2, 1e-3, 1e-5):
        route = norm_route(stencil, real=True, on_host=True, rtol=rtol)
        found = operator_norm(weight, geometry, rtol)
        assert found.gap <= rtol
        methods[rtol] = route.method, route.closing, found.method
    assert methods[1e-2] == ("compression", "banded", "compression")
    assert methods[1e-3][:2] == ("compression", "banded")
    assert methods[1e-5] == ("banded", None, "banded")
    short = norm_along(weight, geometry, 1e-6, method="compression", closing="banded")
    assert short.method == "banded"
    assert short.gap <= 1e-6


@pytest.mark.parametrize("boundary", ["zeros", "reflect", "replicate"])
def test_a_part_of_a_layer_has_no_larger_norm(boundary, rng, monkeypatch):
    monkeypatch.setattr("convspectra._norm.part.APPLICATION_LIMIT", 2**10)
    weight = rng.standard_normal((2, 2, 3, 3))
    for stride in (1, 2):
        geometry = Geometry((20, 9), stride, boundary=boundary)
        stencil = stencil_of(weight, geometry)
        part = part_inside(stencil)
        if boundary == "zeros":
            part = part_that_attains(stencil, np.array([2, 2]), 1e-4)
        assert math.prod(part.columns) < 60
        found = norm_along(weight, geometry, method="embedding")
        assert 0 < found.lower <= norm_by_matrix(weight, geometry) <= found.upper


@pytest.mark.parametrize("grid", [(8, 8), (32, 32), (40, 48)])
def test_without_a_budget_no_machine_matters(grid):
    stencil = stencil_of(
        np.ones((32, 32, 3, 3)), Geometry(grid, boundary="zeros", padding=1)
    )
    routes = set()
    for rate in (1e8, 1e10, 1e13):
        with machine(rate, cores=2):
            routes.add(norm_route(stencil, real=True, on_host=True, rtol=1e-4))
    assert len(routes) == 1
    with machine(1e6, cores=2):
        hurried = norm_route(stencil, real=True, on_host=True, rtol=1e-4, budget=1.0)
    assert hurried not in routes
