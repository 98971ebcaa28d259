"""What calls from several threads leave behind in BLAS and in torch: nothing."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest
from optional import needed
from threadpoolctl import threadpool_info, threadpool_limits

import convspectra as cs
from convspectra._arrays.host import one_thread, with_one_thread
from convspectra._arrays.linalg import are_definite, eigh
from convspectra._arrays.threads import in_our_thread, spread

torch = needed("torch")

GEOMETRY = cs.Geometry(grid=(8, 8))


@pytest.fixture(autouse=True)
def three_threads():
    """More than one, and not what a machine with two cores has by itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    with threadpool_limits(3, "blas"):
        yield
    torch.set_num_threads(before)


def blas_threads():
    """Of NumPy's; scipy's is loaded by numba, sooner or later."""
    blas = [x for x in threadpool_info() if x["user_api"] == "blas"]
    return {x["num_threads"] for x in blas if "numpy" in x["filepath"]}


@contextmanager
def running(work):
    """A thread of a user's that does some work; what it raises comes out."""
    wrong = []

    def run():
        try:
            work()
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(timeout=60)
    assert not thread.is_alive()
    if wrong:
        raise wrong[0]


def torch_threads_of_a_new_thread():
    found = []
    with running(lambda: found.append(torch.get_num_threads())):
        pass
    return found[0]


def meet(event):
    assert event.wait(timeout=60)


@pytest.mark.parametrize("kind", [np.zeros, torch.zeros])
def test_calls_that_overlap_leave_blas_as_it_was(kind):
    """The first one in is the first one out, when the second one is still inside."""
    inside, left = threading.Event(), threading.Event()

    def second():
        with one_thread(kind(1)):
            inside.set()
            meet(left)
            assert blas_threads() == {1}

    with one_thread(kind(1)):
        other = running(second)
        other.__enter__()
        meet(inside)
        assert blas_threads() == {1}
    left.set()
    other.__exit__(None, None, None)
    assert blas_threads() == {3}
    assert torch.get_num_threads() == 3
    assert torch_threads_of_a_new_thread() == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_that_overlap_leave_all_threads_as_they_were(dtype, rng):
    """Also those of the threads that they are computed in, which are new to torch."""
    weight = torch.asarray(rng.standard_normal((4, 4, 3, 3))).to(dtype)
    start, found = threading.Barrier(3, timeout=60), []

    def norm():
        start.wait()
        for _ in range(5):
            cs.operator_norm(weight, GEOMETRY)
        found.append(torch.get_num_threads())

    with running(norm), running(norm):
        start.wait()
        for _ in range(5):
            cs.operator_norm(weight, GEOMETRY)
    assert found == [3, 3]
    assert torch.get_num_threads() == 3
    assert torch_threads_of_a_new_thread() == 3
    assert blas_threads() == {3}


def test_a_thread_that_is_new_to_torch_gets_its_number_during_a_call():
    found = []

    def work(weight):
        found.append(torch.get_num_threads())
        found.append(torch_threads_of_a_new_thread())

    with_one_thread(work, torch.zeros(1))
    assert found == [1, 3]


@pytest.mark.parametrize("side", [3, 100])
@pytest.mark.parametrize("solve", [eigh, are_definite])
def test_a_solver_called_alone_leaves_torch_as_it_was(solve, side):
    solve(np.eye(side)[None])
    assert torch.get_num_threads() == 3
    assert blas_threads() == {3}


def test_torch_has_one_thread_in_ours():
    found = []
    spread(lambda *_: found.append(torch.get_num_threads()), 9, only_ours=True)
    assert set(found) == {1}
    assert in_our_thread(torch.get_num_threads) == 1
    assert torch.get_num_threads() == 3


def test_users_threads_can_all_wait_for_ours():
    """More of them than we have threads, each with more work than there are cores."""
    total = np.zeros((8, 100))

    def work(row):
        def portion(start, stop):
            total[row, start:stop] += in_our_thread(lambda: 1)

        spread(portion, 100)
        in_our_thread(lambda: spread(portion, 100))

    threads = [threading.Thread(target=work, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert (total == 2).all()


@pytest.mark.filterwarnings("ignore:.*fork.*")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fork_during_a_call_has_all_threads():
    """A forked process has none of the threads that were inside."""
    import os

    inside, done = threading.Event(), threading.Event()

    def call():
        with one_thread(np.zeros(1)):
            inside.set()
            meet(done)

    with running(call):
        meet(inside)
        child = os.fork()
        if child == 0:
            found = blas_threads()
            with one_thread(np.zeros(1)):
                found |= {10 * n for n in blas_threads()}
            os._exit(0 if found == {3, 10} and blas_threads() == {3} else 1)
        done.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
