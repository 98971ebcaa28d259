"""Results, units and claims: what is kept, in which order, and what the verdict is."""

import json
import time
from multiprocessing import active_children

import numpy as np
import pytest
from optional import needed

from experiments.claims import (
    Claim,
    Interval,
    all_hold,
    bootstrap,
    difference,
    exit_code,
    interval,
    is_below_zero,
    is_little,
    is_little_more,
    student,
    verdicts,
)
from experiments.options import Options
from experiments.record import Record, machine
from experiments.talk import duration
from experiments.units import run_units


def test_what_is_done_is_not_done_again(tmp_path):
    asked = []

    def work(unit):
        asked.append(unit)
        if unit == 3:
            raise KeyboardInterrupt
        return unit**2

    options, units = Options(out=tmp_path), {"a": 1, "b": 2, "c": 3}
    with pytest.raises(KeyboardInterrupt):
        run_units(options, Record(tmp_path / "x", {"seed": 0}), units, work)
    record = Record(tmp_path / "x", {"seed": 0})
    assert record.results == {"a": 1, "b": 4}
    run_units(options, record, units, lambda unit: -unit)
    assert asked == [1, 2, 3]
    record.conclude([Claim("it holds", "1", "2", True, "a note")], {"best": 1}, "| t |")
    document = json.loads((tmp_path / "x" / "result.json").read_text())
    assert document["results"] == {"a": 1, "b": 4, "c": -3}
    assert document["claims"][0]["holds"] is True
    assert {"settings", "versions", "started"} <= document.keys()
    assert sum(document["commits"].values()) == 3
    assert document["machines"] == {machine(): 3}
    text = (tmp_path / "x" / "summary.md").read_text()
    assert "it holds: a note" in text
    assert text.endswith("| t |\n")


def test_versions_of_a_resumed_run_are_added(tmp_path, monkeypatch):
    Record(tmp_path, {}).keep("a", 1)
    Record(tmp_path, {}).keep("b", 1)
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["later_versions"] == []
    monkeypatch.setattr("experiments.record.versions", lambda modules: {"numpy": "9"})
    for _ in range(2):
        Record(tmp_path, {}).keep("c", 1)
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["versions"]["numpy"] != "9"
    assert document["later_versions"] == [{"numpy": "9"}]


def test_machines_and_commits_are_counted_by_unit(tmp_path, monkeypatch):
    Record(tmp_path, {}).keep("a", 1, "another machine")
    monkeypatch.setattr("experiments.record.commit", lambda: "next")
    record = Record(tmp_path, {})
    record.keep("b", 2)
    record.keep("c", 3)
    assert record.document["machines"] == {"another machine": 1, machine(): 2}
    assert record.document["commits"]["next"] == 2


def test_other_settings_are_refused(tmp_path):
    Record(tmp_path, {"seed": 0, "rate": (1, 2)}).keep("a", 1)
    assert Record(tmp_path, {"seed": 0, "rate": (1, 2)}).results == {"a": 1}
    with pytest.raises(ValueError, match=r"these differ: rate, scale\. Name another"):
        Record(tmp_path, {"seed": 0, "scale": "paper"})
    (tmp_path / "result.json").write_text("[]")
    with pytest.raises(ValueError, match="must hold the results of such a run"):
        Record(tmp_path, {})


def test_units_run_in_other_processes(tmp_path):
    needed("torch")
    record = Record(tmp_path, {})
    units = {"four": 4, "minus": -4, "nine": 9}
    with pytest.raises(OSError, match=r"did not:\nminus: ValueError: .*"):
        run_units(Options(jobs=2), record, units, root)
    assert record.results == {"four": 2, "nine": 3}


def test_units_run_on_a_cluster_of_one_thread_each(tmp_path):
    distributed = needed("distributed")
    parts = {"n_workers": 1, "processes": False, "dashboard_address": None}
    for threads in (1, 2):
        with distributed.LocalCluster(threads_per_worker=threads, **parts) as cluster:
            options = Options(scheduler=cluster.scheduler_address)
            record = Record(tmp_path / str(threads), {})
            if threads == 1:
                run_units(options, record, {"nine": 9}, root)
                assert record.results == {"nine": 3}
            else:
                with pytest.raises(ValueError, match="one thread each, got 2"):
                    run_units(options, record, {"nine": 9}, root)


