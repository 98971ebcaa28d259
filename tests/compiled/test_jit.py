"""Compiled code on disk is never out of date, and never anybody else's."""

import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest

import convspectra
from convspectra._compiled import jit

SOURCE = Path(jit.__file__).parent
HELPER = """
from .jit import jit

@jit
def helper(x):
    return x + 1
"""
# Prints a result that depends on the helper, and whether it was found on disk.
TRIAL = """
import sys, tempfile
from .helper import helper
from .jit import jit

@jit
def trial(x):
    return helper(x)

if len(sys.argv) > 2:
    tempfile.tempdir = sys.argv[2]
print(trial(eval(sys.argv[1])), sum(trial.stats.cache_hits.values()))
"""
# Changes the helper before it is imported, and back in the end.
CHANGING = f"""
from pathlib import Path
from . import jit

path = Path(__file__).with_name("helper.py")
before = path.read_text()
path.write_text(before.replace("x + 1", "x + 2"))
{TRIAL}
path.write_text(before)
"""


@pytest.fixture
def package(tmp_path):
    """A package of two compiled functions, of which one inlines the other."""
    package = tmp_path / "package"
    package.mkdir()
    shutil.copy(SOURCE / "jit.py", package)
    (package / "helper.py").write_text(HELPER)
    (package / "trial.py").write_text(TRIAL)
    return package


def start(package, argument, *temporary, **variables):
    removed = {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME"}
    environment = {k: v for k, v in os.environ.items() if k not in removed}
    # Python's own cache goes by whole seconds, and would not see our changes.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.Popen(
        [sys.executable, "-m", "package.trial", argument, *temporary],
        cwd=package.parent,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    """What the trial said on stdout, and on stderr."""
    found, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return found.strip(), errors


def run(*arguments, **variables):
    return end(start(*arguments, **variables))


def test_changed_sources_are_compiled_anew(package):
    assert run(package, "1") == ("2 0", "")
    (package / "helper.py").write_text(HELPER.replace("x + 1", "x + 2"))
    assert run(package, "1") == ("3 0", "")
    (package / "helper.py").write_text(HELPER)
    assert run(package, "1") == ("2 1", "")


def test_sources_that_change_under_a_process_leave_nothing_on_disk(package):
    # As when a branch is checked out beside a process that has not imported all yet.
    (package / "trial.py").write_text(CHANGING)
    assert run(package, "1") == ("3 0", "")
    assert not list(package.glob("__pycache__/compiled/*/*"))


def test_without_a_home_it_goes_to_the_temporary_folder_which_is_said_once(
    package, tmp_path
):
    (package / "__pycache__").touch()  # a file: nothing goes below it, for root either
    variables = {"HOME": "/dev/null/home", "TMPDIR": str(tmp_path)}
    found, errors = run(package, "1", **variables)
    folder = tmp_path / f"convspectra-{os.geteuid()}"
    assert found == "2 0"
    assert errors.startswith(f"Compiled code is kept in {folder}: neither")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert run(package, "1", **variables) == ("2 1", "")
    assert not Path("/dev/null/home").exists()


def test_without_any_folder_it_works_and_is_said(package):
    (package / "__pycache__").touch()
    found, errors = run(package, "1", "/dev/null/x", HOME="/dev/null/x")
    assert found == "2 0"
    assert errors.startswith("Compiled code cannot be kept")
    assert errors.count("\n") == 1


def test_processes_may_begin_at_the_same_time(package):
    started = [start(package, argument) for argument in ("1", "1.0", "1")]
    found = [end(process)[0].split()[0] for process in started]
    assert found == ["2", "2.0", "2"]
    files = [path.name for path in package.glob("__pycache__/compiled/*/*")]
    assert len(files) == 4  # two functions for two types, and nothing else
    assert run(package, "1.0") == ("2.0 1", "")


def test_every_compiled_function_is_known_by_its_name_and_file():
    modules = [
        importlib.import_module(f"convspectra._compiled.{module.name}")
        for module in pkgutil.iter_modules(convspectra._compiled.__path__)
    ]
    compiled = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, numba.core.dispatcher.Dispatcher)
    }
    functions = [value.py_func for value in compiled]
    kept = [value for value in compiled if isinstance(value._cache, jit._SourceCache)]
    assert len(functions) > 30
    assert len(kept) > 10
    assert {Path(f.__code__.co_filename) for f in functions} <= set(jit.sources())
    assert len({(f.__module__, f.__qualname__) for f in functions}) == len(functions)
    assert all(f.__closure__ is None for f in functions)


def test_places_in_their_order(tmp_path, monkeypatch):
    own = f"convspectra-{os.geteuid()}"
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/numba")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", "/temporary")
    assert list(jit._places()) == [
        (Path("/numba") / own, True),
        (SOURCE / "__pycache__" / "compiled", True),
        (Path("/cache/convspectra"), True),
        (tmp_path / ".cache" / "convspectra", True),
        (Path("/temporary") / own, False),
    ]


def test_a_user_without_a_home_has_places(monkeypatch):
    def missing():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", missing)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    found = [base for base, is_expected in jit._places() if is_expected]
    assert found == [SOURCE / "__pycache__" / "compiled"]


def choose(*folders):
    return jit.choose((folder, True) for folder in folders)


def test_the_first_folder_that_can_be_written_to_is_taken(tmp_path):
    (tmp_path / "file").touch()
    folders = [tmp_path / "file", tmp_path / "file" / "x", Path("/proc/x")]
    assert choose(*folders, tmp_path / "a" / "b").parent == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_not_taken(tmp_path):
    shared, link, own = (tmp_path / name for name in ("shared", "link", "own"))
    shared.mkdir()
    shared.chmod(0o770)
    own.mkdir(mode=0o700)
    link.symlink_to(own)
    assert choose(shared, link, own).parent == own


def test_what_another_user_has_written_is_not_taken(tmp_path, monkeypatch):
    file, folder = tmp_path / "file", tmp_path / "folder"
    folder.mkdir(mode=0o700)
    jit._write(file, b"code")
    assert jit._read(file) == b"code"
    someone_else = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: someone_else)
    assert choose(folder) is None
    assert jit._read(file) is None


@pytest.mark.parametrize("damage", [b"", b"\0" * 40], ids=["empty", "zeros"])
def test_damaged_files_are_not_taken(tmp_path, damage):
    file = tmp_path / "file"
    jit._write(file, b"code")
    assert jit._read(file) == b"code"
    file.write_bytes(damage)
    assert jit._read(file) is None


def test_a_full_disk_is_no_error(tmp_path):
    jit._write(tmp_path / "missing" / "file", b"code")
    (tmp_path / "folder").mkdir()
    jit._write(tmp_path / "folder", b"code")  # fails when all is written
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_versions_that_were_used_longest_ago_are_removed(tmp_path):
    for age in range(6):
        version = tmp_path / f"{age:016x}"
        version.mkdir()
        (version / "code").touch()
        os.utime(version, (1000 - age, 1000 - age))
    (tmp_path / "else").mkdir()
    here = choose(tmp_path)
    found = {path.name for path in tmp_path.iterdir()} - {here.name}
    assert found == {"else", *(f"{age:016x}" for age in range(jit.KEPT - 1))}
