"""`python -m benchmarks` writes its files, resumes, and says what is wrong."""

import json

import pytest
from tiny import SQUARE, counted, wrong_values

from benchmarks.__main__ import main
from benchmarks.contenders import JOBS, Contender, contender
from benchmarks.measuring import measure


def test_the_command_writes_its_files_and_goes_on_where_it_was(
    tiny, capsys, monkeypatch
):
    assert main(["-o", str(tiny), "--jobs", "values"]) == 0
    out, _ = capsys.readouterr()
    assert out.splitlines()[2].startswith(f"| {SQUARE.name} |")
    files = {"results.json", "results.md", "figure.png"}
    assert {path.name for path in tiny.iterdir()} == files
    before = json.loads((tiny / "results.json").read_text())
    assert {"processor", "cores", "numpy", "blas"} <= set(before["machine"])

    done = []

    def spied(case, job, *rest):
        done.append(job)
        return measure(case, job, *rest)

    monkeypatch.setattr("benchmarks.run.measure", spied)
    assert main(["-o", str(tiny), "--json"]) == 0
    out, err = capsys.readouterr()
    assert done == ["norm", "clip"]
    assert "1 of 3 jobs are in" in err
    assert [row["job"] for row in json.loads(out)["ratios"]] == list(JOBS)
    after = json.loads((tiny / "results.json").read_text())
    assert after["results"][0] == before["results"][0]

    done.clear()
    assert main(["-o", str(tiny), "--jobs", "clip", "--fresh"]) == 0
    assert done == ["clip"]


def test_results_of_other_settings_are_not_gone_on_with(tiny, capsys):
    assert main(["-o", str(tiny), "--jobs", "values"]) == 0
    path = tiny / "results.json"
    document = json.loads(path.read_text())
    document["settings"]["numpy"] = "1.0"
    path.write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["-o", str(tiny)]) == 2
    assert "these differ: numpy. Take another folder" in capsys.readouterr().err
    path.write_text("{")
    assert main(["-o", str(tiny)]) == 2
    assert "must hold the results of such a run" in capsys.readouterr().err


def test_a_wrong_answer_of_ours_has_its_own_code(tiny, capsys, monkeypatch):
    ours = Contender("convspectra, NumPy", {"values": counted([], wrong_values)})
    field = (contender("paper, NumPy"), ours)
    monkeypatch.setattr("benchmarks.run.installed", lambda: (field, ("JAX",)))
    assert main(["-o", str(tiny), "--jobs", "values"]) == 1
    err = capsys.readouterr().err
    assert "JAX is not installed" in err
    assert f"failed: convspectra, NumPy, values of {SQUARE.name}: off by" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--jobs speed", "argument --jobs: must be some of values, norm, clip"),
        ("--jobs values,", "joined by commas, got 'values,'"),
        ("--quick --full", "not allowed with argument --quick"),
    ],
)
def test_bad_options_are_refused(tmp_path, monkeypatch, capsys, line, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(line.split())
    out, err = capsys.readouterr()
    assert message in err
    assert (out, list(tmp_path.iterdir())) == ("", [])


def test_a_folder_that_cannot_be_made_is_refused(tiny, capsys):
    tiny.write_text("a file")
    assert main(["-o", str(tiny)]) == 2
    assert f"File exists: '{tiny}'" in capsys.readouterr().err


def test_help_teaches_by_example(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert "examples:\n  python -m benchmarks\n" in out
    assert "An answer that fails its check is not timed." in out
