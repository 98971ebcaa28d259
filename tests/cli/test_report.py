"""`convspectra report` and `diff`: files in, a table, data, a page and figures out."""

import csv
import io
import json
import ntpath
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from optional import needed
from oracles import norm_by_matrix, values_by_matrix
from real_data import real_data

from convspectra import Geometry
from convspectra._checkpoint import select
from convspectra._cli.main import main
from convspectra._report import from_file
from convspectra._report.partly_known import norm_of

STATED = ["--stride", "1", "--groups", "1", "--boundary", "circular"]
NETS = [  # a file, its options, and its convolutions
    ("ultraface_RFB-320.onnx", ["--key", "base_net.[0-7].*"], 25),
    ("ppocr_v2_cls_mobilenetv3.onnx", ["--input", "1x3x48x192"], 53),
    ("mlperf_tiny_resnet8_cifar10.h5", ["--grid", 16], 9),
    ("resnet20-12fca82f.th", [], 19),
    ("squeezenet1.1_imagenet.npz", ["--layout", "hwio"], 26),
    pytest.param("ultraface_RFB-320.onnx", [], 52, marks=pytest.mark.slow),
    pytest.param("basic_pitch_nmp.onnx", [], 32, marks=pytest.mark.slow),
    pytest.param(
        "ppocr_v4_det.onnx", ["--input", "1x3x320x320"], 64, marks=pytest.mark.slow
    ),
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Each test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(rng):
    """A small checkpoint: two kernels, and what is none."""
    arrays = {
        "block.conv1.weight": rng.standard_normal((3, 2, 3, 3)).astype("float32"),
        "block.conv1.bias": np.ones(3, "float32"),
        "block.conv2.weight": rng.standard_normal((2, 3, 3, 3)).astype("float32"),
    }
    safetensors.numpy.save_file(arrays, "model.safetensors", metadata={"format": "pt"})
    return arrays


def said(capsys, *argv, code=0):
    """Run the command; return what is on stdout and stderr."""
    assert main([*map(str, argv)]) == code
    return capsys.readouterr()


def document(capsys, *argv, code=0):
    return json.loads(said(capsys, *argv, "--json", code=code).out)


def test_a_report_is_a_table_a_page_its_data_and_figures(capsys, here, model):
    out, err = said(capsys, "report", "model.safetensors", "--grid", 8, *STATED)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "layer",
        "block",
        "conv1.weight",
        "conv2.weight",
    ]
    assert "Largest norms: block.conv" in err
    assert "Skipped (has fewer than 3 axes): 'block.conv1.bias'." in err
    folder = here / "convspectra-report"
    names = {path.name for path in folder.iterdir()}
    assert names == {"report.html", "report.json", "spectra.png", "largest-norm.png"}
    found = json.loads((folder / "report.json").read_text())
    for row in found["layers"]:
        weight = model[row["name"]].astype(float)
        want = values_by_matrix(weight, Geometry(grid=8))
        assert row["norm_upper"] == pytest.approx(want[0], rel=2e-4)
        assert row["smallest"] == pytest.approx(want[-1], abs=1e-5)
        assert row["above_one"] == pytest.approx(np.mean(want > 1), abs=1e-3)
        assert row["count_above_one"] == row["above_one"] * row["count"]
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "block.conv2.weight" in html


def test_data_alone_leaves_no_files(capsys, here, model):
    found = document(capsys, "report", "model.safetensors", "--grid", 4)
    assert [row["name"] for row in found["layers"]] == [
        "block.conv1.weight",
        "block.conv2.weight",
    ]
    out, _ = said(capsys, "report", "model.safetensors", "--grid", 4, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["shape"] for row in rows] == ["3x2x3x3", "2x3x3x3"]
    for row, other in zip(rows, found["layers"]):
        assert float(row["norm_upper"]) == other["norm_upper"]
    assert [path.name for path in here.iterdir()] == ["model.safetensors"]


def csv_rows(capsys, *argv):
    return list(csv.DictReader(io.StringIO(said(capsys, *argv, "--csv").out)))


