"""What rows read, judged by the layer's own matrix."""

import tracemalloc

import numpy as np
from random_layers import draw

from convspectra import Geometry, dense_matrix
from convspectra._layer.boundary import BOUNDARIES
from convspectra._layer.stencil import some_row_reads_all_taps, stencil_of


def reads_all_taps(shape, geometry):
    """Whether some row of the matrix has all taps, each in a column of its own."""
    taps = np.random.default_rng(0).random(shape[2:])  # no sum of them is another one
    weight = np.zeros(shape)
    weight[0, 0] = taps
    matrix = dense_matrix(weight, geometry)
    rows = matrix.T if geometry.transposed else matrix
    return any(np.isin(taps, row).all() for row in rows)


def test_rows_of_random_layers_read_all_taps_where_their_matrix_has_them():
    answers = set()
    for seed in range(300):
        weight, geometry = draw(np.random.default_rng(seed))
        answer = reads_all_taps(weight.shape, geometry)
        stencil = stencil_of(weight, geometry)
        assert some_row_reads_all_taps(stencil) == answer, f"seed {seed}: {geometry}"
        answers.add((geometry.boundary, answer))
    assert len(answers) == 2 * len(BOUNDARIES)


def test_with_no_grid_some_grid_has_such_a_row():
    geometry = Geometry(None, boundary="zeros")
    assert some_row_reads_all_taps(stencil_of(np.ones((1, 1, 5)), geometry))


def test_rows_of_a_large_grid_are_not_listed():
    stencil = stencil_of(np.ones((1, 1, 3)), Geometry(2**22, boundary="zeros"))
    tracemalloc.start()
    try:
        assert some_row_reads_all_taps(stencil)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**20
