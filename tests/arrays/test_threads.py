"""Work in portions over the cores."""

import multiprocessing
import threading

import numpy as np
import pytest

from convspectra._arrays import threads
from convspectra._arrays.threads import spread


@pytest.fixture(params=[1, 2, 5])
def cores(request, monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: request.param)
    return request.param


@pytest.mark.parametrize("least", [1, 8])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 100, 1003])
def test_every_number_is_in_one_portion(cores, count, least):
    seen = np.zeros(count, dtype=int)
    starts = []

    def work(start, stop):
        seen[start:stop] += 1
        starts.append(start)

    spread(work, count, least=least)
    assert (seen == 1).all()
    assert all(start % least == 0 for start in starts)


def test_portions_run_at_the_same_time(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 2)
    meeting = threading.Barrier(2, timeout=30)
    spread(lambda start, stop: meeting.wait() and None, 2)


@pytest.mark.parametrize("bad", [0, 99])
def test_an_error_in_any_portion_comes_out(cores, bad):
    def work(start, stop):
        if start <= bad < stop:
            raise ValueError("this portion")

    with pytest.raises(ValueError, match="this portion"):
        spread(work, 100)


@pytest.mark.parametrize(
    ("stated", "want"),
    [("2", 2), (" 1,8", 1), ("99", 4), ("0", 4), ("", 4), ("-1", 4), ("all", 4)],
)
def test_no_more_cores_than_are_stated(monkeypatch, stated, want):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(4), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert threads.cores.__wrapped__() == want


def _sum_in_a_fork(queue):
    found = np.zeros(1000)
    spread(lambda start, stop: found[start:stop].fill(1.0), 1000)
    queue.put(found.sum())


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 2)
    spread(lambda start, stop: None, 10)  # now there is a pool
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_sum_in_a_fork, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == 1000
    process.join(timeout=60)
    assert process.exitcode == 0


def test_what_is_spread_out_within_a_portion_is_not_spread_out_further():
    seen = []

    def outer(start, stop):
        here = threading.get_ident()
        for _ in range(start, stop):
            spread(lambda a, b: seen.append((a, b, threading.get_ident() == here)), 9)

    spread(outer, 6)
    assert seen == [(0, 9, True)] * 6
    seen.clear()
    spread(lambda a, b: seen.append((a, b)), 9)  # and afterwards it is again
    assert sorted(a for a, _ in seen)[0] == 0
    assert sum(b - a for a, b in seen) == 9
