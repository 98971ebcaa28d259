"""Groups that do not decide the norm cost little, and change nothing."""

from dataclasses import replace

import numpy as np
import pytest
from oracles import norm_by_matrix
from routes import norm_along

from convspectra import Geometry
from convspectra._layer.stencil import stencil_of
from convspectra._maps.symbol import frequencies_of, taps_of
from convspectra._norm import groups
from convspectra._norm import norm_bounds as followed
from convspectra._norm.groups import group_bounds
from convspectra._norm.norm_bounds import norm_bounds
from convspectra._norm.symbol_norms import SymbolNorms
from convspectra._route.records import NormRoute
from convspectra._route.torus import groups_come_first

GEOMETRY = Geometry(grid=(6, 5), groups=12, boundary="zeros")
ROUTES = {
    "matrix": NormRoute("matrix", "matrix"),
    "banded": NormRoute("banded", "banded"),
    "compression": NormRoute("compression", "every frequency"),
    "embedding": NormRoute("embedding", "every frequency"),
}


@pytest.fixture
def counts(monkeypatch):
    """How many groups were bounded by some route, and then by matrices."""
    found, follow, by_matrix = [], followed._follow, followed.by_matrix

    def counting(route, weight, stencil, **options):
        found.append(stencil.groups)
        return follow(route, weight, stencil, **options)

    def counting_matrices(weight, operator, rtol):
        found.append(operator.stencil.groups)
        return by_matrix(weight, operator, rtol)

    monkeypatch.setattr(followed, "_follow", counting)
    monkeypatch.setattr(followed, "by_matrix", counting_matrices)
    monkeypatch.setattr(groups, "groups_come_first", lambda *_, **__: True)
    return found


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("transposed", [False, True])
def test_smaller_groups_need_no_matrix(transposed, dtype, counts, rng):
    weight = rng.standard_normal((24, 2, 3, 3)).astype(dtype)
    if dtype == "complex128":
        weight = weight + 1j * rng.standard_normal(weight.shape)
    weight[6:10] *= 3
    one = Geometry((6, 5), boundary="zeros", transposed=transposed)
    found = norm_along(weight, replace(one, groups=12), method="matrix")
    norm = max(norm_by_matrix(weight[2 * g : 2 * g + 2], one) for g in range(12))
    assert found.lower <= norm <= found.upper
    assert found.gap <= 1e-4
    assert counts[0] == 12
    assert 1 <= counts[1] <= 4


def test_the_derivative_is_that_of_the_whole_layer(counts, rng):
    weight = rng.standard_normal((24, 2, 3, 3))
    weight[6:10] *= 3
    stencil = stencil_of(weight, GEOMETRY)
    bounds = norm_bounds(weight, stencil, 1e-9, route=ROUTES["matrix"])
    assert counts[1] < 12
    direction = rng.standard_normal(weight.shape)
    ends = [norm_by_matrix(weight + s * direction, GEOMETRY) for s in (1e-5, -1e-5)]
    got = float(np.sum(bounds.derivative() * direction))
    assert got == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3)


@pytest.mark.parametrize("method", ROUTES)
def test_equal_groups_are_bounded_once(method, counts, rng):
    one = rng.standard_normal((2, 2, 3, 3))
    weight = np.tile(one, (12, 1, 1, 1))
    found = norm_bounds(
        weight, stencil_of(weight, GEOMETRY), 1e-6, route=ROUTES[method]
    )
    norm = norm_by_matrix(weight, GEOMETRY)
    assert found.lower <= norm <= found.upper
    assert counts[0] == 1
    # The derivative is that of the first group, as if it were alone.
    stencil = stencil_of(one, Geometry((6, 5), boundary="zeros"))
    alone = norm_bounds(one, stencil, 1e-6, route=ROUTES[method])
    derivative = found.derivative()
    np.testing.assert_allclose(derivative[:2], alone.derivative(), atol=1e-9)
    assert np.abs(derivative[:2]).max() > 0
    assert not derivative[2:].any()


@pytest.mark.parametrize("boundary", ["zeros", "reflect"])
def test_each_group_has_a_bound(boundary, rng):
    weight = rng.standard_normal((24, 2, 3, 3))
    geometry = Geometry(grid=(6, 5), groups=12, boundary=boundary)
    uppers = group_bounds(weight, stencil_of(weight, geometry))
    one = Geometry(grid=(6, 5), boundary=boundary)
    norms = [norm_by_matrix(weight[2 * g : 2 * g + 2], one) for g in range(12)]
    assert (norms <= uppers).all()
    assert (uppers <= 3 * np.array(norms)).all()


@pytest.mark.parametrize(
    ("shape", "grid", "groups", "expected"),
    [
        ((512, 1, 3, 3), 14, 512, True),
        ((24, 2, 3, 3), 4, 12, False),  # matrices so small that they are no work
        ((1024, 512, 3, 3), 1, 2, False),  # one tap of nine is read
    ],
)
def test_bounds_of_groups_come_first_where_they_spare_work(
    shape, grid, groups, expected
):
    geometry = Geometry(grid, groups=groups, boundary="zeros")
    stencil = stencil_of(np.zeros(shape, np.float32), geometry)
    assert groups_come_first(stencil, "matrix", real=True) is expected


def test_which_groups_may_be_above_a_norm(rng):
    weight = rng.standard_normal((4, 1, 3)) / 10
    weight[:, 0, 1] = 1, 4, 2, 3
    taps = taps_of(weight, stencil_of(weight, Geometry(8, groups=4)))
    kept = frequencies_of(taps.pattern, (8,), real=True)
    norms = SymbolNorms(taps, kept, is_screened=False)
    assert norms.groups_above(0.0) == [1, 3, 2, 0]
    assert norms.groups_above(2.5) == [1, 3]
    assert norms.groups_above(10.0) == []
