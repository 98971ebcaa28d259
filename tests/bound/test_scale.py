"""Scaling down: certified by the norm that is known, and by what rounding adds."""

import math

import numpy as np
import pytest
from oracles import norm_by_matrix

from convspectra import Geometry, scale_to
from convspectra._bound import scale
from convspectra._bound.scale import Certified, scale_down
from convspectra._layer.stencil import stencil_of

GEOMETRY = Geometry(6)


@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [
        ("float32", -20),
        ("float32", 0),
        ("float32", 30),
        ("float64", -200),
        ("float64", 0),
        ("float64", 150),
    ],
)
def test_one_norm_is_enough(dtype, exponent, rng, monkeypatch):
    weight = (rng.standard_normal((3, 4, 3, 3)) * 10.0**exponent).astype(dtype)
    norm = norm_by_matrix(weight.astype("float64") / 10.0**exponent, GEOMETRY)
    bound = 0.7 * norm * 10.0**exponent
    calls, upper_bound = [], scale.upper_bound
    monkeypatch.setattr(
        scale, "upper_bound", lambda *args: calls.append(1) or upper_bound(*args)
    )
    found = scale_down(weight, [stencil_of(weight, GEOMETRY)], bound)
    assert len(calls) == 1
    scaled = found.weight.astype("float64") / 10.0**exponent
    upper = found.norm.upper
    assert norm_by_matrix(scaled, GEOMETRY) * 10.0**exponent <= upper <= bound
    assert upper >= bound * (1 - 2e-5)
    np.testing.assert_allclose(scaled, 0.7 * weight / 10.0**exponent, rtol=2e-5)


def test_rounding_that_matters_is_part_of_the_bound():
    """Every entry is rounded up, by as much as there is between two numbers."""
    step = 2.0**-20
    weight = np.full((8, 8, 3, 3), 1 + step, dtype=np.float32)
    upper = 8 * 9 * (1 + step)
    bound = upper * (1 - 2.0**-25)  # a product that is rounded back to the weight
    norm = Certified(upper, "frequencies")
    found = scale_down(weight, [stencil_of(weight, GEOMETRY)], bound, norm)
    assert norm_by_matrix(found.weight.astype("float64"), GEOMETRY) <= found.norm.upper
    assert found.norm.upper <= bound


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("outputs", [1, 64])
def test_a_norm_above_the_bound_by_rounding_alone_takes_few_trials(
    dtype, outputs, monkeypatch
):
    """The norm is that of rank one: what is spared all goes to the rounding."""
    weight = np.full((outputs, 64, 1, 1), 1 / 8, dtype=dtype)
    trials, frobenius_norm = [], scale.frobenius_norm
    monkeypatch.setattr(
        scale, "frobenius_norm", lambda x: trials.append(1) or frobenius_norm(x)
    )
    bound = math.sqrt(outputs)
    norm = Certified(bound * (1 + 1e-15), "frequencies")
    stencils = [stencil_of(weight, Geometry(8))]
    found = scale_down(weight, stencils, bound, norm)
    assert len(trials) < 100
    assert found.norm.upper <= bound


def test_half_precision_has_its_norm_certified_again(torch, monkeypatch):
    weight = torch.randn((16, 16, 3, 3), generator=torch.Generator().manual_seed(0))
    calls, upper_bound = [], scale.upper_bound
    monkeypatch.setattr(
        scale, "upper_bound", lambda *args: calls.append(1) or upper_bound(*args)
    )
    scaled = scale_to(weight.bfloat16(), GEOMETRY, 3.0)
    assert len(calls) > 1
    assert norm_by_matrix(scaled.double().numpy(), GEOMETRY) <= 3.0
