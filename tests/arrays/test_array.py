"""Array libraries: which are refused, and that only a factor counts as one."""

import array_api_compat.numpy
import numpy as np
import pytest
from optional import library

from convspectra import Geometry, Layer, clip, operator_norm, singular_values
from convspectra._arrays import linalg
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
