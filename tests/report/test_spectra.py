"""Reports: numbers against the dense matrix, rows for JSON, and the plain table."""

import json
from typing import ClassVar

import numpy as np
import pytest
from optional import needed
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
from convspectra._text import aligned, cell, tree


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
    assert [line.split()[-2] for line in lines[1:3]] == ["layer", "torus"]
    assert "do not bound them" in lines[-1]
    assert "do not bound them" not in str(spectra([exact]))
    assert len({len(line) for line in lines[:3]}) == 1


def test_values_of_a_torus_that_exceed_single_precision_are_finite():
    weight = np.array([[[3e38, 1e30, 3e38]]], dtype="float32")
    row = spectra([Layer("k", weight, Geometry(1, boundary="zeros"))]).rows()[0]
    assert row["norm_upper"] == pytest.approx(1e30, rel=1e-3)
    assert row["largest"] == pytest.approx(6e38)


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


def test_a_layer_without_a_grid_has_a_norm_for_every_size_and_no_values(rng):
    weight = rng.standard_normal((2, 2, 3))
    report = spectra([Layer("k", weight, Geometry(grid=None, boundary="zeros"))])
    (found,) = report.layers
    assert (found.values, found.sorted_values().size) == (None, 0)
    for n in (3, 8, 30):
        geometry = Geometry(grid=n, boundary="zeros")
        assert norm_by_matrix(weight, geometry) <= found.norm.upper
    (row,) = json.loads(json.dumps(report.rows(), allow_nan=False))
    assert row["norm_method"] == "supremum"
    assert {row[key] for key in ("values_of", "count", "smallest", "above_one")} == {
        None
    }
    assert "No input size is stated for some layers" in str(report)
    assert "They have no values." in str(report)


def test_the_summary_names_the_largest_norms_and_multiplies_all(rng):
    layers = [
        Layer(f"l{i}", (i + 1) * np.eye(2)[..., None], Geometry(1)) for i in range(5)
    ]
    report = spectra(layers)
    found = report.summary()
    assert found["largest"] == ["l4", "l3", "l2"]
    assert found["log10_product_upper"] == pytest.approx(np.log10(120))
    assert (
        "Largest norms: l4 5.001, l3 4.001, l2 3.001. Product of all norms: 10^2.079"
        in str(report)
    )
    zero = spectra([*layers, Layer("zero", np.zeros((1, 1, 3)), Geometry(4))])
    assert zero.summary()["log10_product_lower"] is None
    assert "Product of all norms: 0 to 0." in str(zero)
    assert Report(()).summary()["log10_product_upper"] is None


def test_what_the_layers_say_they_skipped_is_kept(rng):
    class Found(list):
        skipped: ClassVar = {"attention": "is no convolution", "norm": "has no kernel"}

    report = spectra(Found([Layer("k", *make("plain", rng))]))
    assert report.skipped == Found.skipped
    assert "Skipped (is no convolution): 'attention'." in str(report)
    many = Report((), {f"b{i}": "is short" for i in range(9)})
    assert "'b4', 'b5', and 3 more." in str(many)
    assert "b6" not in str(many)


def test_a_data_frame_has_a_row_per_layer(rng):
    report = spectra([Layer(case, *make(case, rng)) for case in ("plain", "zeros")])
    frame = report.to_dataframe()
    assert list(frame.index) == ["plain", "zeros"]
    assert frame["norm_upper"]["zeros"] == report.layers[1].norm.upper


def test_notebooks_get_a_table_without_markup_from_names(rng):
    html = spectra([Layer("<b>x</b>", *make("plain", rng))])._repr_html_()
    assert "<td>&lt;b&gt;x&lt;/b&gt;</td>" in html
    assert html.count("<tr>") == 2


def test_names_form_a_tree():
    names = [
        "stem.weight",
        "a.0.c.weight",
        "a.0.d.weight",
        "a.1.c",
        "b.x.y",
        "b.z/kernel:0",
    ]
    assert [line[0] for line in tree([[name, "1"] for name in names])] == [
        "stem.weight",
        "a",
        "  0",
        "    c.weight",
        "    d.weight",
        "  1.c",
        "b",
        "  x.y",
        "  z/kernel:0",
    ]
    assert tree([["x", "1"], ["x", "2"]]) == [["x", "1"], ["x", "2"]]
    again = ["a.x.conv", "b.conv", "a.y.conv", "a.x.last"]
    assert [line[0] for line in tree([[name, "1"] for name in again])] == [
        "a",
        "  x",
        "    conv",
        "    last",
        "  y.conv",
        "b.conv",
    ]
    assert tree([]) == []


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


def test_columns_are_aligned():
    assert aligned(["a", "bc"], [["long", "1"]]) == "a     bc\nlong   1"


def test_jax_arrays_need_no_double_precision(rng):
    jax = needed("jax")
    weight = rng.standard_normal((2, 3, 3, 3)).astype("float32")
    (want,) = spectra([Layer("a", weight, Geometry(grid=(4, 4)))]).layers
    with jax.enable_x64(False):
        kernel = jax.numpy.asarray(weight)
        (found,) = spectra([Layer("a", kernel, Geometry(grid=(4, 4)))]).layers
    np.testing.assert_allclose(found.values, want.values, rtol=1e-5, atol=1e-5)
