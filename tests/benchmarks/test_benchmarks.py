"""The benchmark: contenders are right, wrong ones are not timed, and sums are sums."""

import importlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from oracles import values_by_matrix

from convspectra import dense_matrix
from convspectra._bench import measure as measuring
from convspectra._bench.by_numpy import CONTENDERS as IN_NUMPY
from convspectra._bench.cases import (
    FIGURE,
    POINTWISE,
    RESNET,
    Case,
    figure_one,
    kernel_of,
    resnets,
)
from convspectra._bench.contender import CERTIFIED, JOBS, LOWER, UPPER, Contender
from convspectra._bench.contenders import MODULES, contender, installed
from convspectra._bench.figure import draw, panels_of
from convspectra._bench.measure import in_turn, measure, task_of
from convspectra._bench.plans import FULL, QUICK, Plan
from convspectra._bench.probe import ProbeError, probed
from convspectra._bench.reference import error, is_right, reference
from convspectra._bench.summary import exponent, geometric_mean, operations, summarize
from convspectra.cli import main

SQUARE = Case(FIGURE, 3, 3, 3, 4)
STRIDED = Case(RESNET, 2, 3, 3, 6, 2)
POINT = Case(POINTWISE, 3, 2, 1, 4)
POINT_STRIDED = Case(POINTWISE, 2, 3, 1, 4, 2)
TINY = (SQUARE, STRIDED, POINT, POINT_STRIDED)
PLAN = Plan("tiny", TINY, (), 2, 1, 0.0, math.inf, math.inf)
EVERY = [
    pytest.param(one, job, case, id=f"{one.name}-{job}-{case.name}")
    for one in installed()[0]
    for job in one.makers
    for case in TINY
    if not one.refuses(case)
]


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """No waiting for threads to settle: nothing here looks at seconds."""
    monkeypatch.setattr(measuring, "PAUSE", 0.0)
    monkeypatch.setattr(measuring, "LEAST_SAMPLE", 0.0)


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A folder, and a command whose quick run takes no time."""
    plan = replace(PLAN, cases=(SQUARE,))
    monkeypatch.setattr("convspectra._bench.run.QUICK", plan)
    monkeypatch.setattr("convspectra._bench.machine.GEMM_SIZE", 16)
    return tmp_path / "out"


def clipped_by_matrix(task):
    """The kernel nearest to the layer's matrix with its values clipped.

    The matrix is linear in the kernel, so that each entry is an inner product.
    """
    matrix = dense_matrix(task.weight.astype("float64"), task.case.geometry)
    u, s, vh = np.linalg.svd(matrix, full_matrices=False)
    clipped = (u * np.minimum(s, task.level)) @ vh
    found = np.zeros(task.weight.shape)
    for place in np.ndindex(found.shape):
        unit = np.zeros(found.shape)
        unit[place] = 1.0
        basis = dense_matrix(unit, task.case.geometry)
        found[place] = (basis * clipped).sum() / (basis**2).sum()
    return found


def wanted(task, job):
    """The answer by the layer's matrix, which no contender but one has."""
    if job == "clip":
        return clipped_by_matrix(task)
    values = values_by_matrix(task.weight, task.case.geometry)
    return values if job == "values" else values[0]


# Answers


