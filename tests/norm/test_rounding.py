"""What rounding loses on each step against what is allowed for it."""

import math
from pathlib import Path

import numpy as np
import pytest
import rounding_errors
from oracles import norm_by_matrix
from random_layers import draw
from rounding_errors import KERNELS, SHAPES, errors, largest
from routes import norm_along

from convspectra import Geometry, operator_norm
from convspectra._compiled.packed import Panels, storage_of
from convspectra._layer.stencil import stencil_of
from convspectra._maps.symbol import Taps, pattern_of, taps_of
from convspectra._norm import rounding
from convspectra._norm.boxes import Boxes
from convspectra._norm.interpolation import Nodes
from convspectra._norm.rounding import UNIT_DOUBLE, UNIT_SINGLE
from convspectra._norm.search import Search
from convspectra._route.records import NormRoute

PAGE = Path(__file__).parents[2] / "docs" / "mathematics.md"


def test_errors_are_near_what_is_allowed_for_them_and_never_more():
    rng = np.random.default_rng(0)
    found = largest(
        one
        for shape, options in SHAPES.values()
        for make in KERNELS
        for one in errors(make(rng, shape), options, rng)
    )
    assert len(found) == 10
    for step, one in found.items():
        assert one.allowed / 256 < one.seen <= one.allowed, step


def test_the_size_of_a_layer_bounds_the_layer_with_the_sizes_of_its_taps():
    for seed in range(80):
        weight, geometry = draw(np.random.default_rng(seed))
        norm = norm_by_matrix(np.abs(weight), geometry)
        size = rounding.layer_size(weight, stencil_of(weight, geometry))
        assert norm <= size * (1 + 1e-13), f"seed {seed}: {weight.shape} {geometry}"


def test_a_layer_whose_taps_mostly_read_padding_is_bounded_closely():
    # Of 5x5 taps, each 2 or 3 sites apart, few read the input of 2x1 sites.
    weight = np.random.default_rng(3375).standard_normal((2, 3, 5, 5))
    geometry = Geometry((2, 1), dilation=(2, 3), boundary="zeros")
    found = norm_along(weight, geometry, 1e-8, method="banded")
    assert found.gap <= 1e-8


def test_too_many_roundings_leave_nothing_to_rely_on():
    assert rounding.gamma(2**24, UNIT_SINGLE) == math.inf
    assert rounding.certificate(64, 10**6, UNIT_SINGLE) == math.inf
    assert rounding.certificate(64, 10**6, UNIT_DOUBLE) < 1e-7


@pytest.mark.parametrize("flat", [0.0, 0.5, 1 - 1e-6])  # m over the largest square
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_box_is_below_the_bound_if_its_center_is_below_the_threshold(axes, flat, rng):
    """By what a factor at the center proves, rounding included."""
    weight = rng.standard_normal((2, 3, *(3,) * axes))
    taps = taps_of(weight, stencil_of(weight, Geometry(grid=(99,) * axes)))
    grid_sizes, half_step = np.full(axes, 99), axes * np.pi / 2 * 2 / 9
    route, nothing = NormRoute("frequencies", "search"), np.zeros((0, axes), int)
    boxes = Boxes(nothing, nothing, taps.degree, grid_sizes)
    search = Search(taps, boxes, route, 1e-4, half_step)
    allowance = rounding.of_symbol(taps, UNIT_DOUBLE)
    search.threshold = 20 * allowance.absolute  # where that counts
    search.smallest_squares[:] = flat * search.threshold**2
    delta = np.linspace(1e-3, np.pi / 2 - half_step - 1e-3, 200)
    squares = search._squares(delta, np.zeros(200, dtype=int))
    at_center = np.sqrt(squares.astype(np.longdouble))
    proved = at_center * (1 + allowance.certified) + allowance.absolute
    least = np.cos(half_step + delta.astype(np.longdouble)) / np.cos(half_step)
    m, square = search.smallest_squares[0], np.longdouble(search.run().upper) ** 2
    allowed = np.sqrt(m + (square - m) * least**2)
    helps = at_center > 0
    assert helps.any()
    assert (proved <= allowed)[helps].all()


