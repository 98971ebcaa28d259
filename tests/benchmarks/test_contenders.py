"""Every contender is right, judged by the layer's full matrix."""

import importlib
import math

import numpy as np
import pytest
from oracles import values_by_matrix
from tiny import TINY

from benchmarks.checking import error, is_right, reference
from benchmarks.contenders import CERTIFIED, JOBS, LIBRARIES, LOWER, UPPER, installed
from benchmarks.measuring import task_of
from convspectra import dense_matrix

EVERY = [
    pytest.param(one, job, case, id=f"{one.name}-{job}-{case.name}")
    for one in installed()[0]
    for job in one.jobs
    for case in TINY
    if not one.refuses(case)
]


def clipped_by_matrix(task):
    """The kernel nearest to the layer's matrix with its values clipped.

    The matrix is linear in the kernel, so that each entry is an inner product.
    """
    matrix = dense_matrix(task.weight.astype("float64"), task.case.geometry)
    u, s, vh = np.linalg.svd(matrix, full_matrices=False)
    clipped = (u * np.minimum(s, task.max_norm)) @ vh
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


@pytest.mark.parametrize(("one", "job", "case"), EVERY)
def test_every_contender_is_right(one, job, case):
    task = task_of(case, job)
    answer, want = np.asarray(one.prepare(job, task)()), wanted(task, job)
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
    monkeypatch.setattr("benchmarks.checking.MOST_ROWS", 0)
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


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    real = importlib.import_module

    def without_jax(name):
        if name.endswith(".in_jax"):
            raise ModuleNotFoundError("no", name="jax")
        return real(name)

    monkeypatch.setattr("benchmarks.contenders.import_module", without_jax)
    found, missing = installed()
    assert "JAX" in missing
    assert not any(one.name.endswith("JAX") for one in found)
    assert {one.name.rpartition(", ")[2] for one in found} <= set(LIBRARIES)
