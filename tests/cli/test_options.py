"""Options of the command that say which arrays are meant, and who does the work."""

import json

import numpy as np
import pytest
from onnx_models import conv_model, make_node, model_of, stored, to_array, value
from optional import needed
from oracles import norm_by_matrix

from convspectra import Geometry
from convspectra._cli.main import main

onnx = needed("onnx")
GAMMA, VARIANCE, EPSILON = np.array([3.0, 0.5]), np.array([4.0, 0.25]), 1e-3


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Each test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def network(here, rng):
    """A convolution with a BatchNorm after it, and a linear layer."""
    weights = {
        "conv": rng.standard_normal((2, 2, 3)),
        "linear": rng.standard_normal((10, 3)),
    }
    norm = {"gamma": GAMMA, "beta": np.ones(2), "mean": np.ones(2), "var": VARIANCE}
    nodes = [
        make_node("Conv", ["x", "conv"], ["a"], pads=[1, 1]),
        make_node("BatchNormalization", ["a", *norm], ["b"], epsilon=EPSILON),
        make_node("Flatten", ["b"], ["c"]),
        make_node("Gemm", ["c", "linear"], ["y"]),
    ]
    tensors = [stored(name, array) for name, array in (weights | norm).items()]
    model = model_of(nodes, tensors, [value("x", [1, 2, 5])])
    (here / "network.onnx").write_bytes(model.SerializeToString())
    return weights


