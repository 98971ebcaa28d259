"""Images extended along an axis, against the matrix of zeros and ones this is."""

import numpy as np
import pytest

from convspectra._maps.extension import extension_of


def reads(kind, count, sites, first, rng):
    """Which of `count` columns each of the sites reads, from `first` on."""
    at = np.arange(sites) + first
    return {
        "zeros": np.where((at >= 0) & (at < count), at, -1),
        "circular": at % count,
        "replicate": np.clip(at, 0, count - 1),
        "anything": rng.integers(-1, count, sites),
    }[kind]


@pytest.mark.parametrize("kind", ["zeros", "circular", "replicate", "anything"])
def test_an_extension_and_its_adjoint_are_a_matrix(kind, rng):
    for _ in range(200):
        count, sites = int(rng.integers(1, 9)), int(rng.integers(1, 25))
        read = reads(kind, count, sites, int(rng.integers(-12, 12)), rng)
        found = extension_of(read, count, np.ones(1))
        matrix = (read[:, None] == np.arange(count)).astype(float)
        assert found.sites == sites
        x, y = rng.standard_normal((2, count, 3)), rng.standard_normal((2, sites, 3))
        np.testing.assert_allclose(found.apply(x, 1), matrix @ x, atol=1e-14)
        np.testing.assert_allclose(found.apply_adjoint(y, 1), matrix.T @ y, atol=1e-14)


@pytest.mark.parametrize("kind", ["zeros", "circular", "replicate"])
def test_a_long_axis_takes_margins_alone(kind, rng):
    found = extension_of(reads(kind, 10**6, 10**6 + 6, -3, rng), 10**6, np.ones(1))
    assert found.run == slice(0, 10**6)
    assert found.before.repeats.size + found.after.repeats.size <= 18
