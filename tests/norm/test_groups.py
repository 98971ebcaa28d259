"""Groups that do not decide the norm cost little, and change nothing."""

import numpy as np
import pytest
from oracles import norm_by_matrix
from routes import norm_along

from convspectra import Geometry
from convspectra._layer.stencil import stencil_of
from convspectra._maps.symbol import frequencies_of, taps_of
from convspectra._norm import operator_norm
from convspectra._norm.groups import group_bounds
from convspectra._norm.operator_norm import norm_bounds
from convspectra._norm.symbol_norms import SymbolNorms
from convspectra._route import NormRoute

GEOMETRY = Geometry(grid=(6, 5), groups=12, boundary="zeros")


@pytest.fixture
def bounded(monkeypatch):
    """How many groups had their bounds computed, by each call."""
    counts, along, by_matrix = [], operator_norm._along, operator_norm.by_matrix

    def counting(route, weight, stencil, **options):
        counts.append(stencil.groups)
        return along(route, weight, stencil, **options)

    def counting_matrices(weight, operator, rtol):
        counts.append(operator.stencil.groups)
        return by_matrix(weight, operator, rtol)

    monkeypatch.setattr(operator_norm, "_along", counting)
    monkeypatch.setattr(operator_norm, "by_matrix", counting_matrices)
    return counts


def slope(weight, direction, step=1e-6):
    norms = [norm_by_matrix(weight + s * direction, GEOMETRY) for s in (step, 0.0)]
    return (norms[0] - norms[1]) / step


def test_smaller_groups_need_no_matrix(bounded, rng, monkeypatch):
    monkeypatch.setattr(operator_norm, "WORTHWHILE", 0)
    weight = rng.standard_normal((24, 2, 3, 3))
    weight[6:10] *= 3
    found = norm_along(weight, GEOMETRY, method="matrix")
    norm = norm_by_matrix(weight, GEOMETRY)
    assert found.lower <= norm <= found.upper
    assert found.gap <= 1e-4
    assert bounded[0] == 12
    assert 1 <= bounded[1] <= 4
    route = NormRoute("matrix", "matrix")
    bounds = norm_bounds(weight, stencil_of(weight, GEOMETRY), 1e-9, route=route)
    direction = rng.standard_normal(weight.shape)
    got = float(np.sum(bounds.derivative() * direction))
    assert got == pytest.approx(slope(weight, direction), rel=1e-3)


@pytest.mark.parametrize("method", ["matrix", "banded", "compression", "embedding"])
def test_equal_groups_are_bounded_once(method, bounded, rng):
    weight = np.tile(rng.standard_normal((2, 2, 3, 3)), (12, 1, 1, 1))
    found = norm_along(weight, GEOMETRY, method=method)
    norm = norm_by_matrix(weight, GEOMETRY)
    assert found.lower <= norm <= found.upper
    assert bounded[0] == 1
    route = NormRoute("matrix", "matrix")
    bounds = norm_bounds(weight, stencil_of(weight, GEOMETRY), 1e-9, route=route)
    direction = np.zeros_like(weight)
    direction[:2] = bounds.derivative()[:2]  # of the first group, which then is largest
    got = float(np.sum(bounds.derivative() * direction))
    assert got == pytest.approx(slope(weight, direction), rel=1e-3)


@pytest.mark.parametrize("boundary", ["zeros", "reflect"])
def test_each_group_has_a_bound(boundary, rng):
    weight = rng.standard_normal((24, 2, 3, 3))
    geometry = Geometry(grid=(6, 5), groups=12, boundary=boundary)
    uppers = group_bounds(weight, stencil_of(weight, geometry))
    one = Geometry(grid=(6, 5), boundary=boundary)
    norms = [norm_by_matrix(weight[2 * g : 2 * g + 2], one) for g in range(12)]
    assert (norms <= uppers).all()
    assert (uppers <= 3 * np.array(norms)).all()


def test_which_groups_may_be_above_a_norm(rng):
    weight = rng.standard_normal((4, 1, 3)) / 10
    weight[:, 0, 1] = 1, 4, 2, 3
    taps = taps_of(weight, stencil_of(weight, Geometry(8, groups=4)))
    norms = SymbolNorms(
        taps, frequencies_of(taps.pattern, (8,), real=True), is_screened=False
    )
    assert norms.groups_above(0.0) == [1, 3, 2, 0]
    assert norms.groups_above(2.5) == [1, 3]
    assert norms.groups_above(10.0) == []
