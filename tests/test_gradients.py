"""Derivatives through the norm and the values, against finite differences."""

import numpy as np
import pytest
from oracles import make
from routes import norm_along

from convspectra import Geometry, operator_norm, singular_values

STEP = 1e-5
ROUTES = [
    "plain",
    "strided",
    "grouped",
    "kernel-past-grid",
    "transposed-strided",
    "one-by-one",
    "stride-past-kernel",
    "patches",
    "transposed-one-by-one",
    "zeros",
    "reflect-strided",
    "circular-rows-repeated",
]


def upper(weight, geometry):
    return operator_norm(weight, geometry, 1e-9).upper


def total(weight, geometry):
    """A smooth symmetric function of all values."""
    return (singular_values(weight, geometry) ** 3).sum()


def differences(function, weight, geometry, rng):
    """A random direction and the derivative along it."""
    direction = rng.standard_normal(weight.shape)
    if np.iscomplexobj(weight):
        direction = direction + 1j * rng.standard_normal(weight.shape)
    ahead = float(function(weight + STEP * direction, geometry))
    behind = float(function(weight - STEP * direction, geometry))
    return direction, (ahead - behind) / (2 * STEP)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("function", [upper, total])
@pytest.mark.parametrize("case", ROUTES)
def test_torch_differentiates(case, function, dtype, torch, rng):
    weight, geometry = make(case, rng, dtype)
    direction, want = differences(function, weight, geometry, rng)
    tensor = torch.tensor(weight, requires_grad=True)
    function(tensor, geometry).backward()
    got = np.sum(np.real(np.conj(tensor.grad.numpy()) * direction))
    assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("function", [upper, total])
@pytest.mark.parametrize("case", ROUTES)
def test_jax_differentiates_inside_and_outside_jit(case, function, jax, rng):
    weight, geometry = make(case, rng)
    direction, want = differences(function, weight, geometry, rng)
    for differentiate in (
        jax.grad(function),
        jax.jit(jax.grad(function), static_argnums=1),
    ):
        got = np.sum(np.asarray(differentiate(weight, geometry)) * direction)
        assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("case", ["zeros", "reflect-strided", "circular-rows-repeated"])
def test_the_end_that_an_embedding_gives_has_a_derivative(case, torch, rng):
    def embedded(weight, geometry):
        return norm_along(weight, geometry, method="embedding").upper

    weight, geometry = make(case, rng)
    direction, want = differences(embedded, weight, geometry, rng)
    tensor = torch.tensor(weight, requires_grad=True)
    embedded(tensor, geometry).backward()
    assert np.sum(tensor.grad.numpy() * direction) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"dilation": 3}, {"stride": 2}])
def test_the_supremum_has_a_derivative(options, torch, rng):
    weight, geometry = rng.standard_normal((3, 2, 3, 3)), Geometry(None, **options)
    direction, want = differences(upper, weight, geometry, rng)
    tensor = torch.tensor(weight, requires_grad=True)
    upper(tensor, geometry).backward()
    assert np.sum(tensor.grad.numpy() * direction) == pytest.approx(want, rel=1e-3)


def test_the_largest_value_has_the_derivative_of_the_norm(torch, rng):
    # Conjugate frequencies repeat the top value: any one of them must do.
    weight, geometry = make("plain", rng)
    gradients = []
    for function in (upper, lambda w, g: singular_values(w, g).amax()):
        tensor = torch.tensor(weight, requires_grad=True)
        function(tensor, geometry).backward()
        gradients.append(tensor.grad.numpy())
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-5)


REPEATED = np.eye(3)[:, :, None, None] * np.ones((1, 1, 1, 1))


@pytest.mark.parametrize("weight", [np.zeros((3, 3, 3, 3)), REPEATED])
@pytest.mark.parametrize("geometry", [{}, {"stride": 2}, {"boundary": "zeros"}])
@pytest.mark.parametrize("function", [upper, total])
def test_derivatives_are_finite_at_zero_and_at_repeated_values(
    weight, geometry, function, torch, jax
):
    geometry = Geometry(4, **geometry)
    tensor = torch.tensor(weight, requires_grad=True)
    function(tensor, geometry).backward()
    assert bool(torch.all(torch.isfinite(tensor.grad)))
    assert np.all(np.isfinite(jax.grad(function)(weight, geometry)))


METHODS = ("matrix", "banded", "compression", "embedding", "reshaped")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_norm_of_zero_has_a_derivative_by_every_method(method, groups, torch):
    tensor = torch.zeros(4, 4 // groups, 3, 3, requires_grad=True)
    geometry = Geometry(6, groups=groups, boundary="zeros")
    norm_along(tensor, geometry, method=method).upper.backward()
    assert bool(torch.all(torch.isfinite(tensor.grad)))


@pytest.mark.parametrize("stride", [1, 2])
def test_derivatives_of_depthwise_values_are_finite_at_zero(stride, torch, jax):
    geometry = Geometry(4, groups=3, stride=stride)

    def plain_sum(weight):
        return singular_values(weight, geometry).sum()

    tensor = torch.zeros(3, 1, 3, 3, requires_grad=True)
    plain_sum(tensor).backward()
    assert bool(torch.all(torch.isfinite(tensor.grad)))
    assert np.all(np.isfinite(jax.grad(plain_sum)(np.zeros((3, 1, 3, 3)))))


def test_the_derivative_keeps_the_dtype_of_the_weight(torch):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        tensor = torch.ones(2, 2, 3, dtype=dtype, requires_grad=True)
        operator_norm(tensor, Geometry(4)).upper.backward()
        assert tensor.grad.dtype == dtype
        assert bool(torch.all(torch.isfinite(tensor.grad)))


@pytest.mark.parametrize("shape", [(70, 70), (66, 90), (90, 66)])
def test_the_norm_of_a_large_matrix_has_a_derivative(shape, torch, rng):
    weight = torch.tensor(rng.standard_normal((*shape, 1, 1)), requires_grad=True)
    operator_norm(weight, Geometry(5)).upper.backward()
    u, _, vh = np.linalg.svd(weight.detach().numpy()[:, :, 0, 0])
    want = np.outer(u[:, 0], vh[0])
    np.testing.assert_allclose(weight.grad.numpy()[:, :, 0, 0], want, atol=1e-3)
