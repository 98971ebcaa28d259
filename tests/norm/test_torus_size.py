"""Is the torus that stands for a layer large enough? Judged by dense matrices.

Where it is too small, rows read columns the wrong way round, and a certified bound may
be below the norm.
"""

from dataclasses import replace

import numpy as np
import pytest
from oracles import norm_by_matrix
from random_layers import draw, draw_past_borders
from routes import norm_along

from convspectra import Geometry, dense_matrix, operator_norm
from convspectra._layer.stencil import embedding, stencil_of
from convspectra._maps.symbol import common_steps, taps_of
from convspectra._norm.compression import extent_of

ROOM = 1e-13  # what the dense matrix's own norm may be off by
ROUTES = (
    {"method": "compression", "is_screened": False},
    {"method": "compression", "closing": "block compression"},
    {"method": "block compression"},
    {"method": "banded"},
    {"method": "embedding"},
    {"method": "reshaped"},
)


def compression_rows(weight, stencil):
    """Rows per axis of the torus that a compression goes through; None for no bound."""
    taps = taps_of(weight, stencil)
    extent = extent_of(stencil, taps)
    if extent is None:
        return None
    assert all(n <= m for n, m in zip(extent.inputs, extent.points))
    assert all(n <= m for n, m in zip(extent.outputs, extent.points))
    rows = np.array(extent.points) * common_steps(taps.shifts)
    # On an axis where each row reads one cell, its own, any torus is one row repeated.
    own = embedding_rows(weight, stencil)
    return tuple(np.where(taps.degree == 0, own, rows).tolist())


def embedding_rows(_, stencil):
    return embedding(stencil)[0].rows


def is_block_of_torus(weight, geometry, rows):
    """Whether all rows that read a column are different rows of this torus."""
    stride, kernel = geometry.stride, weight.shape[2:]
    dense = dense_matrix(weight, geometry).reshape(
        *geometry.out_grid(kernel), *geometry.grid
    )
    axes = range(len(stride))
    torus_grid = tuple(m * s for m, s in zip(rows, stride))
    # So many rows more that the torus has all those of the layer, some of them twice.
    more = max(geometry.grid)
    torus = replace(
        geometry,
        grid=torus_grid,
        padding=tuple((a, b + more) for a, b in geometry.padding),
        boundary="circular",
    )
    wrapped = dense_matrix(weight, torus).reshape(*torus.out_grid(kernel), *torus_grid)
    taken = []
    for axis, n in enumerate((*rows, *torus_grid)):
        others = tuple(a for a in range(dense.ndim) if a != axis)
        read = np.flatnonzero(np.abs(dense).sum(axis=others))
        if len(read) and read[-1] - read[0] >= n:
            return False
        taken.append(read)
    inside = [own % n for own, n in zip(taken[len(axes) :], torus_grid)]
    block = wrapped[np.ix_(*taken[: len(axes)], *inside)]
    return np.array_equal(block, dense[np.ix_(*taken)])


def plain_layers(seeds):
    """Layers of one channel with zeros beyond the border, and explicit padding."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        weight, geometry = (draw if seed % 2 else draw_past_borders)(rng)
        if geometry.transposed or isinstance(geometry.padding, str):
            continue
        geometry = replace(geometry, boundary="zeros", groups=1)
        kernel = 1 + rng.random((1, 1, *weight.shape[2:]))
        yield f"seed {seed}: {kernel.shape} {geometry}", kernel, geometry


@pytest.mark.parametrize("rows_of", [compression_rows, embedding_rows])
def test_the_layer_is_a_block_of_its_torus(rows_of):
    for said, weight, geometry in plain_layers(range(150)):
        stencil = stencil_of(weight, geometry)
        if stencil.is_torus or not dense_matrix(weight, geometry).any():
            continue
        rows = rows_of(weight, stencil)
        assert rows is not None, said
        assert is_block_of_torus(weight, geometry, rows), f"{said}, {rows}"


@pytest.mark.parametrize("options", ROUTES)
def test_no_norm_exceeds_its_bound_where_most_rows_read_zeros(options):
    for seed in range(50):
        weight, geometry = draw_past_borders(np.random.default_rng(seed))
        norm = norm_by_matrix(weight, geometry)
        found = norm_along(weight, geometry, **options)
        why = f"seed {seed}: {weight.shape} {geometry}"
        assert found.lower * (1 - ROOM) <= norm <= found.upper * (1 + ROOM), why


# At both frequencies of two points its symbol has norm 1.
HALF = 0.5**0.5
ONE_AT_TWO_POINTS = HALF * np.array([[[0, 1, 1, 0]], [[1, 0, 0, -1]]])[..., None]
THREE_ROWS = Geometry(
    (2, 256), stride=(2, 1), padding=((3, 3), (0, 0)), boundary="zeros"
)


def test_a_torus_of_two_points_for_three_rows_is_too_small():
    one_column = replace(THREE_ROWS, grid=(2, 1))
    norm = norm_by_matrix(ONE_AT_TWO_POINTS, one_column)
    assert norm == pytest.approx(1.5**0.5)
    found = operator_norm(ONE_AT_TWO_POINTS, THREE_ROWS, rtol=0.2)
    assert found.method == "compression"
    assert found.lower <= norm <= found.upper


def test_a_lower_bound_above_the_upper_one_is_raised(monkeypatch):
    def too_small(stencil, taps):
        return replace(extent_of(stencil, taps), points=(2, 1))

    monkeypatch.setattr("convspectra._norm.zero_padding.extent_of", too_small)
    with pytest.raises(ArithmeticError, match="must not exceed the upper one"):
        operator_norm(ONE_AT_TWO_POINTS, THREE_ROWS, rtol=0.2)
