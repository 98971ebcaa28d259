"""Documents: thinned for drawing, with the extremes that were there."""

import json

import numpy as np
import pytest
from oracles import make

from convspectra import Geometry, Layer, Report, spectra
from convspectra._report.from_file import POINTS, SIDE, document_of, thinned


@pytest.mark.parametrize("count", [1, 2, POINTS, POINTS + 1, 10**4, 10**6])
def test_a_thinned_curve_keeps_both_ends_and_goes_up(count):
    ranks = thinned(count)
    assert (ranks[0], ranks[-1]) == (0, count - 1)
    assert np.all(np.diff(ranks) > 0)
    assert min(count, POINTS // 2) <= len(ranks) <= POINTS
    assert np.diff(ranks).max(initial=1) <= max(1, 2 * 2 * count / POINTS)


def test_a_document_is_json_and_has_what_a_page_draws(rng):
    layers = [
        Layer("plain", *make("plain", rng)),
        Layer("line", rng.standard_normal((2, 3, 3)), Geometry(grid=12)),
        Layer("cube", rng.standard_normal((2, 2, 2, 2, 2)), Geometry(grid=3)),
        Layer("anywhere", rng.standard_normal((2, 2, 3)), Geometry(grid=None)),
        Layer("matrix", rng.standard_normal((2, 2, 1)), Geometry(grid=1)),
    ]
    report = Report(spectra(layers).layers, {"fc": "is no convolution"})
    made = document_of(report, "net", report.notes())
    document = json.loads(json.dumps(made, allow_nan=False))
    plain, line, cube, anywhere, matrix = document["layers"]
    values = report.layers[0].sorted_values()
    assert plain["curve"]["values"][0] == pytest.approx(values[0], rel=1e-4)
    assert plain["curve"]["values"][-1] == pytest.approx(values[-1], rel=1e-4)
    assert plain["curve"]["rank"][-1] == values.size - 1
    top = report.layers[0].values[..., 0].max(axis=-1)
    np.testing.assert_allclose(plain["heat"]["top"], top, rtol=1e-4)
    assert np.shape(line["heat"]["top"]) == (1, 12)
    assert cube["heat"] is matrix["heat"] is None
    assert anywhere["curve"] is anywhere["heat"] is None
    assert anywhere["norm_method"] == "supremum"
    assert document["skipped"] == [{"name": "fc", "reason": "is no convolution"}]
    assert len(document["notes"]) == 1
    assert document["summary"]["layers"] == 5


def test_a_large_map_is_thinned_and_keeps_its_largest(rng):
    (layer,) = spectra(
        [Layer("k", rng.standard_normal((1, 1, 3, 3)), Geometry(300))]
    ).layers
    (row,) = document_of(Report((layer,)), "net", [])["layers"]
    heat = np.array(row["heat"]["top"])
    assert max(heat.shape) <= SIDE
    assert row["heat"]["thinned"]
    assert heat.max() == pytest.approx(layer.values.max(), rel=1e-4)