def rows(capsys, *argv):
    """The kernels in the document that the command prints, by name."""
    assert main([*argv, "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)["kernels"]}


def weights_in(path):
    model = onnx.load(path)
    return {tensor.name: to_array(tensor) for tensor in model.graph.initializer}


def test_fold_takes_the_norm_after_a_layer_into_it(capsys, network):
    factors = GAMMA / np.sqrt(VARIANCE + EPSILON)
    for options, weight in (
        ((), network["conv"]),
        (("--fold",), network["conv"] * factors[:, None, None]),
    ):
        row = rows(capsys, "norm", "network.onnx", *options)["conv"]
        want = norm_by_matrix(weight, Geometry(5, boundary="zeros"))
        assert row["lower"] * (1 - 1e-9) <= want <= row["upper"]
        assert row["upper"] == pytest.approx(want, rel=1e-3)


def test_linear_layers_are_bounded_where_that_is_asked_for(capsys, network):
    argv = ("project", "network.onnx", "--max-norm", "0.5", "-o", "new.onnx")
    assert rows(capsys, *argv).keys() == {"conv"}
    np.testing.assert_array_equal(weights_in("new.onnx")["linear"], network["linear"])
    assert rows(capsys, *argv, "--linear").keys() == {"conv", "linear"}
    found = np.linalg.norm(weights_in("new.onnx")["linear"], 2)
    assert 0.49 < found <= 0.5


def save_npz(name, arrays):
    np.savez(name, **arrays)


def load_npz(name):
    with np.load(name) as found:
        return dict(found)


def save_torch(name, arrays):
    torch = needed("torch")
    torch.save({key: torch.tensor(array) for key, array in arrays.items()}, name)


def load_torch(name):
    found = needed("torch").load(name, weights_only=True)
    return {key: tensor.numpy() for key, tensor in found.items()}


@pytest.mark.parametrize(
    ("suffix", "layout", "save", "load"),
    [
        (".npz", "oihw", save_npz, load_npz),
        (".npz", "hwio", save_npz, load_npz),
        (".pt", "oihw", save_torch, load_torch),
    ],
)
def test_matrices_are_linear_layers_where_that_is_said(
    capsys, rng, suffix, layout, save, load
):
    arrays = {"conv": rng.standard_normal((2, 2, 3)), "fc": rng.standard_normal((3, 5))}
    save(f"k{suffix}", arrays)
    options = ["--grid", "5", "--layout", layout]
    assert rows(capsys, "norm", f"k{suffix}", *options).keys() == {"conv"}
    row = rows(capsys, "norm", f"k{suffix}", *options, "--linear")["fc"]
    want = np.linalg.norm(arrays["fc"], 2)
    assert row["lower"] * (1 - 1e-9) <= want <= row["upper"] * (1 + 1e-9)
    assert row["shape"] == ([3, 5, 1] if layout == "oihw" else [5, 3, 1])
    argv = ["project", f"k{suffix}", "--max-norm", "0.5", "-o", f"new{suffix}"]
    rows(capsys, *argv, *options, "--linear", "--key", "fc")
    new = load(f"new{suffix}")["fc"]
    # The nearest matrix in the ball has its singular values cut off.
    left, values, right = np.linalg.svd(arrays["fc"], full_matrices=False)
    nearest = left * np.minimum(values, 0.5) @ right
    np.testing.assert_allclose(new, nearest, atol=5e-3)


@pytest.fixture
def checkpoints(rng):
    names = ["step1.npy", "step2.npy"]
    for name in names:
        np.save(name, rng.standard_normal((2, 2, 3)))
    return names


def refusal(capsys, *argv):
    """What the command says when it cannot run."""
    assert main(["report", *argv]) == 2
    return capsys.readouterr().err


def test_backend_says_where_the_work_is_done(capsys, checkpoints):
    said = refusal(capsys, *checkpoints, "--backend", "dask")
    assert "`scheduler` must be the address of a cluster" in said
    assert "got None for dask" in said
    assert "invalid choice" in refusal(capsys, *checkpoints, "--backend", "threads")


def test_scheduler_is_the_address_of_the_cluster(capsys, checkpoints):
    needed("distributed")
    options = ("--scheduler", "tcp://127.0.0.1:1")  # where nobody listens
    with needed("dask").config.set({"distributed.comm.timeouts.connect": "200ms"}):
        said = refusal(capsys, *checkpoints, "--backend", "dask", *options)
    assert "A Dask scheduler must answer at 'tcp://127.0.0.1:1'" in said
    said = refusal(capsys, *checkpoints, *options)
    assert "given only for one, got 'tcp://127.0.0.1:1' for loky" in said


def test_budget_is_kept_and_must_be_positive(capsys, network):
    del network
    known = rows(capsys, "norm", "network.onnx")["conv"]
    quick = rows(capsys, "norm", "network.onnx", "--budget", "1e-9")["conv"]
    assert quick["method"] == "reshaped"
    assert quick["lower"] <= known["lower"] <= known["upper"] <= quick["upper"]
    for budget in ("0", "-1", "nan", "soon"):
        assert main(["norm", "network.onnx", "--budget", budget]) == 2
        said = capsys.readouterr().err
        assert f"must be a positive number of seconds, got {budget!r}" in said


@pytest.mark.parametrize(
    ("like", "content", "reason"),
    [
        ("missing.onnx", None, "No such file or directory."),
        ("garbage.onnx", b"nothing", "This must be a whole .onnx file"),
        ("garbage.json", b"nothing", ""),
        ("model.txt", b"", "A network must be in a file that ends in"),
    ],
)
def test_errors_of_like_name_its_file(capsys, here, checkpoints, like, content, reason):
    if content is not None:
        (here / like).write_bytes(content)
    one, other = checkpoints
    for argv in (["norm", one], ["report", one], ["diff", one, other]):
        assert main([*argv, "--like", like]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"convspectra: {one}: `--like` {like}: {reason}")


def said_by(capsys, *argv):
    """What a command that runs says on stderr, in one line."""
    assert main([*argv]) == 0
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--input", "1x2x8"], "`--input` changes nothing here: only a graph (.onnx"),
        (["--fold"], "`--fold` changes nothing here: the file shows no BatchNorm"),
        (
            ["--like", "step2.npy"],
            "`--like` changes nothing here: step2.npy says nothing of the geometry",
        ),
    ],
)
def test_an_option_that_changes_nothing_is_named(
    capsys, checkpoints, options, sentence
):
    one, _ = checkpoints
    for argv in (["norm", one], ["report", one], ["values", one, "--grid", "4"]):
        assert sentence in said_by(capsys, *argv, *options)
        assert "changes nothing" not in said_by(capsys, *argv)
    assert f"{one}: {sentence}" in said_by(capsys, "diff", one, one, *options)


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(
    "line",
    [
        "norm network.onnx --input 1x2x5",
        "norm network.onnx --fold",
        "norm weights.npz --like network.onnx",
    ],
)
def test_an_option_that_changes_something_is_not(capsys, line):
    np.savez("weights.npz", conv=np.ones((2, 2, 3)))
    assert "changes nothing" not in said_by(capsys, *line.split())


def test_sizes_of_the_input_may_be_for_the_file_of_like(capsys, here, rng):
    weight = rng.standard_normal((2, 2, 3))
    np.savez("k.npz", w=weight)
    model = conv_model(weight, ("L",), pads=[1, 1])
    (here / "open.onnx").write_bytes(model.SerializeToString())
    argv = ["norm", "k.npz", "--like", "open.onnx", "--input", "1x2x6"]
    assert "changes nothing" not in said_by(capsys, *argv)
    assert rows(capsys, *argv)["w"]["grid"] == [6]


def test_clip_is_for_every_size_unless_one_is_stated(capsys, checkpoints):
    argv = ["clip", checkpoints[0], "--max-norm", "0.5", "-o"]
    for name, options in (("a.npy", []), ("b.npy", ["--grid", "none"])):
        (row,) = rows(capsys, *argv, name, *options).values()
        assert row["grid"] is None
    np.testing.assert_array_equal(np.load("a.npy"), np.load("b.npy"))
    assert main(["clip", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "or none for every input size at once (default)" in said
