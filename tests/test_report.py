"""Reports: numbers against the dense matrix, rows for JSON, and the plain table."""

import json

import numpy as np
import pytest
from oracles import (
    CASES,
    TORUS,
    descending,
    make,
    norm_by_matrix,
    tolerance,
    values_by_matrix,
)

from convspectra import Geometry, Layer, Report, spectra
from convspectra._demo import demo_layers
from convspectra._report import aligned, cell


@pytest.mark.parametrize("case", CASES)
def test_values_and_norm_are_those_of_the_matrix(case, rng):
    weight, geometry = make(case, rng)
    (found,) = spectra([Layer(case, weight, geometry)]).layers
    assert found.exact == (case in TORUS)
    assert found.shape == weight.shape
    torus = geometry if found.exact else geometry.torus(weight.shape[2:])
    want = values_by_matrix(weight, torus)
    got = descending(found.values)
    atol = tolerance(want, "float64")
    np.testing.assert_allclose(got[: want.size], want[: got.size], atol=atol)
    norm = norm_by_matrix(weight, geometry)
    assert found.norm.lower <= norm * (1 + 1e-12)
    assert norm <= found.norm.upper * (1 + 1e-12)


def test_reshaped_is_the_norm_of_the_kernel_as_a_matrix(rng):
    weight = rng.standard_normal((4, 3, 3, 3))
    (found,) = spectra([Layer("k", weight, Geometry(grid=6))]).layers
    want = np.linalg.norm(weight.reshape(4, -1), 2)
    assert found.reshaped == pytest.approx(want, rel=1e-12)


def test_rows_are_plain_and_ready_for_json(rng):
    weight, geometry = make("strided", rng, "float32")
    zero = Layer("zero", np.zeros((2, 2, 3)), Geometry(grid=4, boundary="zeros"))
    rows = spectra([Layer("k", weight, geometry), zero]).rows()
    assert json.loads(json.dumps(rows, allow_nan=False))[0]["stride"] == [2, 2]
    want = values_by_matrix(weight, geometry)
    first, second = rows
    assert first["count"] == want.size
    assert first["rank"] == np.linalg.matrix_rank(np.diag(want))
    for key, value in {
        "largest": want[0],
        "upper_quartile": np.quantile(want, 0.75),
        "median": np.median(want),
        "lower_quartile": np.quantile(want, 0.25),
        "smallest": want[-1],
    }.items():
        assert first[key] == pytest.approx(value, abs=tolerance(want, "float32"))
    assert (first["values_of"], second["values_of"]) == ("layer", "torus")
    assert second["condition"] is None
    assert (second["norm_lower"], second["norm_upper"], second["rank"]) == (0, 0, 0)


def test_the_table_says_whose_values_these_are(rng):
    exact = Layer("exact", *make("plain", rng))
    approximate = Layer("approximate", *make("zeros", rng))
    lines = str(spectra([exact, approximate])).splitlines()
    assert [line.split()[3] for line in lines[1:3]] == ["layer", "torus"]
    assert "approximation" in lines[-1]
    assert "approximation" not in str(spectra([exact]))
    assert len({len(line) for line in lines[:3]}) == 1


def test_an_empty_report_is_a_heading():
    assert str(spectra([])).startswith("layer")
    assert Report(()).rows() == []


def test_layers_are_taken_one_at_a_time(rng):
    alive = []

    def layers():
        for name in "ab":
            alive.append(name)
            yield Layer(name, *make("plain", rng))

    assert [layer.name for layer in spectra(layers()).layers] == alive


def test_a_layer_without_a_grid_is_refused(rng):
    layer = Layer("k", rng.standard_normal((2, 2, 3)), Geometry(grid=None))
    with pytest.raises(ValueError, match="A grid is needed here"):
        spectra([layer])


def test_torch_layers_give_numpy_values(torch, rng):
    weight, geometry = make("zeros", rng, "float32")
    module = torch.nn.Parameter(torch.asarray(weight))
    (found,) = spectra([Layer("k", module, geometry)]).layers
    (want,) = spectra([Layer("k", weight, geometry)]).layers
    assert isinstance(found.values, np.ndarray)
    assert isinstance(found.norm.upper, float)
    atol = tolerance(want.values, "float32")
    np.testing.assert_allclose(found.values, want.values, atol=atol)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (1.23456, "1.235"),
        ((3, 4), "3x4"),
        (7, "7"),
        ("a\x1b[1m", r"'a\x1b[1m'"),
    ],
)
def test_cells(value, text):
    assert cell(value) == text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("norm_upper", 1.00006, "1.001"),
        ("norm_lower", 0.99998, "0.9999"),
        ("norm_upper", 1 + 1e-9, "1"),
        ("norm_lower", 123.456, "123.4"),
        ("upper", 0.00123456, "0.001235"),
        ("norm_upper", 0.0, "0"),
        ("value", 1.00006, "1"),
    ],
)
def test_ends_are_rounded_outward(key, value, text):
    assert cell(value, key) == text


def test_columns_are_aligned():
    assert aligned(["a", "bc"], [["long", "1"]]) == "a     bc\nlong   1"


def test_the_demo_is_the_same_every_time_and_varied():
    layers, again = demo_layers(), demo_layers()
    assert len({layer.name for layer in layers}) == len(layers) >= 10
    for one, other in zip(layers, again):
        np.testing.assert_array_equal(one.weight, other.weight)
        assert one.weight.dtype == np.float32
        assert max(one.weight.shape) <= 64
    kinds = [layer.geometry for layer in layers]
    assert any(g.transposed for g in kinds)
    assert any(g.groups > 1 for g in kinds)
    assert any(g.dilation == (2, 2) for g in kinds)
    assert any(g.stride == (2, 2) and not g.transposed for g in kinds)
    assert layers[-1].geometry.out_grid(layers[-1].weight.shape[2:]) == (16, 16)
