"""The matrix that numbers come from, judged by torch's own convolution on a basis."""

import numpy as np
import pytest
from oracles import IN_TORCH, OTHERS, make, tolerance, torch_matrix

from convspectra import operator_norm, singular_values
from convspectra._layer.stencil import stencil_of
from convspectra._maps.matrix import group_matrices, matrix_entries

BY_MATRIX = [case for case in OTHERS if case in IN_TORCH]


@pytest.mark.parametrize("case", IN_TORCH)
def test_the_matrices_of_groups_are_what_torch_computes(case, rng, torch):
    weight, geometry = make(case, rng)
    want = torch_matrix(torch, weight, geometry)
    stencil = stencil_of(weight, geometry)
    found = group_matrices(weight, stencil)
    assert found.size == matrix_entries(stencil)
    groups, rows, columns = found.shape
    whole = np.zeros((groups, rows, groups, columns))
    whole[np.arange(groups), :, np.arange(groups)] = found
    whole = whole.reshape(groups * rows, groups * columns)
    whole = whole.T if geometry.transposed else whole
    np.testing.assert_allclose(whole, want, atol=1e-12)


@pytest.mark.parametrize("case", BY_MATRIX)
def test_norms_and_values_by_matrix_are_those_of_torch(case, rng, torch):
    weight, geometry = make(case, rng)
    matrix = torch_matrix(torch, weight, geometry)
    want = np.linalg.svd(matrix, compute_uv=False)
    room = tolerance(want, "float64")
    norm = operator_norm(weight, geometry)
    assert norm.method == "matrix"
    assert norm.lower <= want[0] + room
    assert want[0] - room <= norm.upper <= want[0] * (1 + 1e-4)
    found = np.sort(singular_values(weight, geometry), axis=None)[::-1]
    np.testing.assert_allclose(found, want[: found.size], atol=room)