def test_an_interruption_ends_what_runs_and_begins_nothing(tmp_path, monkeypatch):
    needed("torch")

    def interrupt(*_):
        raise KeyboardInterrupt

    record, others = Record(tmp_path, {}), set(active_children())
    monkeypatch.setattr(record, "keep", interrupt)
    units = {str(seconds): seconds for seconds in (0, 300, 301, 302)}
    with pytest.raises(KeyboardInterrupt):
        run_units(Options(jobs=2), record, units, time.sleep)
    assert set(active_children()) <= others


def test_one_failure_does_not_end_the_others(tmp_path):
    record = Record(tmp_path, {})
    with pytest.raises(OSError, match=r"did not:\nminus: ValueError: .*") as raised:
        run_units(Options(), record, {"minus": -4, "nine": 9}, root)
    assert record.results == {"nine": 3}
    assert isinstance(raised.value.__cause__, ValueError)


def test_processes_of_torchrun_share_every_training(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="--jobs and --scheduler must not be given"):
        run_units(Options(jobs=2), Record(tmp_path, {}), {"nine": 9}, root)


def root(number):
    from math import isqrt

    return isqrt(number)


@pytest.mark.parametrize(
    ("found", "code"),
    [([True, None], 0), ([True, False], 1), ([None], 2), ([], 2), ([False], 1)],
)
def test_the_exit_code_is_the_verdict(found, code):
    assert exit_code([Claim("x", "1", "2", holds) for holds in found]) == code


@pytest.mark.parametrize(
    ("found", "holds"),
    [([True, True], True), ([True, None], None), ([None, False], False)],
)
def test_what_one_of_many_can_not_tell_is_not_told(found, holds):
    assert all_hold(found) is holds


def test_a_verdict_is_a_line_of_a_table():
    lines = verdicts([Claim("a", "1", "2", None), Claim("bb", "1", "2", False)])
    assert "| a     | 1     | 2    | undecided     |" in lines
    assert "| bb    | 1     | 2    | does not hold |" in lines


def test_intervals_are_those_of_scipy(rng):
    stats = needed("scipy.stats")
    for freedom in (1, 2, 3, 4, 7, 30):
        want = stats.t.ppf(0.975, freedom)
        assert student(freedom) == pytest.approx(want, rel=2e-3)
    values = rng.standard_normal(6).tolist()
    want = stats.t.interval(0.95, 5, np.mean(values), stats.sem(values))
    found = interval(values)
    assert (found.low, found.high) == pytest.approx(want, rel=2e-3)
    others = (rng.standard_normal(4) + 3).tolist()
    want = stats.ttest_ind(values, others).confidence_interval(0.95)
    found = difference(values, others)
    assert (found.low, found.high) == pytest.approx((want.low, want.high), rel=2e-3)
    assert is_below_zero(found) is True
    assert is_below_zero(difference(others, values)) is False
    assert is_below_zero(interval([-1.0, 1.0])) is None
    assert is_below_zero(interval([-1.0])) is None


@pytest.mark.parametrize(
    ("low", "high", "little", "little_more"),
    [
        (-1, 1, True, None),
        (0.5, 1.5, True, True),
        (-1.5, -0.5, True, False),
        (1, 3, None, None),
        (-3, -1, None, False),
        (-9, 9, None, None),
        (3, 4, False, False),
        (-4, -3, False, False),
        (None, None, None, None),
    ],
)
def test_a_little_is_at_most_so_much(low, high, little, little_more):
    found = Interval(0.0 if low is None else (low + high) / 2, low, high, 2)
    assert is_little(found, 2) is little
    assert is_little_more(found, 2) is little_more


def test_intervals_are_shown_with_their_seeds():
    assert interval([0.05]).text("%") == "5.00 % (1 seed)"
    assert interval([1.0, 1.0]).text() == "1.00 [1.00, 1.00] (2 seeds)"


def test_resampled_means_spread_like_means(rng):
    found = bootstrap(rng.standard_normal(400), lambda x: x.mean(-1))
    assert found.high - found.low == pytest.approx(2 * 1.96 / 20, rel=0.1)


def test_durations():
    assert [duration(x) for x in (8.4, 200, 7500)] == ["8 s", "3 min 20 s", "2 h 5 min"]
