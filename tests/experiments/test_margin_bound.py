"""The margin bound's parts, judged by the matrices of the layers and of the network."""

import math

import numpy as np
import pytest
import torch

import convspectra as cs
from experiments.images import Images
from experiments.margin_bound import Step, complexity, margins, rows_norm, steps_of
from experiments.network import made

LAYERS = {
    "plain": ((3, 2, 3, 3), {"grid": (5, 4), "padding": 1}),
    "strided": ((2, 3, 3, 3), {"grid": (6, 6), "padding": 1, "stride": 2}),
    "strided-odd": ((2, 3, 3, 3), {"grid": (5, 7), "padding": 1, "stride": 2}),
    "one-by-one": ((4, 3, 1, 1), {"grid": (4, 4), "padding": 0, "stride": 2}),
    "wide": ((2, 2, 5, 3), {"grid": (4, 6), "padding": (2, 1)}),
}


@pytest.mark.parametrize("case", LAYERS)
def test_the_norm_of_rows_is_that_of_the_matrix(case, rng):
    shape, geometry = LAYERS[case]
    weight = rng.standard_normal(shape)
    geometry = cs.Geometry(boundary="zeros", **geometry)
    matrix = cs.dense_matrix(weight, geometry)
    want = np.linalg.norm(matrix, axis=1).sum()
    got = rows_norm(torch.from_numpy(weight), geometry)
    assert got == pytest.approx(want, rel=1e-12)


def test_a_circular_layer_is_refused():
    geometry = cs.Geometry(grid=(4, 4), padding=1)
    with pytest.raises(ValueError, match="must state its grid and zero padding"):
        rows_norm(torch.zeros(1, 1, 3, 3), geometry)


@pytest.fixture(params=[True, False], ids=["BatchNorm", "no BatchNorm"])
def network(request):
    """A small residual network, its BatchNorms far from how they begin."""
    made_one = made((2, 3), 2, request.param, 0)
    generator = torch.Generator().manual_seed(1)
    for module in made_one.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.uniform_(-1.5, 1.5, generator=generator)
            module.bias.data.uniform_(-1, 1, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    return made_one.double().eval()


def test_the_product_of_norms_bounds_what_the_network_does(network):
    """Between any two inputs: the chain has the whole network in it."""
    example = torch.zeros(1, 3, 4, 4, dtype=torch.float64)
    product = math.prod(step.norm for step in steps_of(network, example))
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(64, 3, 4, 4, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        moved = network(x + 1e-3) - network(x)
    gain = moved.norm(dim=1).max() / (1e-3 * math.sqrt(48))
    assert gain <= product


def test_steps_are_those_of_matrices_written_out(network):
    """Each step of the first block with a shortcut of its own, as one matrix."""
    example = torch.zeros(1, 3, 4, 4, dtype=torch.float64)
    steps = steps_of(network, example)
    assert len(steps) == 1 + 3 * 4 + 2
    block = network.blocks[2]  # the first of the second stage, with stride 2
    w1 = _matrix(lambda x: _scaled(block.norm2, block.conv1(x)), (2, 4, 4))
    w2 = _matrix(block.conv2, (3, 2, 2))
    side = _matrix(block.shortcut, (2, 4, 4))
    both, last = steps[1 + 3 * 2 + 1 : 1 + 3 * 2 + 3]
    assert both.distance == pytest.approx(_rows(w1) + _rows(side), rel=1e-6)
    assert both.norm >= np.linalg.norm(np.vstack([w1, side]), 2) * (1 - 1e-9)
    assert last.distance == pytest.approx(_rows(w2), rel=1e-6)
    carried = np.hstack([np.eye(12), w2])
    assert last.norm == pytest.approx(np.linalg.norm(carried, 2), rel=2e-4)
    assert last.norm >= np.linalg.norm(carried, 2) * (1 - 1e-9)


def _scaled(norm, x):
    if isinstance(norm, torch.nn.Identity):
        return x
    return norm(x) - norm(torch.zeros_like(x))


def _matrix(function, shape):
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        return function(basis).flatten(1).T.numpy()


def _rows(matrix):
    return np.linalg.norm(matrix, axis=1).sum()


def test_the_complexity_is_the_formula():
    steps = [Step(2.0, 3.0), Step(0.5, 7.0)]
    want = 1.0 * ((3 / 2) ** (2 / 3) + 14 ** (2 / 3)) ** 1.5
    assert 10 ** complexity(steps) == pytest.approx(want)


def test_margins_are_right_less_the_largest_other():
    logits = torch.tensor([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]])
    images = Images(logits, torch.tensor([1, 2]))
    assert margins(torch.nn.Identity(), images).tolist() == [3.0, -1.0]