def test_the_largest_gain_sets_one_threshold_for_all_routes():
    allowance = rounding.Allowance(certified=1e-12, gain=1e-13, absolute=1e-14)
    assert allowance.threshold(2.0, 1e-4) == 2.0 * (1 + 0.75e-4) + 2e-14
    assert allowance.threshold(2.0, 0.0) == 2.0 * (1 + 4e-12) + 2e-14
    for gain in (0.0, 1e-15, 1.0):
        upper = allowance.upper(allowance.threshold(gain, 0.0))
        assert allowance.lower(gain) <= gain < upper


def allowances(channels):
    """What is allowed on each step for a 3x3 kernel, as the table shows it."""
    stencil = stencil_of(np.zeros((1, 1, 3, 3)), Geometry(grid=9))
    taps = Taps(np.zeros((9, 1)), pattern_of(stencil), (1, channels, channels))
    nodes = Nodes(tuple(taps.degree), real=True)
    storage = storage_of(channels)
    screening = storage.additions, channels, storage.factor_bound, UNIT_SINGLE
    return {
        "symbol, double": rounding.symbol_entries(taps, UNIT_DOUBLE),
        "symbol, single": rounding.symbol_entries(taps, UNIT_SINGLE),
        "Gram matrix, double": rounding.gram_entries(channels, UNIT_DOUBLE),
        "Cholesky factor, double": rounding.cholesky_error(
            Panels(channels).additions, UNIT_DOUBLE
        ),
        "threshold, double": rounding.certificate(channels, channels, UNIT_DOUBLE),
        "gain, double": rounding.gain_error(channels, channels, UNIT_DOUBLE),
        "interpolated Gram matrix, single": rounding.interpolation_error(
            nodes.terms, rounding.lebesgue_constant(nodes.grid_sizes)
        ),
        "interpolated threshold, single": rounding.cholesky_norm(*screening),
    }


def test_the_table_shows_what_is_allowed():
    rows = [
        line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if "|" in line
    ]
    table = {row[0].strip(): [cell.strip() for cell in row] for row in rows}
    for column, channels in ((2, 16), (4, 256), (6, 1024)):
        for step, allowed in allowances(channels).items():
            assert table[step][column] == f"{allowed:.1e}", (step, channels)


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "repeats"), [(16, 40), (256, 2), (1024, 1)])
def test_the_errors_of_the_table(channels, repeats, rng, capsys):
    """Prints what docs/mathematics.md shows as seen; takes some minutes."""
    shape, makers = (
        (channels, channels, 3, 3),
        KERNELS if channels < 1000 else KERNELS[:4],
    )
    found = largest(
        one
        for make in makers
        for _ in range(repeats)
        for one in errors(make(rng, shape), {"grid": (5, 7)}, rng)
    )
    with capsys.disabled():
        for step, one in found.items():
            print(f"{channels} {step}: {one.seen:.1e} of {one.allowed:.1e}")  # noqa: T201
    for step, one in found.items():
        assert one.seen <= one.allowed, step


@pytest.mark.parametrize("make", KERNELS)
def test_bounds_hold_for_kernels_that_round_badly(make, rng):
    """Against the same matrices in extended precision."""
    shape, options = SHAPES["plane"]
    weight = make(rng, shape)
    taps = taps_of(weight, stencil_of(weight, Geometry(**options)))
    grid_sizes = np.array(options["grid"])
    points = np.indices(options["grid"]).reshape(2, -1).T
    matrices = rounding_errors.exact_symbol(taps, points, grid_sizes)[0]
    want = max(
        rounding_errors.exact_norm(h[0] if h.shape[1] <= h.shape[2] else h[0].T)
        for h in matrices
    )
    found = operator_norm(weight, Geometry(**options))
    assert found.lower <= want <= found.upper
