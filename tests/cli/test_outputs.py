"""What the command writes takes the place of nothing that a user has made."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from convspectra._cli.main import main
from convspectra._cli.outputs import FIGURES

BOUND = ["--grid", "4", "--max-norm", "1"]
STATED = ["--grid", "4", "--stride", "1", "--groups", "1", "--boundary", "circular"]
REPORT = ["report", "k.npy", *STATED, "-o", "out"]
REPORT_ON_TWO = ["report", "k.npy", "k.npz", *STATED, "-o", "out"]
COMMANDS = {
    "clip": ["clip", "k.npy", *BOUND],
    "project": ["project", "k.npy", *BOUND],
    "values": ["values", "k.npz", "--grid", "4"],
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, rng):
    """Each test works in a folder of its own, with kernels and a folder for results."""
    monkeypatch.chdir(tmp_path)
    weight = rng.standard_normal((3, 2, 3, 3))
    np.save("k.npy", weight)
    np.savez("k.npz", k=weight)
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.fixture
def out(here):
    return here / "out"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def refuse(capsys, *argv):
    """Run a command that cannot run, and return what it says."""
    assert main([*argv]) == 2
    return capsys.readouterr().err


# A report


@pytest.mark.parametrize("argv", [REPORT, REPORT_ON_TWO], ids=["one", "two"])
def test_a_report_leaves_what_it_has_not_written(out, argv):
    names = ["report.tex", "report.pdf", "report.htm", "spectra.csv"]
    names += [f"{figure}.{suffix}" for figure in FIGURES for suffix in ("pdf", "svg")]
    for name in names:
        (out / name).write_text("a year of work")
    (out / "report.d").mkdir()
    assert main(argv) == 0
    assert (out / "report.html").exists()
    assert {name: contents(out)[name] for name in names} == dict.fromkeys(
        names, b"a year of work"
    )
    assert (out / "report.d").is_dir()


@pytest.mark.parametrize("argv", [REPORT, REPORT_ON_TWO], ids=["one", "two"])
@pytest.mark.parametrize("name", ["report.html", "report.json", "largest-norm.png"])
def test_a_report_does_not_begin_where_the_user_has_a_file_of_its_name(
    capsys, out, name, argv
):
    (out / name).write_text("Notes on convspectra report, a year of work.")
    before = contents(out)
    err = refuse(capsys, *argv)
    assert f"files of earlier reports, got {str(Path('out', name))!r}" in err
    assert "name another folder by -o" in err
    assert "Largest norms" not in err
    assert contents(out) == before
    assert not (out / "results").exists()


def test_a_folder_of_the_name_of_the_page_is_no_earlier_report(capsys, out):
    (out / "report.html").mkdir()
    assert "files of earlier reports" in refuse(capsys, *REPORT)


def test_a_file_that_comes_during_the_work_stays(capsys, out, monkeypatch):
    def finished(*_):
        (out / "report.json").write_text("precious")

    monkeypatch.setattr("convspectra._cli.report.show", finished)
    assert "files of earlier reports" in refuse(capsys, *REPORT)
    assert contents(out) == {"report.json": b"precious"}


@pytest.mark.parametrize(
    ("suffix", "head"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_a_report_replaces_an_earlier_one_and_its_figures(capsys, out, suffix, head):
    assert main([*REPORT, "--figures", suffix]) == 0
    drawn = {f"spectra.{suffix}", f"largest-norm.{suffix}"}
    assert contents(out).keys() == {"report.html", "report.json"} | drawn
    assert all(contents(out)[name].startswith(head) for name in drawn)
    (out / "notes.txt").write_text("mine")
    assert main([*REPORT, "--quick"]) == 0  # which draws nothing
    assert "in out: report.html, report.json." in capsys.readouterr().err
    assert contents(out).keys() == {"report.html", "report.json", "notes.txt"}


def test_the_figure_of_many_checkpoints_goes_with_their_report(out):
    assert main(REPORT_ON_TWO) == 0
    assert (out / "trajectories.png").exists()
    assert main([*REPORT, "--quick"]) == 0
    assert contents(out).keys() == {"report.html", "report.json"}
    assert (out / "results").is_dir()


def test_a_failing_write_leaves_the_earlier_report(capsys, out, monkeypatch):
    assert main(REPORT) == 0
    before = contents(out)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    assert "No space left on device" in refuse(capsys, *REPORT)
    assert contents(out) == before


# Copies with other kernels, and values


def other_name(kind, path):
    """Another name for a file."""
    if kind == "itself":
        return str(path)
    if kind == "spelled otherwise":
        return str(Path("out", "..", path))
    target = Path(f"other{path[-4:]}")
    if kind == "symbolic link":
        target.symlink_to(path)
    else:
        target.hardlink_to(path)
    return str(target)


@pytest.mark.parametrize(
    "kind", ["itself", "spelled otherwise", "symbolic link", "hard link"]
)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_over_its_input(capsys, here, command, kind):
    argv = COMMANDS[command]
    target = other_name(kind, argv[1])
    before = contents(here)
    err = refuse(capsys, *argv, "-o", target)
    assert f"another file than the input, got {target!r} for both" in err
    assert contents(here) == before


def test_nor_over_the_weights_in_the_folder_that_is_its_input(capsys, here, rng):
    (here / "net").mkdir()
    weights = {"k": rng.standard_normal((3, 2, 3, 3))}
    safetensors.numpy.save_file(weights, "net/model.safetensors")
    before = contents(here / "net")
    target = str(Path("net", "model.safetensors"))
    assert "than the input" in refuse(capsys, "clip", "net", *BOUND, "-o", target)
    assert contents(here / "net") == before


def test_nor_over_the_file_of_another_option(capsys, here):
    np.save("like.npy", np.ones((3, 2, 3, 3)))
    before = contents(here)
    argv = [*COMMANDS["clip"], "--like", "like.npy", "-o", "like.npy"]
    assert "than the input" in refuse(capsys, *argv)
    assert contents(here) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_write_protected_file_stays(capsys, here, monkeypatch, command):
    argv = COMMANDS[command]
    target = here / f"old{argv[1][-4:]}"
    target.write_bytes(b"precious")
    target.chmod(0o444)  # which root may write to, all the same
    monkeypatch.setattr("os.access", lambda path, mode: path != target)
    assert "write-protected" in refuse(capsys, *argv, "-o", str(target))
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_is_no_target(capsys, here, out, command):
    argv = COMMANDS[command]
    suffix = argv[1][-4:]
    (here / f"folder{suffix}").mkdir()
    assert f"must end in {suffix}" in refuse(capsys, *argv, "-o", "out")
    assert "must be a file" in refuse(capsys, *argv, "-o", f"folder{suffix}")
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_protected_folder_is_named_before_the_work(
    capsys, here, out, monkeypatch, command
):
    argv = COMMANDS[command]
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != Path("out"))
    err = refuse(capsys, *argv, "-o", str(Path("out", f"new{argv[1][-4:]}")))
    assert "in a folder that exists and can be written, got" in err
