"""Wrong answers are not timed, others are timed in turn, and long runs once."""

from dataclasses import replace

import pytest
from tiny import SQUARE, STRIDED, SUITE, counted, wrong_values

from benchmarks import measuring
from benchmarks.checking import error, is_right, reference
from benchmarks.contenders import LIBRARIES, Contender, contender, installed
from benchmarks.contenders.in_numpy import CONTENDERS as IN_NUMPY
from benchmarks.measuring import in_turn, measure, task_of
from benchmarks.memory import run_in_process


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
    entries = measure(SQUARE, "values", field, SUITE, {}, {})
    assert len(runs) == 1
    entry = entry_of(entries, "wrong, NumPy")
    assert entry["status"] == "failed"
    assert entry["reason"].startswith("off by")
    assert "median" not in entry
    for name in ("paper, NumPy", "convspectra, NumPy"):
        assert entry_of(entries, name)["status"] == "timed"


def test_a_contender_that_raises_fails_alone():
    broken = Contender("broken, NumPy", {"norm": counted([], raising)})
    entries = measure(SQUARE, "norm", (broken, *IN_NUMPY), SUITE, {}, {})
    assert entry_of(entries, "broken, NumPy")["reason"] == "MemoryError: far too large"
    assert entry_of(entries, "paper, NumPy")["status"] == "timed"


def test_what_cannot_be_done_is_left_out_with_the_reason():
    entries = measure(STRIDED, "clip", IN_NUMPY, SUITE, {}, {})
    entry = entry_of(entries, "paper, NumPy")
    assert (entry["status"], "no stride" in entry["reason"]) == ("left out", True)


def test_contenders_take_turns():
    order = []
    runs = {name: (lambda name=name: order.append(name)) for name in "ab"}
    suite = replace(SUITE, repeats=3, least_repeats=3)
    found = in_turn(runs, suite)
    assert "".join(order) == "ab" + 3 * "aabb"  # each warms up, then runs untimed
    assert [len(samples) for samples, _ in found.values()] == [3, 3]


def test_what_takes_long_runs_once():
    runs = []
    want, _ = reference(task_of(SQUARE, "norm"), "norm")
    slow = Contender("slow, NumPy", {"norm": counted(runs, lambda task: want)})
    suite = replace(SUITE, once_above=0.0)
    (entry,) = measure(SQUARE, "norm", (slow,), suite, {}, {})
    assert (len(runs), entry["repeats"], entry["status"]) == (1, 1, "timed")


def test_a_norm_read_off_long_values_is_not_computed_again():
    runs = []
    paper = Contender("paper, NumPy", {"norm": counted(runs, wrong_values)})
    known = {"paper, NumPy": {"contender": "paper, NumPy", "repeats": 1, "median": 9.0}}
    (entry,) = measure(SQUARE, "norm", (paper,), SUITE, known, {})
    assert not runs
    assert (entry["median"], entry["reason"]) == (9.0, "time of all values")


def test_nobody_waits_for_what_took_long_with_half_of_the_channels():
    suite = replace(SUITE, patience=79.0)
    smaller = {one.name: {"median": 10.0} for one in installed()[0]}
    entries = measure(SQUARE, "norm", installed()[0], suite, {}, smaller)
    timed = [entry["contender"] for entry in entries if entry["status"] == "timed"]
    ours = [f"convspectra, {library}" for library in LIBRARIES]
    assert timed == ["paper, NumPy", *ours]
    out = [entry for entry in entries if "expected" in entry]
    assert {entry["reason"] for entry in out} == {"would take about 80 s"}
    assert len(out) > 3
    # What was left out is not run with more channels either.
    after = {entry["contender"]: entry for entry in out}
    more = measure(SQUARE, "norm", installed()[0], suite, {}, after)
    found = {e["contender"]: e["expected"] for e in more if "expected" in e}
    assert found == dict.fromkeys(after, 640.0)


def test_memory_is_that_of_a_process_of_its_own():
    task = task_of(replace(SQUARE, in_channels=32, out_channels=32, grid=16), "values")
    answer, _, memory = run_in_process("paper, NumPy", "values", task)
    want, _ = reference(task, "values")
    assert is_right("all values", error("all values", answer, want))
    assert memory > 256 * 32 * 32 * 8  # the transform alone


def test_a_process_that_fails_says_why():
    nobody = Contender("nobody, NumPy", {"values": wrong_values})
    suite = replace(SUITE, memory=(SQUARE,))
    (entry,) = measure(SQUARE, "values", (nobody,), suite, {}, {})
    assert entry["status"] == "failed"
    assert entry["reason"].startswith("LookupError: no contender is named")
