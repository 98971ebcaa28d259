"""Numbers as people see them: bounds on their own side, all else the nearest."""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from convspectra import Geometry, operator_norm
from convspectra._cli import render
from convspectra._cli.main import main
from convspectra._report import spectra
from convspectra._text import Lower, Upper, cell, number

NUMBERS = st.floats(allow_nan=False)


@given(NUMBERS)
@example(1.0000000001)
@example(0.50004)
@example(9.9999)
@example(1.19)
@example(-1.19)
@example(5e-324)
@example(1.7976931348623157e308)
def test_what_is_shown_of_a_bound_is_a_bound(value):
    assert float(cell(Upper(value))) >= value
    assert float(cell(Lower(value))) <= value


@given(st.floats(1e-300, 1e300))
def test_four_digits_are_enough_to_stay_near(value):
    for kind in (Upper, Lower, float):
        assert float(number(kind(value))) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Upper(1.00006), "1.001"),
        (Upper(1 + 1e-9), "1.001"),
        (Lower(0.99998), "0.9999"),
        (Lower(1 - 1e-9), "0.9999"),
        (Lower(123.456), "123.4"),
        (Upper(0.00123456), "0.001235"),
        (Upper(1.19), "1.19"),
        (Lower(1.19), "1.19"),
        (Upper(9.9996), "10"),
        (Upper(0.0), "0"),
        (Upper(math.inf), "inf"),
        (Upper(math.nan), "nan"),
        (1.00006, "1"),
    ],
)
def test_bounds_are_rounded_outward(value, text):
    assert cell(value) == text


def test_a_norm_is_shown_rounded_outward():
    found = operator_norm(np.array([[[1.0, -1.0, 1.0]]]), Geometry(3, boundary="zeros"))
    lower, upper = re.fullmatch(
        r"(\S+) <= norm <= (\S+) \(matrix\)", str(found)
    ).groups()
    assert (
        float(lower) <= found.lower <= 1 + math.sqrt(2) <= found.upper <= float(upper)
    )
    assert float(upper) - float(lower) < 0.002


BOUND = ["--max-norm", "1", "-o", "new.npy"]
STATED = ["--stride", "1", "--groups", "1", "--boundary", "circular"]
TABLES = {
    "norm": (render.NORM, ["k.npy"], "kernels"),
    "clip": (render.CHANGE, ["k.npy", *BOUND], "kernels"),
    "project": (render.PROJECTION, ["k.npy", *BOUND], "kernels"),
    "compare": (render.COMPARISON, ["k.npy"], "kernels"),
    "diff": (render.GROWTH, ["k.npy", "other/k.npy"], "kernels"),
    "report": (spectra.COLUMNS, ["k.npy", *STATED], "layers"),
}


def side(key, row):
    """1 for an upper bound, -1 for a lower one, 0 for any other number."""
    if key == "value":
        key = row["kind"].removeprefix("certified ").partition(" ")[0]
    return {"upper": 1, "gap": 1, "lower": -1}.get(key.rpartition("_")[2], 0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("command", TABLES)
def test_tables_show_bounds_that_hold(command, seed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng, other = np.random.default_rng(seed), tmp_path / "other"
    other.mkdir()
    for path in (tmp_path, other):
        np.save(path / "k.npy", rng.standard_normal((2, 2, 3)))
    columns, argv, rows = TABLES[command]
    argv = [command, *argv, "--grid", "5"]
    assert main(argv) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    left = iter(columns.items())  # a table may leave columns out
    keys = [
        next(key for heading, key in left if heading.strip() == shown)
        for shown in re.split(r"\s{2,}", header)
    ]
    assert main([*argv, "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)[rows]
    bounds = 0
    for line, row in zip(lines, stated, strict=True):
        texts = dict(zip(keys, re.split(r"\s{2,}", line), strict=True))
        for key in texts.keys() & row.keys():
            way = side(key, row)
            bounds += abs(way)
            if way:
                assert way * (float(texts[key]) - row[key]) >= 0, (key, texts, row)
    assert bounds


def test_a_checkpoint_among_many_shows_a_bound_that_holds(
    tmp_path, monkeypatch, capsys, rng
):
    """Also when its result comes from the folder, as JSON that knows no bounds."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        np.save(f"{name}.npy", rng.standard_normal((2, 2, 3)))
    argv = ["report", "a.npy", "b.npy", "--grid", "5"]
    assert main([*argv, "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)["checkpoints"]
    assert main(argv) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    for line, row in zip(lines, stated, strict=True):
        texts = dict(zip(render.CHECKPOINTS.values(), re.split(r"\s{2,}", line)))
        for key in ("upper", "log10_product_upper"):
            assert float(texts[key]) >= row[key]