@pytest.mark.parametrize(("one", "job", "case"), EVERY)
def test_every_contender_is_right(one, job, case):
    task = task_of(case, job)
    answer, want = np.asarray(one.makers[job](task)()), wanted(task, job)
    kind = one.kind(job)
    if kind == CERTIFIED:
        assert answer[0] <= want * (1 + 1e-6)
        assert answer[1] >= want * (1 - 1e-6)
    elif kind == UPPER:
        assert want * (1 - 1e-5) <= answer <= want * 1.05
    elif kind == LOWER:
        assert want * 0.95 <= answer <= want * (1 + 1e-5)
    elif job == "values":
        got = np.sort(answer, axis=None)[::-1]
        rest = np.zeros(max(got.size, want.size))
        rest[: got.size] = got
        np.testing.assert_allclose(rest[: want.size], want, atol=1e-5 * want[0])
        assert not rest[want.size :].any()
    else:
        np.testing.assert_allclose(answer, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_the_reference_is_that_of_the_matrix(case, job, monkeypatch):
    monkeypatch.setattr("convspectra._bench.reference.MOST_ROWS", 0)
    task = task_of(case, job)
    found, how = reference(task, job)
    want = wanted(task, job)
    assert how == "an SVD per frequency in complex128"
    if job == "values":
        found = np.sort(found, axis=None)[::-1]
        count = min(found.size, want.size)
        assert np.max(np.append(found[count:], want[count:]), initial=0.0) <= 1e-12
        found, want = found[:count], want[:count]
    np.testing.assert_allclose(found, want, atol=1e-12)


def test_what_is_missing_or_not_finite_is_far_off():
    want = np.array([2.0, 1.0])
    assert error("all values", [1.0, 2.0], want) == 0
    assert error("all values", [2.0], want) == 0.5
    assert error("all values", [2.0, 1.0, 0.0], want) == 0
    assert error("all values", [2.0, np.nan], want) == math.inf
    assert error("clipped kernel", np.ones((1, 2)), np.ones((2, 1))) == math.inf
    assert error("upper bound", 2.1, np.array(2.0)) == pytest.approx(0.05)
    assert error(CERTIFIED, (1.9999, 2.0), np.array(2.0)) == pytest.approx(-5e-5)
    assert error(CERTIFIED, (2.1, 2.2), np.array(2.0)) == math.inf


def test_bounds_must_be_on_their_side():
    assert is_right(UPPER, 0.03)
    assert not is_right(UPPER, -0.001)
    assert is_right(LOWER, -0.03)
    assert not is_right(LOWER, 0.001)
    assert not is_right("norm, uncertified", 0.001)


# Measuring


def counted(runs, answer):
    """A way to set up a job that counts how often it runs, and answers this."""

    def make(task):
        def run():
            runs.append(task.case)
            return answer(task)

        return run

    return make


def wrong_values(task):
    return np.ones(task.case.out * task.case.frequencies)


def raising(task):
    raise MemoryError("far too large")


def entry_of(entries, name):
    return next(entry for entry in entries if entry["contender"] == name)


@pytest.mark.parametrize("affordable", [True, False])
def test_a_wrong_contender_fails_and_is_not_timed(monkeypatch, affordable):
    monkeypatch.setattr(measuring, "affordable", lambda case: affordable)
    runs = []
    wrong = Contender("wrong, NumPy", {"values": counted(runs, wrong_values)})
    field = (contender("paper, NumPy"), wrong, contender("convspectra, NumPy"))
    entries = measure(SQUARE, "values", field, PLAN, {}, {})
    assert len(runs) == 1
    entry = entry_of(entries, "wrong, NumPy")
    assert entry["status"] == "failed"
    assert entry["reason"].startswith("off by")
    assert "median" not in entry
    for name in ("paper, NumPy", "convspectra, NumPy"):
        assert entry_of(entries, name)["status"] == "timed"


def test_a_contender_that_raises_fails_alone():
    broken = Contender("broken, NumPy", {"norm": counted([], raising)})
    entries = measure(SQUARE, "norm", (broken, *IN_NUMPY), PLAN, {}, {})
    assert entry_of(entries, "broken, NumPy")["reason"] == "MemoryError: far too large"
    assert entry_of(entries, "paper, NumPy")["status"] == "timed"


def test_what_cannot_be_done_is_left_out_with_the_reason():
    entries = measure(STRIDED, "clip", IN_NUMPY, PLAN, {}, {})
    entry = entry_of(entries, "paper, NumPy")
    assert (entry["status"], "no stride" in entry["reason"]) == ("left out", True)


def test_contenders_take_turns():
    order = []
    runs = {name: (lambda name=name: order.append(name)) for name in "ab"}
    plan = replace(PLAN, repeats=3, least_repeats=3)
    found = in_turn(runs, plan)
    assert "".join(order) == "ab" + 3 * "aabb"  # each warms up, then runs untimed
    assert [len(samples) for samples, _ in found.values()] == [3, 3]


def test_what_takes_long_runs_once():
    runs = []
    want, _ = reference(task_of(SQUARE, "norm"), "norm")
    slow = Contender("slow, NumPy", {"norm": counted(runs, lambda task: want)})
    plan = replace(PLAN, once_above=0.0)
    (entry,) = measure(SQUARE, "norm", (slow,), plan, {}, {})
    assert (len(runs), entry["repeats"], entry["status"]) == (1, 1, "timed")


def test_a_norm_read_off_long_values_is_not_computed_again():
    runs = []
    paper = Contender("paper, NumPy", {"norm": counted(runs, wrong_values)})
    known = {"paper, NumPy": {"contender": "paper, NumPy", "repeats": 1, "median": 9.0}}
    (entry,) = measure(SQUARE, "norm", (paper,), PLAN, known, {})
    assert not runs
    assert (entry["median"], entry["reason"]) == (9.0, "the time of all values")


def test_nobody_waits_for_what_took_long_with_half_of_the_channels():
    plan = replace(PLAN, patience=79.0)
    smaller = {one.name: {"median": 10.0} for one in installed()[0]}
    entries = measure(SQUARE, "norm", installed()[0], plan, {}, smaller)
    timed = [entry["contender"] for entry in entries if entry["status"] == "timed"]
    assert timed == ["paper, NumPy", "convspectra, NumPy", "convspectra, torch"]
    out = [entry for entry in entries if "expected" in entry]
    assert {entry["reason"] for entry in out} == {"would take about 80 s"}
    assert len(out) > 3
    # What was left out is not run with more channels either.
    after = {entry["contender"]: entry for entry in out}
    more = measure(SQUARE, "norm", installed()[0], plan, {}, after)
    found = {e["contender"]: e["expected"] for e in more if "expected" in e}
    assert found == dict.fromkeys(after, 640.0)


def test_memory_is_that_of_a_process_of_its_own():
    task = task_of(replace(SQUARE, into=32, out=32, grid=16), "values")
    found = probed(contender("paper, NumPy"), "values", task)
    want, _ = reference(task, "values")
    assert is_right("all values", error("all values", found.answer, want))
    assert found.memory > 256 * 32 * 32 * 8  # the transform alone


def test_a_process_that_fails_says_why():
    with pytest.raises(ProbeError, match="ended with code 1: "):
        probed(Contender("nobody, NumPy", {}), "values", task_of(SQUARE, "values"))


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    real = importlib.import_module

    def without_jax(name, package=None):
        if name == ".by_jax":
            raise ModuleNotFoundError("no", name="jax")
        return real(name, package)

    monkeypatch.setattr("convspectra._bench.contenders.import_module", without_jax)
    found, missing = installed()
    assert "JAX" in missing
    assert not any(one.name.endswith("JAX") for one in found)
    assert {one.name.rpartition(", ")[2] for one in found} <= set(MODULES)


# Cases


def test_the_cases_are_those_of_the_paper_and_of_two_networks():
    assert [case.into for case in figure_one(3, 16, 1024)] == [
        2**i for i in range(2, 11)
    ]
    shapes = {(c.into, c.out, c.kernel, c.grid, c.stride) for c in resnets()}
    assert len(shapes) == len(resnets()) == 29
    assert {(3, 64, 7, 224, 2), (64, 64, 3, 56, 1), (1024, 2048, 1, 14, 2)} <= shapes
    assert {(512, 512, 3, 7, 1), (512, 512, 3, 14, 2), (512, 2048, 1, 7, 1)} <= shapes
    for plan in (QUICK, FULL):
        assert len(set(plan.cases)) == len(plan.cases)
        assert set(plan.memory) <= set(plan.cases)
    assert set(QUICK.cases) <= set(FULL.cases)


def test_kernels_are_the_same_every_time():
    kernel = kernel_of(Case(FIGURE, 64, 64, 3, 16))
    assert kernel.dtype == np.float32
    assert kernel.std() == pytest.approx(1 / math.sqrt(64 * 9), rel=0.02)
    np.testing.assert_array_equal(kernel, kernel_of(Case(FIGURE, 64, 64, 3, 16)))


# Sums


def test_means_and_exponents_of_known_numbers():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4)
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
    fields = ("group", "into", "out", "kernel", "grid", "stride")
    about = {field: getattr(case, field) for field in fields}
    return {"case": about, "name": case.name, "job": job, "entries": entries}


