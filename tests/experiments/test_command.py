"""The command: what it lists, refuses, and returns."""

import importlib

import pytest

from experiments import __main__ as command
from experiments import theorem, timing
from experiments.__main__ import EXPERIMENTS, main
from experiments.claims import Claim


def test_every_experiment_states_its_claim():
    for name in EXPERIMENTS:
        module = importlib.import_module(f"experiments.{name}")
        assert "Claim" in module.__doc__, name
        assert callable(module.run)


def test_the_list_names_all(capsys):
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == list(EXPERIMENTS)


@pytest.mark.parametrize(
    "line",
    ["", "theorem --all", "nothing", "sweep --scale big", "sweep --jobs 0"],
)
def test_other_lines_are_refused(line, capsys):
    with pytest.raises(SystemExit) as end:
        main(line.split())
    assert end.value.code == 2
    assert "usage: python -m experiments" in capsys.readouterr().err


def test_what_is_wrong_is_said_without_a_traceback(tmp_path, capsys):
    assert main(["cifar10", "--out", str(tmp_path)]) == 2
    assert "name its folder with --data FOLDER" in capsys.readouterr().err
    missing = ["cifar10", "--out", str(tmp_path), "--data", str(tmp_path)]
    assert main(missing) == 2
    assert "must hold CIFAR-10" in capsys.readouterr().err


def test_what_nobody_expected_is_no_verdict(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(theorem, "run", lambda options: [][0])
    assert main(["theorem", "--out", str(tmp_path)]) == 2
    assert "IndexError: list index out of range" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ([True], [True, None], 0),
        ([False], [None], 1),  # no claim of the second is decided
        ([False], [True], 1),
        ([True], ValueError("no"), 2),
        ([None], [None], 2),
    ],
)
def test_all_have_one_exit_code(first, second, code, tmp_path, monkeypatch):
    def run(found):
        if isinstance(found, Exception):
            raise found
        return [Claim("a", "1", "2", holds) for holds in found]

    monkeypatch.setattr(command, "EXPERIMENTS", {"timing": "", "theorem": ""})
    monkeypatch.setattr(timing, "run", lambda options: run(first))
    monkeypatch.setattr(theorem, "run", lambda options: run(second))
    assert main(["--all", "--out", str(tmp_path)]) == code


def test_an_interruption_ends_all(tmp_path, capsys, monkeypatch):
    begun = []

    def interrupted(options):
        begun.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "EXPERIMENTS", {"timing": "", "theorem": ""})
    for module in (timing, theorem):
        monkeypatch.setattr(module, "run", interrupted)
    assert main(["--all", "--out", str(tmp_path)]) == 130
    assert len(begun) == 1
    assert "timing: interrupted; the same command" in capsys.readouterr().err