@pytest.mark.parametrize("padding", ["same", "1:1x1:1", "0:1x1:0"])
def test_csv_has_words_with_spaces_and_padding_as_the_option_takes_it(
    capsys, model, padding
):
    argv = ["report", "model.safetensors", "--padding", padding]
    (row, _) = csv_rows(capsys, *argv)
    assert row["unknown"] == "grid stride dilation groups boundary transposed"
    assert row["padding"] == padding
    several = ["report", "model.safetensors", "copy.npz", "--padding", padding]
    np.savez("copy.npz", **model)
    for other in csv_rows(capsys, *several):
        assert (other["unknown"], other["padding"]) == (row["unknown"], padding)
    (row, _) = csv_rows(capsys, *argv, "--grid", 6, *STATED)
    assert (row["unknown"], row["grid"]) == ("", "6x6")


def test_without_a_grid_norms_hold_for_every_size(capsys, model):
    out, err = said(capsys, "report", "model.safetensors")
    assert "upper bounds hold for every size" in err
    assert "They have no values." in err
    assert "conv1.weight" in out
    (row, _) = document(capsys, "report", "model.safetensors")["layers"]
    for geometry in (
        Geometry(9, boundary="zeros"),
        Geometry(9, boundary="zeros", stride=2),
        Geometry(9, boundary="zeros", dilation=2, padding=3),
    ):
        norm = norm_by_matrix(model["block.conv1.weight"], geometry)
        assert norm <= row["norm_upper"] * (1 + 1e-6)


def test_a_geometry_file_speaks_of_each_kernel(capsys, here, model):
    (here / "layers.toml").write_text(
        '["*"]\nboundary = "zeros"\npadding = 1\nstride = 1\ngroups = 1\n'
        '["*.conv1.*"]\ngrid = [6, 5]\n["*.conv2.*"]\ngrid = 4\nstride = 2\n'
    )
    argv = ["report", "model.safetensors", "--geometry", "layers.toml"]
    one, two = document(capsys, *argv)["layers"]
    for row, geometry in (
        (one, Geometry((6, 5), padding=1, boundary="zeros")),
        (two, Geometry(4, stride=2, padding=1, boundary="zeros")),
    ):
        norm = norm_by_matrix(model[row["name"]], geometry)
        assert row["norm_lower"] * (1 - 1e-6) <= norm <= row["norm_upper"] * (1 + 1e-6)


def test_huge_kernels_have_a_report_or_a_reason(here, capsys):
    arrays = {
        "double": np.full((2, 2, 3, 3), 1e308),
        "single": np.full((2, 2, 3, 3), 3e38, "float32"),
        "plain": np.ones((2, 2, 3, 3)),
    }
    np.savez("huge.npz", **arrays)
    args = ("huge.npz", "--grid", 8, *STATED, "-o", "huge")
    _, err = said(capsys, "report", *args)
    assert "exceeds the largest of them, 1.8e308" in err
    found = json.loads((here / "huge" / "report.json").read_text())
    assert {row["name"] for row in found["layers"]} == {"plain", "single"}
    for row in found["layers"]:
        want = values_by_matrix(arrays[row["name"]], Geometry(8))
        assert row["largest"] == pytest.approx(want[0])
        assert row["smallest"] == pytest.approx(0, abs=1e-6 * want[0])


@pytest.mark.parametrize("command", ["report", "norm"])
def test_a_layer_on_which_a_method_fails_is_named(command, capsys, model, monkeypatch):
    def fails(layer, *rest):
        if layer.name == "block.conv2.weight":
            raise ArithmeticError("one of our methods has failed.")
        return norm_of(layer, *rest)

    for module in ("_report.layer_spectrum", "_cli.kernels"):
        monkeypatch.setattr(f"convspectra.{module}.norm_of", fails)
    code = 2 if command == "norm" else 0
    _, err = said(capsys, command, "model.safetensors", "--grid", 8, code=code)
    assert "one of our methods has failed" in err
    assert "'block.conv2.weight'" in err