def test_the_summary_of_known_seconds():
    small, large = figure_one(3, 16, 32)[-2:]
    tiny = figure_one(3, 16, 4)[0]
    results = [
        result_of(tiny, "values", paper=1.0, torch=3.0, ours=2.0),
        result_of(small, "values", paper=8.0, torch=4.0, gram=0.5, ours=1.0),
        result_of(large, "values", paper=64.0, torch=40.0, ours=2.0),
    ]
    found = summarize({"results": results, "gemm_rate": operations(small, "values")})
    assert [row["paper"] for row in found.ratios] == [0.5, 8, 32]
    assert [row["best"] for row in found.ratios] == [0.5, 4, 20]
    assert [row["bound"] for row in found.ratios] == [None, 0.5, None]
    assert found.ratios[0]["best_name"] == "paper, NumPy"
    up, few = found.means
    assert (up["cases"], up["count"]) == ("figure 1, 16 channels up", 2)
    assert up["paper_mean"] == pytest.approx(16)
    assert (up["paper_least"], up["best_least"]) == (8, 4)
    assert (few["cases"], few["paper_mean"]) == ("figure 1, 4 and 8 channels", 0.5)
    slopes = {row["contender"]: row["exponent"] for row in found.exponents}
    want = {"paper, NumPy": 3.0, "convspectra, NumPy": 1.0}
    assert slopes == pytest.approx(want)
    assert found.shares[1]["share"] == pytest.approx(1)


