"""The command with stdout or stderr closed or full: data and codes do not suffer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from convspectra._cli import main as command

FULL = "/dev/full"  # to which nothing can be written

pytestmark = pytest.mark.skipif(os.name != "posix", reason="streams are closed by sh")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Each test works in a folder of its own, with a kernel of norm 3."""
    monkeypatch.chdir(tmp_path)
    np.save("k.npy", np.ones((1, 1, 3)))
    return tmp_path


def run(redirection, *argv):
    """Run the command with a redirection of sh."""
    if FULL in redirection and not Path(FULL).exists():
        pytest.skip(f"there is no {FULL} here")
    if (
        "2>&-" in redirection
        and _run(redirection, "-c", "import numpy.f2py").returncode
    ):
        pytest.skip("this version of NumPy can't be imported without stderr")
    return _run(redirection, "-m", "convspectra", *argv)


def _run(redirection, *argv):
    shell = ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, *argv]
    return subprocess.run(shell, capture_output=True, check=False, text=True)


@pytest.mark.parametrize(
    ("options", "code"),
    [([], 0), (["--fail-above", "4"], 0), (["--fail-above", "2"], 1)],
)
def test_without_stdout_the_code_is_that_of_the_check(options, code):
    done = run(">&-", "norm", "k.npy", "--grid", "8", *options)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("redirection", ["2>&-", f"2>{FULL}"])
def test_without_stderr_the_data_are_there(redirection):
    done = run(redirection, "norm", "k.npy", "--json")  # of which something is said
    assert done.returncode == 0
    (row,) = json.loads(done.stdout)["kernels"]
    assert row["upper"] == pytest.approx(3, rel=1e-3)


@pytest.mark.parametrize("redirection", ["2>&-", f"2>{FULL}", ">&- 2>&-"])
def test_without_stderr_what_cannot_run_has_its_code(redirection):
    assert run(redirection, "norm", "missing.npy").returncode == 2


def test_a_full_disk_is_no_failed_check():
    done = run(f">{FULL}", "norm", "k.npy", "--grid", "8", "--fail-above", "4")
    assert done.returncode == 2
    assert "No space left on device" in done.stderr


def test_what_nobody_expects_is_no_failed_check(capsys, monkeypatch):
    def surprised(_):
        raise RuntimeError("of a kind that is not caught")

    monkeypatch.setitem(command.COMMANDS, "norm", surprised)
    monkeypatch.setattr("sys.argv", ["convspectra", "norm", "k.npy"])
    with pytest.raises(SystemExit) as stop:
        command.run()
    assert stop.value.code == 2
    assert "RuntimeError: of a kind that is not caught" in capsys.readouterr().err
