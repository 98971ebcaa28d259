"""The cases, and what follows from known seconds: ratios, means, exponents, lines."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from tiny import SQUARE, STRIDED

from benchmarks.cases import FIGURE, FULL, QUICK, Case, figure_one, resnets
from benchmarks.contenders import JOBS, UPPER
from benchmarks.figure import draw, panels_of
from benchmarks.summary import exponent, operations, summarize


def test_the_cases_are_those_of_the_paper_and_of_two_networks():
    left, right = figure_one(3, 16, 1024), figure_one(11, 64, 256)
    powers = {2**i for i in range(2, 11)}
    assert {case.in_channels for case in left} == powers | {192, 384, 768}
    assert [case.in_channels for case in right][-2:] == [192, 256]
    shapes = {
        (c.in_channels, c.out_channels, c.kernel, c.grid, c.stride) for c in resnets()
    }
    assert len(shapes) == len(resnets()) == 29
    assert {(3, 64, 7, 224, 2), (64, 64, 3, 56, 1), (1024, 2048, 1, 14, 2)} <= shapes
    assert {(512, 512, 3, 7, 1), (512, 512, 3, 14, 2), (512, 2048, 1, 7, 1)} <= shapes
    for suite in (QUICK, FULL):
        assert len(set(suite.cases)) == len(suite.cases)
        assert set(suite.memory) <= set(suite.cases)
    assert set(QUICK.cases) <= set(FULL.cases)


def test_kernels_are_the_same_every_time():
    kernel = Case(FIGURE, 64, 64, 3, 16).weight()
    assert kernel.dtype == np.float32
    assert kernel.std() == pytest.approx(1 / math.sqrt(64 * 9), rel=0.02)
    np.testing.assert_array_equal(kernel, Case(FIGURE, 64, 64, 3, 16).weight())


def test_the_exponent_of_a_power():
    assert exponent([(n, 7 * n**2.5) for n in (4, 8, 32)]) == pytest.approx(2.5)


def test_operations_of_a_matrix_that_is_square():
    case = Case(FIGURE, 8, 8, 3, 4)  # 8 of 16 frequencies
    assert operations(case, "values") == pytest.approx(8 * 4 * 8 / 3 * 8**3)
    assert operations(case, "norm") == pytest.approx(8 * 4 * 4 / 3 * 8**3)
    assert operations(case, "clip") == pytest.approx(8 * 4 * 13 * 8**3)


def result_of(case, job, **seconds):
    """A result with these seconds, by the first letters of the contenders."""
    names = {
        "paper": ("paper, NumPy", "all values"),
        "torch": ("paper, torch", "all values"),
        "gram": ("Gram iteration, torch", UPPER),
        "ours": ("convspectra, NumPy", "all values"),
    }
    entries = [
        {"contender": names[key][0], "kind": names[key][1], "status": "timed"}
        | {"median": value}
        for key, value in seconds.items()
    ]
    return {"case": asdict(case), "name": case.name, "job": job, "entries": entries}


def test_the_summary_of_known_seconds():
    small, large = figure_one(3, 16, 32)[-2:]
    tiny = figure_one(3, 16, 4)[0]
    results = [
        result_of(tiny, "values", paper=1.0, torch=3.0, ours=2.0),
        result_of(small, "values", paper=8.0, torch=4.0, gram=0.5, ours=1.0),
        result_of(large, "values", paper=64.0, torch=40.0, ours=2.0),
    ]
    found = summarize({"results": results, "gemm_rate": operations(small, "values")})
    assert [row["paper_ratio"] for row in found["ratios"]] == [0.5, 8, 32]
    assert [row["best_ratio"] for row in found["ratios"]] == [0.5, 4, 20]
    assert [row["bound_ratio"] for row in found["ratios"]] == [None, 0.5, None]
    assert found["ratios"][0]["best_other"] == "paper, NumPy"
    up, few = found["means"]
    assert (up["cases"], up["count"]) == ("figure 1, 16 channels up", 2)
    assert up["paper_mean"] == pytest.approx(16)
    assert (up["paper_least"], up["best_least"]) == (8, 4)
    assert (few["cases"], few["paper_mean"]) == ("figure 1, 4 and 8 channels", 0.5)
    slopes = {row["contender"]: row["exponent"] for row in found["exponents"]}
    want = {"paper, NumPy": 3.0, "convspectra, NumPy": 1.0}
    assert slopes == pytest.approx(want)
    assert found["shares"][1]["share_of_products"] == pytest.approx(1)


def test_a_failed_answer_of_ours_has_no_ratio():
    result = result_of(SQUARE, "values", paper=1.0, ours=1.0)
    result["entries"][1]["status"] = "failed"
    assert summarize({"results": [result], "gemm_rate": 1.0})["ratios"] == []


def test_panels_have_a_line_for_each_contender():
    figures = pytest.importorskip("matplotlib.figure")
    results = [
        result_of(case, job, paper=1.0, ours=0.5)
        for case in (*figure_one(3, 16, 16), *figure_one(11, 64, 8), STRIDED)
        for job in JOBS
    ]
    panels = panels_of(results)
    assert len(panels) == 6
    line = panels["3x3 on 16x16", "clip"]["paper, NumPy"]
    assert line == [(4, 1.0), (8, 1.0), (16, 1.0)]
    figure = figures.Figure()
    draw(results, figure)
    assert [len(ax.lines) for ax in figure.axes] == [2] * 6
    assert len(figure.legends) == 1
