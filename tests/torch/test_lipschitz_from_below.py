"""The lower bound of a model, at examples that users draw."""

import math

import pytest
from optional import needed

torch = needed("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from convspectra.torch import _quotient, lipschitz  # noqa: E402


class Direction(nn.Module):
    """Which is constant along every ray."""

    def forward(self, x):
        return F.normalize(x.flatten(1))


def gain_at(model, x):
    jacobian = torch.autograd.functional.jacobian(model, x.double())
    return float(torch.linalg.matrix_norm(jacobian.reshape(-1, x.numel()), 2))


@pytest.mark.parametrize("seed", [0, 1, _quotient.SEEDS[0]])
def test_an_example_drawn_with_any_seed_has_a_lower_bound(seed):
    torch.manual_seed(seed)
    x = torch.randn(1, 3, 5, 5)
    gain = gain_at(Direction(), x)
    assert 0.95 * gain <= lipschitz(Direction(), x).lower <= gain * 1.01


class Hidden(nn.Module):
    """Which looks like the identity to a trace, and is it along one ray."""

    def __init__(self, x):
        super().__init__()
        self.register_buffer("ray", F.normalize(x))

    def forward(self, x):
        z = torch.zeros_like(x)
        z.data = 9 * (F.normalize(x) - self.ray)
        return x + z


def test_what_a_trace_hides_beside_the_ray_is_noticed():
    torch.manual_seed(0)
    x = torch.randn(1, 6)
    bounds = lipschitz(Hidden(x), x)
    assert bounds.upper == math.inf
    assert "does not compute the same" in bounds.unknown["Hidden"]
