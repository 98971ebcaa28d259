"""Half-spaces by their matrices, whole or in terms, are those of their kernels."""

import numpy as np
import pytest

from convspectra import Geometry
from convspectra._bound.blocks import torus_blocks
from convspectra._bound.half_spaces import DenseHalfSpaces, LowRankHalfSpaces
from convspectra._layer.stencil import stencil_of

COUNT, RANK = 5, 3


@pytest.fixture(params=[1, 2], ids=["plain", "strided"])
def blocks(request, rng):
    weight = rng.standard_normal((4, 3, 3, 3))
    return torus_blocks(weight, stencil_of(weight, Geometry(8, stride=request.param)))


@pytest.fixture(params=["dense", "low rank"])
def both(request, blocks, rng):
    """Half-spaces, and their kernels g, each Re phase* B, tap by tap."""
    rows, columns = blocks.shape
    numbers = rng.standard_normal((2, COUNT, RANK, rows + columns))
    left, right = np.split(numbers[0] + 1j * numbers[1], [rows], axis=2)
    where = np.array([1, 4, 2, 4, 0])
    matrices = np.einsum("jri,jrk->jik", left, right.conj())
    phase, taps = blocks.phases(where), blocks.taps
    if request.param == "dense":
        found = DenseHalfSpaces.of(matrices, phase, taps)
    else:
        owner = np.repeat(np.arange(COUNT), RANK)
        flat = (x.reshape(COUNT * RANK, -1) for x in (left, right))
        found = LowRankHalfSpaces(*flat, owner, phase, where)
    width = taps.channel_shape[2]
    kernels = np.empty((COUNT, *taps.weight.shape))
    for number, own in enumerate(taps.phases):
        component = matrices[:, :, width * number : width * (number + 1)]
        for tap in range(own.start, own.stop):
            turned = phase[:, tap].conj()[:, None, None] * component
            kernels[:, tap] = turned.real.reshape(COUNT, -1)
    return found, kernels


def test_products_and_sums_are_those_of_the_kernels(both, blocks, rng):
    found, kernels = both
    gram = np.einsum("jtn,ktn->jk", kernels, kernels)
    atol = 1e-5 * np.abs(gram).max()
    np.testing.assert_allclose(found.products(found, blocks.taps), gram, atol=atol)
    x = rng.standard_normal(COUNT)
    want = np.einsum("j,jtn->tn", x, kernels)
    atol = 1e-5 * np.abs(want).max()
    np.testing.assert_allclose(found.change(x, blocks.taps), want, atol=atol)


def test_some_of_them_and_others_are_in_order(both, blocks):
    found, kernels = both
    own = np.array([True, False, True, False, True])
    gram = np.einsum("jtn,ktn->jk", kernels, kernels)
    joined = found.only(own).joined(found).only(np.arange(3 + COUNT) != 1)
    order = [0, 4, 0, 1, 2, 3, 4]
    np.testing.assert_allclose(
        joined.products(found, blocks.taps),
        gram[order],
        atol=1e-5 * np.abs(gram).max(),
    )
    x = np.arange(1.0, 8.0)
    want = np.einsum("j,jtn->tn", x, kernels[order])
    np.testing.assert_allclose(
        joined.change(x, blocks.taps), want, atol=1e-5 * np.abs(want).max()
    )
