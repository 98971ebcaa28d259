"""The file of the paper's points agrees with what its text and its axes say."""

import pytest

from experiments.figure import paper_curves
from experiments.paper import statements

# figure: (number of points on each curve, smallest x, largest x)
AXES = {
    "timing 3x3": ((5, 12, 12), 4, 1024),
    "timing 11x11": ((8, 8), 4, 256),
    "cifar10 loss": ((241,) * 3, 10, 250),
    "cifar10 error": ((240,) * 3, 10, 249),
    "cifar10 error over seconds": ((240,) * 3, 2241, 56862),
}


@pytest.mark.parametrize("figure", AXES)
def test_the_points_fill_the_axes_of_their_figure(figure):
    counts, least, most = AXES[figure]
    found = paper_curves(figure)
    assert tuple(map(len, found.values())) == counts
    columns = [[x for x, _ in points] for points in found.values()]
    assert all(xs == sorted(set(xs)) for xs in columns)
    assert min(xs[0] for xs in columns) == least
    assert max(xs[-1] for xs in columns) == most


@pytest.mark.parametrize("radius", ["none", "0.5", "1.0"])
def test_curves_end_at_the_errors_of_the_text(radius):
    errors = [y for _, y in paper_curves("cifar10 error")[radius]]
    assert round(100 * errors[-1], 1) == statements()[f"error.{radius}"].value
    assert errors == [y for _, y in paper_curves("cifar10 error over seconds")[radius]]
    sixths = [60000 * y for y in errors]
    assert sixths == pytest.approx([*map(round, sixths)], abs=1e-6)


@pytest.mark.parametrize("radius", ["0.5", "1.0"])
def test_overheads_are_those_of_the_last_points(radius):
    said, curves = statements(), paper_curves("cifar10 error over seconds")
    plain, clipped = (curves[name][-1][0] for name in ("none", radius))
    assert plain == said["seconds.none"].value
    assert clipped == said[f"seconds.{radius}"].value
    overhead = 100 * (clipped / plain - 1)
    assert round(overhead, 1) == said[f"overhead.{radius}"].value


def test_the_speed_claims_are_points_of_figure_one():
    curves = paper_curves("timing 3x3")
    for curve, name in (("full matrix", "full_matrix_64"), ("NumPy", "numpy_64")):
        assert dict(curves[curve])[64] == statements()[f"speed.{name}"].value


def test_every_claim_says_where_it_stands():
    for statement in statements().values():
        assert statement.where.startswith(("section", "figure", "appendix"))
        assert statement.text
