"""Array libraries: which are refused, and that only a factor counts as one."""

import array_api_compat.numpy
import numpy as np
import pytest
from optional import library

from convspectra import (
    Geometry,
    Layer,
    clip,
    dense_matrix,
    operator_norm,
    plan,
    project,
    scale_to,
    singular_values,
    spectra,
    top_vectors,
)
from convspectra._arrays import linalg
from convspectra._arrays.array import is_traced
from convspectra._arrays.linalg import are_definite


class Untried:
    """An array of a library that follows the standard and that nobody has tried."""

    __module__ = "elsewhere.core"
    shape, ndim, dtype = (2, 2, 3), 3, np.dtype("float64")

    def __array_namespace__(self, api_version=None):
        raise AssertionError("work was begun")


@pytest.mark.parametrize(
    "function",
    [
        operator_norm,
        singular_values,
        lambda weight, geometry: clip(weight, geometry, 1.0),
        lambda weight, geometry: Layer("conv", weight, geometry),
        lambda weight, geometry: Layer.from_hwio("conv", weight, geometry),
    ],
)
def test_a_library_that_was_never_tried_is_refused_by_name(function):
    message = r"a NumPy, .* array, got elsewhere\.Untried\. Convert it first"
    with pytest.raises(TypeError, match=message):
        function(Untried(), Geometry(4))


def test_dask_is_refused_by_name():
    weight = library("dask.array").ones((2, 2, 3))
    with pytest.raises(TypeError, match=r"a NumPy, .* array, got dask\.Array\. Conv"):
        operator_norm(weight, Geometry(4))


FUNCTIONS = [
    *(operator_norm, singular_values, top_vectors, dense_matrix, plan),
    lambda weight, geometry: clip(weight, geometry, 1.0),
    lambda weight, geometry: project(weight, geometry, 1.0),
    lambda weight, geometry: scale_to(weight, geometry, 1.0),
    lambda weight, geometry: Layer.from_hwio("conv", weight, geometry),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(2, 2, 1), (2, 2, 3)])
def test_a_masked_array_is_refused(function, shape):
    weight = np.ma.masked_less(np.ones(shape), 0.0)
    with pytest.raises(
        TypeError, match=r"got a masked array\. .* `weight\.filled\(0\)`"
    ):
        function(weight, Geometry(4))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_dtypes_of_torch_that_are_not_computed_with_are_refused(function, dtype, torch):
    weight = torch.empty(2, 2, 3, dtype=getattr(torch, dtype))
    with pytest.raises(TypeError, match=f"must be floating point .* got {dtype}"):
        function(weight, Geometry(4))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_sparse_tensor_is_refused(function, torch):
    weight = torch.ones(2, 2, 3).to_sparse()
    with pytest.raises(TypeError, match=r"got .* layout torch\.sparse_coo\. Convert"):
        function(weight, Geometry(4))


@pytest.mark.parametrize("view", ["conj", "imag"])
def test_a_report_knows_tensors_whose_sign_is_not_yet_applied(view, torch):
    plain = torch.complex(torch.ones(2, 2, 3), torch.arange(3.0).expand(2, 2, 3))
    lazy = plain.conj() if view == "conj" else plain.conj().imag
    (found,) = spectra([Layer("conv", lazy, Geometry(4))]).layers
    np.testing.assert_allclose(
        found.values, singular_values(lazy.resolve_neg(), Geometry(4)), atol=1e-5
    )


def test_only_what_is_computed_inside_a_trace_has_no_numbers(jax):
    weight, seen = jax.numpy.ones((1, 1, 3)), {}

    def note(where):
        def noted(x):
            seen[where] = is_traced(weight), is_traced(np.ones(3))
            return x

        return noted

    note("at once")(0.0)
    jax.grad(note("grad"))(1.0)
    jax.vmap(note("vmap"))(jax.numpy.ones(2))
    jax.jit(note("jit"))(1.0)
    jax.lax.cond(True, note("cond"), lambda x: x, 1.0)
    jax.lax.scan(lambda x, _: (note("scan")(x), None), 1.0, None, length=2)
    jax.eval_shape(note("eval_shape"), 1.0)
    inside = ("jit", "cond", "scan", "eval_shape")
    assert seen == {where: (where in inside, False) for where in seen}
    assert len(seen) == 7


