"""Thousands of random geometries, all options together, against the dense matrix."""

from dataclasses import replace

import numpy as np
import pytest
from oracles import descending, tolerance, values_by_matrix
from random_layers import draw, draw_past_borders
from routes import norm_along

from convspectra import dense_matrix, operator_norm, project, singular_values
from convspectra._bound.project import ROUNDS

BLOCKS, EACH = 40, 100
PAST_BORDERS = 5  # every fifth layer reads mostly zeros
ROUTES = (
    {"algorithm": "small matrices"},
    {"algorithm": "every frequency", "is_screened": False},
    {"algorithm": "every frequency", "is_screened": True},
    {"algorithm": "search", "is_screened": False},
    {"algorithm": "search", "is_screened": True},
    {"algorithm": "search by values"},
    {"method": "compression", "is_screened": False},
    {"method": "compression", "is_screened": True},
    {"method": "compression", "closing": "banded"},
    {"method": "compression", "closing": "block compression"},
    {"method": "block compression"},
    {"method": "reshaped"},
)
# Methods whose bounds need not meet.
LOOSE = ("embedding", "compression", "block compression", "reshaped")


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_geometries_agree_with_the_matrix(block):
    for seed in range(block * EACH, (block + 1) * EACH):
        rng = np.random.default_rng(seed)
        draw_any = draw if seed % PAST_BORDERS else draw_past_borders
        weight, geometry = draw_any(rng)
        check(seed, rng, weight, geometry)


def check(seed, rng, weight, geometry):
    said = f"seed {seed}: weight {weight.shape} {weight.dtype}, {geometry}"
    want = values_by_matrix(weight, geometry)
    norm = want[0]
    single = weight.astype("complex64" if np.iscomplexobj(weight) else "float32")
    for array in (weight, single):
        got = singular_values(array, geometry)
        assert got.size == want.size, said
        room = tolerance(want, array.dtype) * 10
        np.testing.assert_allclose(descending(got), want, atol=room, err_msg=said)
    rtol = float(rng.choice([1e-2, 1e-4, 1e-8]))
    found = operator_norm(weight, geometry, rtol)
    room = 1e-13 * norm + 1e-14
    assert found.lower - room <= norm <= found.upper + room, said
    for options in ROUTES:  # each in turn, whichever suits the layer
        forced = norm_along(weight, geometry, rtol, **{"method": "embedding"} | options)
        why = f"{said}, {options}"
        assert forced.lower - room <= norm <= forced.upper + room, why
        if forced.method not in LOOSE and norm > 1e-3:
            assert forced.gap <= rtol, why
    banded = norm_along(weight, geometry, rtol, method="banded")
    assert banded.lower - room <= norm <= banded.upper + room, said
    # Its Gram matrix is that of the taps, which cancel where the norm is small.
    if norm > 0.1:
        assert banded.gap <= rtol, said
    if found.method not in LOOSE and norm > 1e-3:
        assert found.gap <= rtol, said
    if found.method == "frequencies" or geometry.boundary != "circular":
        every = operator_norm(weight, replace(geometry, grid=None), 1e-2)
        assert every.upper >= norm - room, said
    bound = float(rng.uniform(0.1, 1.1) * norm) + 1e-3
    projected = project(weight, geometry, bound)
    assert projected.after.upper <= bound, said
    inside = np.linalg.norm(dense_matrix(projected.weight, geometry), 2)
    assert inside <= bound * (1 + 1e-13), said
    if found.method not in LOOSE:
        # Where taps wrap onto each other many times, all rounds may not be enough.
        assert projected.gap <= (2e-3 if projected.rounds < ROUNDS else 2e-2), said