def test_a_failed_answer_of_ours_has_no_ratio():
    result = result_of(SQUARE, "values", paper=1.0, ours=1.0)
    result["entries"][1]["status"] = "failed"
    assert summarize({"results": [result], "gemm_rate": 1.0}).ratios == []


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


# The command


def test_the_command_writes_its_files_and_goes_on_where_it_was(
    tiny, capsys, monkeypatch
):
    assert main(["bench", "-o", str(tiny), "--jobs", "values"]) == 0
    out, _ = capsys.readouterr()
    assert out.splitlines()[1].startswith(SQUARE.name)
    files = {"results.json", "results.md", "figure.png"}
    assert {path.name for path in tiny.iterdir()} == files
    before = json.loads((tiny / "results.json").read_text())
    assert {"processor", "cores", "numpy", "blas"} <= set(before["machine"])

    done = []

    def spied(case, job, *rest):
        done.append(job)
        return measure(case, job, *rest)

    monkeypatch.setattr("convspectra._bench.run.measure", spied)
    assert main(["bench", "-o", str(tiny), "--json"]) == 0
    out, err = capsys.readouterr()
    assert done == ["norm", "clip"]
    assert "1 of 3 jobs are in" in err
    assert [row["job"] for row in json.loads(out)["ratios"]] == list(JOBS)
    after = json.loads((tiny / "results.json").read_text())
    assert after["results"][0] == before["results"][0]

    done.clear()
    assert main(["bench", "-o", str(tiny), "--jobs", "clip", "--fresh"]) == 0
    assert done == ["clip"]


def test_results_of_other_settings_are_not_gone_on_with(tiny, capsys):
    assert main(["bench", "-o", str(tiny), "--jobs", "values"]) == 0
    path = tiny / "results.json"
    document = json.loads(path.read_text())
    document["settings"]["numpy"] = "1.0"
    path.write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["bench", "-o", str(tiny)]) == 2
    assert "these have changed: numpy. Take another folder" in capsys.readouterr().err
    path.write_text("{")
    assert main(["bench", "-o", str(tiny)]) == 2
    assert "must hold the results of a benchmark" in capsys.readouterr().err


def test_a_wrong_answer_of_ours_has_its_own_code(tiny, capsys, monkeypatch):
    ours = Contender("convspectra, NumPy", {"values": counted([], wrong_values)})
    field = (contender("paper, NumPy"), ours)
    monkeypatch.setattr("convspectra._bench.run.installed", lambda: (field, ("JAX",)))
    assert main(["bench", "-o", str(tiny), "--jobs", "values"]) == 1
    err = capsys.readouterr().err
    assert "JAX is not installed" in err
    assert f"failed: convspectra, NumPy, values of {SQUARE.name}: off by" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--jobs speed", "`--jobs` must be some of values, norm, clip"),
        ("--jobs values,", "joined by commas, got 'values,'"),
        ("--quick --full", "not allowed with argument --quick"),
        ("-o no/such", "No such file or directory."),
    ],
)
def test_bad_options_are_refused(tmp_path, monkeypatch, capsys, line, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("convspectra._bench.machine.GEMM_SIZE", 16)
    assert main(["bench", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, list(tmp_path.iterdir())) == ("", [])


def test_help_teaches_by_example(capsys):
    assert main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:\n  convspectra bench" in out
    assert "What fails its check is not timed." in out


@pytest.fixture
def small_training(torch, monkeypatch):
    from convspectra._bench import training

    for name, value in {
        "WIDTHS": (3, 4),
        "BLOCKS": 2,
        "BATCH": 2,
        "IMAGE": (3, 8, 8),
        "ROUNDS": 1,
    }.items():
        monkeypatch.setattr(training, name, value)
    return training


def test_training_is_measured_and_its_clips_are_checked(small_training, tmp_path):
    found = small_training.training(tmp_path)
    assert found["right"]
    assert found["kernels"] == 1 + 4 * 2 + 1
    seconds = {name: times[0] for name, times in found["seconds"].items()}
    assert found["paper_over_ours"] == seconds["paper"] / seconds["pass"]
    whole = 100 * seconds["step"] + seconds["pass"]
    assert found["share"] == pytest.approx(seconds["pass"] / whole)
    assert json.loads((tmp_path / "training.json").read_text()) == found


def test_a_wrong_clip_fails_the_training_benchmark(
    small_training, tmp_path, monkeypatch, capsys
):
    right = small_training._paper
    monkeypatch.setattr(small_training, "_paper", lambda task: 1.01 * right(task))
    folder = tmp_path / "not" / "there"
    assert main(["bench", "--training", "-o", str(folder), "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["right"]
