"""Derivatives through norms, in every way that PyTorch differentiates."""

import pytest
from optional import needed

torch = needed("torch")

from torch import func, nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

import convspectra as cs  # noqa: E402
from convspectra.torch import bounded, layers, penalty  # noqa: E402

# PyTorch's own forward mode is scripted, and warns that scripts are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

STEP = 1e-6
GRID = (5, 5)


def kernel():
    return torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(0)).double()


def by_operator_norm(weight):
    geometry = cs.Geometry(GRID, boundary="zeros")
    return cs.operator_norm(weight, geometry, 1e-9).upper


def by_bounded():
    """Of a scaled weight, whose norm is constant while its entries are not."""
    module = bounded(convolution(), 0.1, grid=GRID, certify="always")
    scaling = module.parametrizations.weight[0]
    return lambda weight: (scaling(weight) ** 3).sum()


def by_penalty(kind):
    module = convolution()
    found = layers(module, torch.zeros(1, 2, *GRID).double())

    def total(weight):
        with nn.utils.stateless._reparametrize_module(module, {"weight": weight}):
            return penalty(module, 0.1, found, kind=kind)

    return total


def convolution():
    return nn.Conv2d(2, 2, 3, padding=1, bias=False, dtype=torch.float64)


FUNCTIONS = {
    "operator_norm": by_operator_norm,
    "bounded": by_bounded(),
    "penalty-norm": by_penalty("norm"),
    "penalty-values": by_penalty("values"),
}


def along(function, weight, direction):
    # Under vmap norms are certified: elsewhere a penalty may go by estimates.
    moved = torch.stack([weight + sign * STEP * direction for sign in (1, -1)])
    ahead, behind = func.vmap(function)(moved)
    return float(ahead - behind) / (2 * STEP)


def by_dual_numbers(function, weight, direction):
    with forward_ad.dual_level():
        found = function(forward_ad.make_dual(weight, direction))
        return forward_ad.unpack_dual(found).tangent


WAYS = {
    "jvp": lambda f, w, d: func.jvp(f, (w,), (d,))[1],
    "dual numbers": by_dual_numbers,
    "grad": lambda f, w, d: (func.grad(f)(w) * d).sum(),
    "jacfwd": lambda f, w, d: (func.jacfwd(f)(w) * d).sum(),
    "vmap of grad": lambda f, w, d: (func.vmap(func.grad(f))(w[None])[0] * d).sum(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_derivatives_are_those_of_finite_differences(name, way):
    function, weight = FUNCTIONS[name], kernel()
    direction = kernel().flip(0)
    found = WAYS[way](function, weight, direction)
    want = along(function, weight, direction)
    # The norm of a layer is certified to 1e-4; so is its derivative, nearly.
    assert float(found) == pytest.approx(want, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_many_weights_at_once(name):
    weights = torch.stack([kernel(), 2 * kernel()])
    found = func.vmap(FUNCTIONS[name])(weights)
    want = [float(FUNCTIONS[name](weight)) for weight in weights]
    assert found.tolist() == pytest.approx(want, rel=1e-3)


def twice_by_reverse(function, weight):
    return func.grad(lambda w: func.grad(function)(w).sum())(weight)


def twice_by_forward(function, weight):
    def tangent(w):
        return func.jvp(function, (w,), (weight,))[1]

    return func.jvp(tangent, (weight,), (weight,))[1]


def twice_by_autograd(function, weight):
    weight = weight.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(weight), weight, create_graph=True)
    return torch.autograd.grad(gradient.sum(), weight)[0]


TWICE = [
    *(twice_by_reverse, twice_by_forward, twice_by_autograd),
    lambda f, w: func.hessian(f)(w),
    lambda f, w: func.grad(lambda w: func.jvp(f, (w,), (w,))[1])(w),
]


@pytest.mark.parametrize("twice", TWICE)
@pytest.mark.parametrize("name", ["operator_norm", "bounded", "penalty-norm"])
def test_a_second_derivative_is_refused_and_never_zero(name, twice):
    with pytest.raises(RuntimeError, match="differentiable once"):
        twice(FUNCTIONS[name], kernel())


def test_gradients_for_each_sample_of_a_bounded_layer():
    module = bounded(convolution(), 0.1, grid=GRID, certify="always")
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    x = torch.randn(3, 2, *GRID).double()

    def loss(parameters, sample):
        return func.functional_call(module, parameters, sample[None]).square().sum()

    each = func.vmap(func.grad(loss), in_dims=(None, 0))(parameters, x)
    module(x).square().sum().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(each[name].sum(0), parameter.grad)


def test_constants_for_many_weights_at_once():
    geometry = cs.Geometry(GRID)
    weights = torch.stack([kernel(), 2 * kernel()])
    found = func.vmap(lambda weight: cs.clip(weight, geometry, 0.5))(weights)
    for one, weight in zip(found, weights):
        assert torch.equal(one, cs.clip(weight, geometry, 0.5))


def test_infinite_weights_are_refused_under_transformations_too():
    with pytest.raises(ValueError, match="must be finite"):
        func.vmap(by_operator_norm)(torch.full((2, 2, 2, 3, 3), torch.nan))
