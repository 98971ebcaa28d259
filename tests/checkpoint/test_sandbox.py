"""Children within limits: bytes in, bytes out, one error for every way to die."""

import json
import os
import signal

import pytest

from convspectra._checkpoint.sandbox import ADDED, KEPT, Died, Limits, run

LIMITS = Limits(2**30, 10, 60)
limited = pytest.mark.skipif(os.name == "nt", reason="a system without limits")


@pytest.fixture
def child(tmp_path):
    def run_code(code, limits=LIMITS, *arguments, data=b""):
        script = tmp_path / "script.py"
        script.write_text(code)
        return run(script, limits, *arguments, data=data)

    return run_code


def test_bytes_go_in_and_come_out(child):
    code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    data = bytes(range(256)) * 1000
    assert child(code, data=data) == data[::-1]


def test_a_script_is_run_with_its_arguments(child, tmp_path):
    code = "import json, sys; json.dump([__name__, *sys.argv], sys.stdout)"
    found = json.loads(child(code, LIMITS, "a b", "ä"))
    assert found == ["__main__", str(tmp_path / "script.py"), "a b", "ä"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('two: words')", "OSError: two: words"),
        ("raise OSError('a\\nb')", "OSError: a"),
        ("import sys; sys.stderr.write('noise'); [][0]", "IndexError: list index out"),
        ("raise MemoryError", "MemoryError: "),
        ("no code", "SyntaxError: "),
        ("import sys; sys.exit(3)", ""),
        ("import sys; sys.exit('text')", ""),
        ("import os; os._exit(1)", ""),
        ("raise KeyboardInterrupt", ""),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", ""),
    ],
)
def test_every_death_is_one_error(child, code, said):
    with pytest.raises(Died) as died:
        child(code)
    assert str(died.value).startswith(said)
    assert bool(str(died.value)) == bool(said)


@pytest.mark.parametrize(
    ("code", "limits"),
    [
        pytest.param("bytearray(2**31)", LIMITS, marks=limited),
        pytest.param("while True: pass", LIMITS._replace(work=1), marks=limited),
        ("import time; time.sleep(60)", LIMITS._replace(elapsed=0.5)),
    ],
)
def test_memory_work_and_time_are_limited(child, code, limits):
    with pytest.raises(Died):
        child(code, limits)


@limited
def test_limits_are_for_good_and_no_core_is_dumped(child):
    names = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_CORE")
    code = f"import resource as r; print([r.getrlimit(getattr(r, n)) for n in {names}])"
    assert child(code).split() == str([(2**30,) * 2, (10, 10), (0, 0)]).encode().split()


def test_a_child_sees_nothing_else_of_the_environment(child, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("HDF5_PLUGIN_PATH", "/elsewhere")
    found = json.loads(child("import json, os; print(json.dumps(dict(os.environ)))"))
    assert found.items() >= ADDED.items()
    # Python itself sets the last where no locale is.
    assert found.keys() <= {*KEPT, *ADDED, "LC_CTYPE"}


def test_modules_in_the_present_folder_are_never_run(child, tmp_path, monkeypatch):
    (tmp_path / "runpy.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert child("print(1)").split() == [b"1"]


def test_a_child_leaves_no_compiled_files(child):
    code = "import sys; print(sys.dont_write_bytecode, sys.warnoptions)"
    assert child(code).split() == [b"True", b"['ignore']"]
