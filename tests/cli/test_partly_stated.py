"""Commands on kernels whose geometry is stated in part: what their bounds hold for."""

import json

import numpy as np
import pytest
from oracles import norm_by_matrix

from convspectra import Geometry
from convspectra._cli.main import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Each test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def kernel(rng):
    weight = rng.standard_normal((4, 2, 3, 3))
    np.save("k.npy", weight)
    return weight


def said(capsys, *argv, code=0):
    """Run the command; return what is on stdout and stderr."""
    assert main([*map(str, argv)]) == code
    return capsys.readouterr()


def row_of(capsys, *argv):
    """The one row of a document."""
    found = json.loads(said(capsys, *argv, "--json").out)
    (row,) = found["kernels" if "kernels" in found else "layers"]
    return row


@pytest.mark.parametrize("grid", [(), ("--grid", 4)])
def test_wide_padding_with_an_unknown_boundary_is_taken_for_zeros(capsys, kernel, grid):
    row = row_of(capsys, "report", "k.npy", "--padding", 5, *grid)
    assert row["boundary"] is None
    for size in (1, 4, 9):
        for boundary, padding in (("zeros", 5), ("circular", "same"), ("circular", 1)):
            geometry = Geometry(size, padding=padding, boundary=boundary)
            assert norm_by_matrix(kernel, geometry) <= row["norm_upper"]
    _, err = said(capsys, "report", "k.npy", "--padding", 5, *grid)
    plain = " ".join(err.split())
    assert "zero padding, or a circular boundary that repeats no output;" in plain


@pytest.mark.parametrize("options", ["--padding 5", "--transposed --stride 2"])
@pytest.mark.parametrize(
    "command",
    ["norm", "clip --max-norm 1 -o new.npy", "project --max-norm 1 -o new.npy"],
)
def test_padding_that_fits_no_circle_is_no_reason_to_refuse(
    capsys, kernel, options, command
):
    name, *more = command.split()
    known = {"padding": 5} if "5" in options else {"transposed": True, "stride": 2}
    argv = [name, "k.npy", *more, "--padding", 1, *options.split()]
    row = row_of(capsys, *argv)
    assert row["boundary"] is None
    upper = row["upper" if name == "norm" else "before_upper"]
    for size in (1, 4, 9):
        geometry = Geometry(size, boundary="zeros", **{"padding": 1} | known)
        assert norm_by_matrix(kernel, geometry) <= upper
    _, err = said(capsys, *argv)
    assert "with a circular boundary that repeats no output" in err


@pytest.mark.parametrize("more", [[], ["--stride", 1, "--groups", 1, "--quick"]])
def test_a_stated_circle_has_a_bound_with_all_that_it_repeats(capsys, kernel, more):
    argv = ["report", "k.npy", "--padding", 5, "--boundary", "circular"]
    _, err = said(capsys, *argv, code=2)
    assert "Circular padding of (5, 5) reads some input sites more often" in err
    assert "State the grid" in err
    row = row_of(capsys, *argv, "--grid", 4, *more)
    want = norm_by_matrix(kernel, Geometry(4, padding=5))
    assert want <= row["norm_upper"] <= 4 * want