def test_a_bad_kernel_is_skipped_and_the_others_go_on(capsys, model):
    model["nan"] = np.full((1, 1, 3), np.nan, "float32")
    np.savez("model.npz", **model)
    found = document(capsys, "report", "model.npz", "--grid", 4)
    assert len(found["layers"]) == 2
    reasons = {row["name"]: row["reason"] for row in found["skipped"]}
    assert "must be finite" in reasons["nan"]


def test_a_file_is_read_once_for_table_page_and_figures(here, model, monkeypatch):
    read, files = select.read_network, []

    def watched(path, **options):
        files.append(path.name)
        return read(path, **options)

    monkeypatch.setattr(select, "read_network", watched)
    assert main(["report", "model.safetensors", "--grid", "8", *STATED]) == 0
    assert (here / "convspectra-report" / "largest-norm.png").exists()
    assert files == ["model.safetensors"]


def test_a_file_of_bad_kernels_alone_could_not_be_looked_at(capsys, here):
    np.savez("nan.npz", a=np.full((1, 1, 3), np.nan), b=np.full((1, 1, 3), np.nan))
    _, err = said(capsys, "report", "nan.npz", "--grid", 4, code=2)
    assert "the first error was: 'a': `weight` must be finite" in err
    assert [path.name for path in here.iterdir()] == ["nan.npz"]


def test_what_nobody_states_is_unknown_everywhere(capsys, model):
    argv = ["report", "model.safetensors", "--grid", 4]
    (row, _) = document(capsys, *argv)["layers"]
    assert row["grid"] == [4, 4]
    for field in ("stride", "dilation", "groups", "padding", "boundary", "norm_lower"):
        assert row[field] is None, field
    assert row["values_of"] == "assumption"
    out, err = said(capsys, *argv)
    assert "unknown" in out
    assert "Unknown of 2 of the layers: stride, dilation, groups" in err
    assert "Product of all norms: unknown to 10^" in err
    assert "values assume stride 1, one\ngroup and a circular boundary" in err
    assert "No input size" not in err  # it is stated
    out, err = said(capsys, *argv, *STATED)
    assert "unknown" not in out + err


@pytest.mark.parametrize(
    ("encoding", "option", "shown"),
    [
        ("ascii", "--quick", rb"na\xefve\u2713"),
        ("cp1252", "--csv", b"na\xefve\\u2713"),
    ],
)
def test_names_that_stdout_has_no_letters_for_are_escaped(
    here, encoding, option, shown
):
    np.savez("model.npz", **{"naïve✓": np.ones((1, 1, 3))})
    command = [sys.executable, "-m", "convspectra", "report", "model.npz", option]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    found = subprocess.run(
        [*command, "-o", "out"], check=True, capture_output=True, env=environment
    )
    assert shown in found.stdout
    (row,) = json.loads((here / "out" / "report.json").read_text())["layers"]
    assert row["name"] == "naïve✓"


