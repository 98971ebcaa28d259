"""Lanczos, where a Krylov space ends before its steps do."""

import numpy as np
import pytest

from convspectra._norm.lanczos import top_vector, unit_pair


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("rank", [1, 4, 15])
def test_a_map_of_low_rank_has_its_top_vector_from_any_start(rng, rank, dtype):
    matrix = rng.standard_normal((rank, 90)).astype(dtype)
    if dtype == "complex64":
        matrix += 1j * rng.standard_normal(matrix.shape).astype("float32")
    norm = np.linalg.norm(matrix, 2)

    def gram(x):
        return matrix.conj().T @ (matrix @ x)

    second = np.linalg.svd(matrix, full_matrices=False)[2][min(1, rank - 1)].conj()
    for start in (rng.standard_normal(90), second + 1e-3 * rng.standard_normal(90)):
        x = top_vector(gram, start.astype(dtype), rtol=1e-5)
        found = unit_pair(lambda x: matrix @ x, x).gain
        assert found == pytest.approx(norm, rel=1e-3)
