"""The file of the paper's points agrees with what its text and its axes say."""

import json

import numpy as np
import pytest

from experiments.paper import POINTS, claim, curve, curves

# figure: (number of points on each curve, smallest x, largest x)
AXES = {
    "figure 1, left": ((5, 12, 12), 4, 1024),
    "figure 1, right": ((8, 8), 4, 256),
    "figure 2, left": ((241,) * 3, 10, 250),
    "figure 2, right": ((240,) * 3, 10, 249),
    "figure 4": ((240,) * 3, 2241, 56862),
}


@pytest.mark.parametrize("figure", AXES)
def test_the_points_fill_the_axes_of_their_figure(figure):
    counts, least, most = AXES[figure]
    found = curves(figure)
    assert tuple(map(len, found.values())) == counts
    x = [points[:, 0] for points in found.values()]
    assert all((np.diff(one) > 0).all() for one in x)
    assert min(one[0] for one in x) == least
    assert max(one[-1] for one in x) == most


@pytest.mark.parametrize(
    ("legend", "name"),
    [
        ("no clipping", "error.none"),
        ("clip at 0.5", "error.0.5"),
        ("clip at 1.0", "error.1.0"),
    ],
)
def test_curves_end_at_the_errors_of_the_text(legend, name):
    errors = curve("figure 2, right", legend)[:, 1]
    assert round(100 * errors[-1], 1) == claim(name).value
    assert (errors == curve("figure 4", legend)[:, 1]).all()
    assert errors * 60000 == pytest.approx(np.round(errors * 60000), abs=1e-6)


@pytest.mark.parametrize("radius", ["0.5", "1.0"])
def test_overheads_are_those_of_the_last_points(radius):
    least, most = (
        curve("figure 4", legend)[-1, 0]
        for legend in ("no clipping", f"clip at {radius}")
    )
    assert least == claim("seconds.none").value
    assert most == claim(f"seconds.{radius}").value
    assert round(100 * (most / least - 1), 1) == claim(f"overhead.{radius}").value


def test_the_speed_claims_are_points_of_figure_one():
    for legend, name in (
        ("full matrix method", "speed.full_matrix_64"),
        ("NumPy implementation", "speed.numpy_64"),
    ):
        points = dict(curve("figure 1, left", legend))
        assert points[64] == claim(name).value


def test_every_claim_says_where_it_stands():
    for name in json.loads(POINTS.read_text())["claims"]:
        found = claim(name)
        assert found.where.startswith(("section", "figure", "appendix"))
        assert found.text