class Nowhere:
    """Finds that a package is not installed."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("module", "extra", "missing"),
    [("matplotlib", "plot", "spectra.png"), ("plotly", "report", "report.html")],
)
def test_what_is_not_installed_is_said_and_the_rest_is_there(
    capsys, here, model, monkeypatch, module, extra, missing
):
    for loaded in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr("sys.meta_path", [Nowhere(module), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "convspectra.plot", raising=False)
    monkeypatch.delattr("convspectra.plot", raising=False)
    out, err = said(capsys, "report", "model.safetensors", "--grid", 4, "-o", "out")
    assert f"pip install 'convspectra[{extra}]'" in err
    assert "conv1.weight" in out
    names = {path.name for path in (here / "out").iterdir()}
    assert missing not in names
    assert "report.json" in names


@pytest.fixture
def with_pointwise(model, rng):
    """The model with kernels of one tap, on one axis and on two."""
    points = {
        "skip.weight": rng.standard_normal((3, 2, 1, 1)).astype("float32"),
        "mix.weight": rng.standard_normal((3, 2, 1)).astype("float32"),
        "row.weight": rng.standard_normal((3, 2, 3, 1)).astype("float32"),
    }
    np.savez("mixed.npz", **model, **points)
    np.savez("points.npz", **{name: points[name] for name in list(points)[:2]})


@pytest.mark.usefixtures("with_pointwise")
def test_kernels_of_one_tap_are_left_out_if_asked_for(capsys):
    argv = ["report", "mixed.npz", "--grid", "none"]
    assert len(document(capsys, *argv)["layers"]) == 5
    found = document(capsys, *argv, "--skip-pointwise")
    names = [row["name"] for row in found["layers"]]
    assert names == ["block.conv1.weight", "block.conv2.weight", "row.weight"]
    reasons = {row["name"]: row["reason"] for row in found["skipped"]}
    assert reasons["skip.weight"] == reasons["mix.weight"]
    assert reasons["skip.weight"] == "has one tap, and --skip-pointwise leaves it out"
    assert "fewer than 3 axes" in reasons["block.conv1.bias"]


@pytest.mark.usefixtures("with_pointwise")
def test_a_table_may_be_for_a_kernel_that_is_left_out(capsys, here):
    (here / "layers.toml").write_text('["skip.*"]\nstride = 2\n')
    argv = ["report", "mixed.npz", "--geometry", "layers.toml", "--skip-pointwise"]
    assert len(document(capsys, *argv)["layers"]) == 3


@pytest.mark.usefixtures("with_pointwise")
def test_a_file_of_one_tap_kernels_alone_is_refused_without_them(capsys):
    _, err = said(capsys, "report", "points.npz", "--skip-pointwise", code=2)
    assert "some kernel must have more than one tap, got 2 with one" in err


@pytest.mark.usefixtures("with_pointwise")
def test_many_files_are_looked_at_again_without_pointwise_kernels(capsys):
    argv = ["report", "mixed.npz", "model.safetensors", "-o", "out"]
    rows = document(capsys, *argv)["checkpoints"]
    assert [row["layers"] for row in rows] == [5, 2]
    rows = document(capsys, *argv, "--skip-pointwise")["checkpoints"]
    assert [row["layers"] for row in rows] == [3, 2]


def test_the_network_that_comes_with_the_package(capsys, here):
    found = document(capsys, "report")
    kernels = [row for row in found["layers"] if len(row["shape"]) == 4]
    assert len(kernels) > 10
    assert all(row["boundary"] == "zeros" for row in kernels)
    assert kernels[0]["grid"] == [32, 32]
    assert all(row["norm_lower"] <= row["norm_upper"] for row in kernels)


@pytest.mark.parametrize(("name", "options", "count"), NETS)
def test_real_networks_report(capsys, name, options, count):
    found = document(capsys, "report", real_data(name), *options)
    kernels = [row for row in found["layers"] if len(row["shape"]) == 4]
    assert len(kernels) == count
    sized = [row["grid"] is not None for row in kernels]
    assert all(sized) if ".onnx" in name or "--grid" in options else not any(sized)
    bounded = [row for row in kernels if row["norm_lower"] is not None]
    assert all(0 < row["norm_lower"] <= row["norm_upper"] for row in bounded)
    if ".onnx" in name:
        assert bounded == kernels


def test_an_interrupt_leaves_a_report_of_what_is_done(capsys, here, model, monkeypatch):
    analyse, seen = from_file.layer_spectrum, []

    def interrupted(layer, *args, **kwargs):
        seen.append(layer.name)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return analyse(layer, *args, **kwargs)

    monkeypatch.setattr(from_file, "layer_spectrum", interrupted)
    argv = ["report", "model.safetensors", "--grid", 4, "-o", "out"]
    out, err = said(capsys, *argv, code=130)
    assert "block.conv1.weight" in out
    assert "Skipped (was not reached before the interrupt): 'block.conv2.weight'" in err
    kept = json.loads((here / "out" / "report.json").read_text())
    assert [row["name"] for row in kept["layers"]] == ["block.conv1.weight"]
    seen[:] = ["none is done"]
    assert "interrupted." in said(capsys, *argv, code=130).err


def test_a_quick_look_has_bounds_for_every_size_and_no_values(capsys, model):
    argv = ["report", "model.safetensors", "--grid", 6, "--padding", 1, "--quick"]
    stated = ["--stride", 1, "--groups", 1, "--boundary", "zeros"]
    for row in document(capsys, *argv, *stated)["layers"]:
        weight = model[row["name"]]
        norms = [
            norm_by_matrix(weight, Geometry(n, padding=1, boundary="zeros"))
            for n in (1, 6, 20)
        ]
        assert row["norm_lower"] * (1 - 1e-6) <= min(norms)
        assert max(norms) <= row["norm_upper"] <= 1.05 * max(norms)
        assert (row["values_of"], row["curve"], row["grid"]) == (None, None, [6, 6])
    err = said(capsys, *argv, *stated).err
    assert "A first look: upper bounds hold for every input size, to 1 %" in err
    assert "No input size" not in err


# Two checkpoints


def test_diff_tells_what_grew_and_by_how_much(capsys, model):
    grown = {**model, "block.conv2.weight": 2 * model["block.conv2.weight"]}
    np.savez("a.npz", **model)
    np.savez("b.npz", **grown, extra=np.ones((1, 1, 3)))
    found = document(capsys, "diff", "a.npz", "b.npz", "--grid", 6)
    first, second = found["kernels"]
    assert first["name"] == "block.conv2.weight"
    assert first["growth_lower"] <= 2 <= first["growth_upper"]
    assert first["growth_upper"] - first["growth_lower"] < 1e-3
    assert (second["growth_lower"], second["growth_upper"]) == (1, 1)
    reasons = {row["name"]: row["reason"] for row in found["skipped"]}
    assert reasons["extra"] == "is not in a.npz"
    assert "fewer than 3 axes" in reasons["block.conv1.bias"]


def test_diff_says_why_a_kernel_has_no_partner_and_its_gate_fails(capsys, model):
    whole = {"block.conv2.weight": np.ones((2, 3, 3, 3), int)}
    np.savez("a.npz", **model)
    np.savez("b.npz", **{**model, **whole})
    argv = ["diff", "a.npz", "b.npz", "--grid", 6]
    found = document(capsys, *argv)
    reasons = {row["name"]: row["reason"] for row in found["skipped"]}
    assert "in b.npz: holds int64" in reasons["block.conv2.weight"]
    _, err = said(capsys, *argv, "--fail-above", 2, code=1)
    assert "growth is unknown: 'block.conv2.weight'" in err


def test_diff_names_the_file_that_is_wrong(capsys, model):
    np.savez("a.npz", **model)
    model["block.conv2.weight"][:] = np.nan
    np.savez("b.npz", **model)
    _, err = said(capsys, "diff", "a.npz", "b.npz", "--grid", 6, code=2)
    assert "convspectra: b.npz: 'block.conv2.weight': `weight` must be finite" in err
    for argv in (["a.npz", "none.npz"], ["none.npz", "a.npz"]):
        _, err = said(capsys, "diff", *argv, code=2)
        assert err == "convspectra: none.npz: No such file or directory.\n"


@pytest.mark.parametrize(("level", "code"), [(1.9, 1), (2.1, 0)])
def test_diff_is_a_gate(capsys, model, level, code):
    grown = {**model, "block.conv2.weight": 2 * model["block.conv2.weight"]}
    np.savez("a.npz", **model)
    np.savez("b.npz", **grown)
    argv = ["diff", "a.npz", "b.npz", "--grid", 6, "--fail-above", level]
    out, err = said(capsys, *argv, code=code)
    assert "block.conv1.weight" in out
    assert ("grew by more than 1.9, or may have: 'block.conv2.weight'" in err) == code


def test_diff_needs_something_in_common(capsys, model):
    np.savez("a.npz", **model)
    np.savez("b.npz", other=np.ones((1, 1, 3)))
    _, err = said(capsys, "diff", "a.npz", "b.npz", code=2)
    assert "a.npz and b.npz must share kernels by name and shape" in err


# Several checkpoints


def save_checkpoints(model, count):
    names = []
    for step in range(1, count + 1):
        scaled = {name: array * step for name, array in model.items()}
        names.append(f"step{step}.npz")
        np.savez(names[-1], **scaled)
    return names


def test_many_checkpoints_are_each_a_row_and_a_result(capsys, here, model):
    names = save_checkpoints(model, 11)
    (here / "step3.npz").write_bytes(b"not a zip file")
    found = document(capsys, "report", *names[::-1], "--grid", 4, "-o", "out")
    rows = found["checkpoints"]
    assert [row["name"] for row in rows] == names  # step2 before step10
    assert "damaged or cut short" in rows[2]["error"]
    good = [row for row in rows if row["error"] is None]
    assert len(good) == 10
    assert good[-1]["upper"] == pytest.approx(11 * good[0]["upper"], rel=1e-4)
    largest = {row["name"]: row["norm_upper"] for row in good[0]["document"]["layers"]}
    assert largest[good[0]["largest_norm_layer"]] == good[0]["upper"]
    assert len(list((here / "out" / "results").iterdir())) == 11
    page = json.loads((here / "out" / "report.json").read_text())
    upper = page["trajectories"]["layers"]["block.conv1.weight"]["upper"]
    assert upper[-1] == pytest.approx(11 * upper[0], rel=1e-4)
    assert page["trajectories"]["checkpoints"][0] == "step1.npz"
    assert (here / "out" / "trajectories.png").exists()


def test_a_checkpoint_that_is_missing_is_a_row_in_plain_words(capsys, model):
    names = [*save_checkpoints(model, 1), "step2.npz"]
    rows = document(capsys, "report", *names, "--quick", "-o", "out")["checkpoints"]
    assert [row["error"] for row in rows] == [None, "No such file or directory."]


def test_checkpoints_may_be_on_different_drives(capsys, here, model, monkeypatch):
    names = save_checkpoints(model, 2)
    drives = ["C:\\step1.npz", "D:\\step2.npz"]
    monkeypatch.setattr("os.path.commonpath", lambda _: ntpath.commonpath(drives))
    _, err = said(capsys, "report", *names, "--quick", "-o", "out")
    assert "report.html" in err
    page = json.loads((here / "out" / "report.json").read_text())
    assert page["trajectories"]["checkpoints"] == [str(here / name) for name in names]


def test_checkpoints_that_were_done_are_not_looked_at_again(capsys, here, model):
    names = save_checkpoints(model, 3)
    argv = ["report", *names, "--grid", 4, "-o", "out"]
    said(capsys, *argv)
    _, err = said(capsys, *argv)
    assert "3 of 3 were done before." in err
    save_checkpoints({"other": np.ones((1, 1, 3))}, 1)
    out, err = said(capsys, *argv)
    assert "2 of 3 were done before." in err
    assert "other" in out
    _, err = said(capsys, *argv, "--stride", 2)  # other options, other results
    assert "done before" not in err


def test_a_changed_shard_of_a_checkpoint_gives_new_numbers(capsys, here, rng):
    names = []
    for step in ("a", "b"):
        weights = {"conv": rng.standard_normal((2, 2, 3)).astype("float32")}
        safetensors.numpy.save_file(weights, f"{step}.safetensors")
        names.append(f"{step}.safetensors.index.json")
        index = {"weight_map": {"conv": f"{step}.safetensors"}}
        (here / names[-1]).write_text(json.dumps(index))
    argv = ["report", *names, "-o", "out"]
    before = [row["upper"] for row in document(capsys, *argv)["checkpoints"]]
    safetensors.numpy.save_file({"conv": 10 * weights["conv"]}, "b.safetensors")
    rows = document(capsys, *argv)["checkpoints"]
    assert rows[0]["upper"] == before[0]
    assert rows[1]["upper"] == pytest.approx(10 * before[1], rel=1e-3)


def test_a_changed_file_in_the_folder_of_like_gives_new_numbers(capsys, here, model):
    names = save_checkpoints(model, 2)
    (here / "like").mkdir()
    safetensors.numpy.save_file(model, "like/model.safetensors")
    (here / "like" / "config.json").write_text("{}")
    argv = ["report", *names, "--like", "like", "-o", "out"]
    said(capsys, *argv)
    assert "2 of 2 were done before." in said(capsys, *argv).err
    stem = {"input_size": [2, 8, 8], "first_conv": "block.conv1"}
    (here / "like" / "config.json").write_text(json.dumps({"pretrained_cfg": stem}))
    found, _ = document(capsys, *argv)["checkpoints"]
    assert found["document"]["layers"][0]["grid"] == [8, 8]


def test_a_file_of_like_that_is_missing_is_named(capsys, model):
    argv = ["report", *save_checkpoints(model, 2), "--like", "none.onnx", "-o", "out"]
    _, err = said(capsys, *argv, code=2)
    assert err == "convspectra: none.onnx: No such file or directory.\n"


def test_one_kind_of_data_is_printed(capsys, model):
    _, err = said(capsys, "report", "model.safetensors", "--json", "--csv", code=2)
    assert "argument --csv: not allowed with argument --json" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jobs", 0], "--jobs: must be a whole number, at least 1, got '0'"),
        (["--jobs", "two"], "--jobs: must be a whole number, at least 1, got 'two'"),
        (["--scheduler", "tcp://a:1"], "only for one, got 'tcp://a:1' for loky"),
        (["--backend", "dask"], "address of a cluster, and given only for one, got"),
        (["--backend", "ray", "--jobs", 2], "`jobs` must be left out on a cluster"),
    ],
)
def test_options_for_several_files_are_checked_for_one(capsys, model, options, message):
    _, err = said(capsys, "report", "model.safetensors", *options, code=2)
    assert message in err


@pytest.mark.parametrize(
    "options", [["--backend", "ray"], ["--scheduler", "a:1"], ["--shard", "3/3"]]
)
def test_files_must_be_named_to_be_shared(capsys, options):
    _, err = said(capsys, "report", *options, code=2)
    assert "`--scheduler` must come with the files to share, got none" in err


def test_one_file_goes_to_the_cluster_that_is_named(capsys, model):
    needed("distributed")
    options = ["--backend", "dask", "--scheduler", "tcp://127.0.0.1:1"]
    with needed("dask").config.set({"distributed.comm.timeouts.connect": "200ms"}):
        _, err = said(capsys, "report", "model.safetensors", *options, code=2)
    assert "A Dask scheduler must answer at 'tcp://127.0.0.1:1'" in err


def test_shards_share_the_work_and_the_last_run_makes_the_page(capsys, here, model):
    names = save_checkpoints(model, 5)
    argv = ["report", *names, "--grid", 4, "-o", "out"]
    for number in (1, 2):
        said(capsys, *argv, "--shard", f"{number}/2")
    assert not (here / "out" / "report.html").exists()
    _, err = said(capsys, *argv)
    assert "5 of 5 were done before." in err
    assert (here / "out" / "report.html").exists()


def test_processes_give_what_one_gives(capsys, model):
    names = save_checkpoints(model, 4)
    argv = ["report", *names, "--grid", 4, "--csv"]
    alone, _ = said(capsys, *argv, "-o", "alone")
    beside, _ = said(capsys, *argv, "-o", "beside", "--jobs", 2)

    def without_seconds(text):
        rows = csv.DictReader(io.StringIO(text))
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    assert without_seconds(alone) == without_seconds(beside)


def test_when_no_checkpoint_can_be_read_the_command_could_not_run(capsys, here):
    for name in ("a.npz", "b.npz"):
        (here / name).write_bytes(b"nothing")
    out, err = said(capsys, "report", "a.npz", "b.npz", code=2)
    assert "2 of 2 could not be read" in err
    assert out.count("damaged or cut short") == 2
    _, err = said(capsys, "report", "a.npz", "b.npz", "--csv", code=2)
    assert err.count("damaged or cut short") == 2


def test_a_shard_without_files_has_nothing_to_do(capsys, here, model):
    np.savez("a.npz", **model)
    said(capsys, "report", "a.npz", "--shard", "3/3", "--grid", 4)
