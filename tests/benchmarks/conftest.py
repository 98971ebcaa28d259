"""Nothing here looks at seconds, so that nothing has to wait."""

from dataclasses import replace

import pytest
from tiny import SQUARE, SUITE

from benchmarks import measuring
from benchmarks.contenders import ours


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """No waiting for threads to settle or compilers: nothing looks at seconds."""
    monkeypatch.setattr(ours, "COMPILED", ())
    monkeypatch.setattr(measuring, "PAUSE", 0.0)
    monkeypatch.setattr(measuring, "LEAST_SAMPLE", 0.0)


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A folder, and a command whose quick run takes no time."""
    suite = replace(SUITE, cases=(SQUARE,))
    monkeypatch.setattr("benchmarks.run.QUICK", suite)
    monkeypatch.setattr("benchmarks.machine.GEMM_SIZE", 16)
    return tmp_path / "out"