def test_an_array_that_jit_closes_over_has_the_answers_of_its_numbers(jax, rng):
    plain, geometry = rng.standard_normal((2, 2, 3)).astype("float32"), Geometry(5)
    values = np.linalg.svd(dense_matrix(plain, geometry), compute_uv=False)
    weight, bound = jax.numpy.asarray(plain), values[0] / 2

    @jax.jit
    def answers():
        norm = operator_norm(weight, geometry)
        return (
            *(norm.lower, norm.upper, singular_values(weight, geometry)),
            *(clip(weight, geometry, bound), project(weight, geometry, bound).weight),
        )

    lower, upper, found, clipped, nearest = map(np.asarray, answers())
    assert lower <= values[0] * (1 + 1e-6)
    assert values[0] * (1 - 1e-6) <= upper <= values[0] * 1.001
    np.testing.assert_allclose(np.sort(found, None)[::-1], values, atol=1e-5)
    np.testing.assert_allclose(clipped, clip(plain, geometry, bound), atol=1e-5)
    inside = np.linalg.norm(dense_matrix(nearest, geometry), 2)
    assert 0.99 * bound < inside <= bound * (1 + 1e-6)


def definite_and_not(xp):
    """Hermitian matrices: definite, indefinite, definite, with NaN, semidefinite."""
    matrices = np.tile(np.array([[2.0, 1.0], [1.0, 2.0]]), (5, 1, 1))
    matrices[1, 1, 1] = -2.0
    matrices[3, 0, 1] = matrices[3, 1, 0] = np.nan
    matrices[4] = 0.0
    return xp.asarray(matrices)


@pytest.mark.parametrize("faster_torch", [True, False])
def test_definite_matrices_are_told_from_others(faster_torch, xp, monkeypatch):
    if xp.__name__.endswith("tensorflow"):
        return  # all that decides by numbers gets them as NumPy's
    if not faster_torch:
        monkeypatch.setattr(linalg, "_faster_torch", lambda *_: None)
        if xp.__name__ == "torch":
            return  # there is no other way
    found = are_definite(definite_and_not(xp))
    assert found.tolist() == [True, False, True, False, False]


def nan_factors(matrices):
    """What some libraries give where a factorization has failed."""
    return matrices * np.nan


def test_a_factor_of_nan_is_none(monkeypatch):
    monkeypatch.setattr(linalg, "_faster_torch", lambda *_: None)
    monkeypatch.setattr(array_api_compat.numpy.linalg, "cholesky", nan_factors)
    assert not are_definite(definite_and_not(np)).any()
    weight = np.array([[[1.0, 2.0, 3.0]]])
    with pytest.raises(ArithmeticError, match="LAPACK has failed"):
        operator_norm(weight, Geometry(5, boundary="zeros"))


def test_a_factor_of_nan_is_none_in_another_library(monkeypatch):
    xp = library("array_api_strict")
    monkeypatch.setattr(xp.linalg, "cholesky", nan_factors)
    weight = xp.asarray(np.ones((2, 2, 3)))
    for boundary in ("circular", "zeros"):
        with pytest.raises(ArithmeticError, match="LAPACK has failed"):
            operator_norm(weight, Geometry(5, boundary=boundary))


def test_a_factor_of_nan_is_none_in_torch(torch, monkeypatch):
    def cholesky_ex(matrices):
        info = torch.zeros(len(matrices), dtype=torch.int32)
        return torch.return_types.linalg_cholesky_ex((nan_factors(matrices), info))

    monkeypatch.setattr(torch.linalg, "cholesky_ex", cholesky_ex)
    assert not are_definite(definite_and_not(torch)).any()
