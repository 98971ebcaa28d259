"""Training the embedded network, on data so small that it proves nothing else."""

import hashlib
import importlib
import json

import numpy as np
import pytest
from optional import needed

onnx = needed("onnx")
Image = needed("PIL.Image")
torch = needed("torch")

DOWN, RIGHT = 3, 4  # tiles of a mosaic: not square, so that its axes differ
EACH = DOWN * RIGHT


@pytest.fixture(scope="module")
def script():
    return importlib.import_module("experiments.train_embedded")


@pytest.fixture(scope="module")
def files():
    return importlib.import_module("experiments.images").FILES


@pytest.fixture
def data(tmp_path, rng, files, monkeypatch):
    """A folder like that of CIFAR-10, its images and its labels, checksums known."""
    folder = tmp_path / "data"
    folder.mkdir()
    images = rng.integers(256, size=(6 * EACH, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(10, size=6 * EACH, dtype=np.uint8)
    np.save(folder / "labels.npy", labels)
    for file, name in enumerate(files):
        mosaic = Image.new("RGB", (32 * RIGHT, 32 * DOWN))
        for k in range(EACH):
            tile = Image.fromarray(images[file * EACH + k])
            mosaic.paste(tile, (32 * (k % RIGHT), 32 * (k // RIGHT)))
        mosaic.save(folder / name, lossless=True)
    planes = images.transpose(0, 3, 1, 2).reshape(6, EACH, -1)
    parts = np.concatenate([labels.reshape(6, EACH, 1), planes], axis=-1)
    digests = [hashlib.md5(part.tobytes()).hexdigest() for part in parts]
    reader = importlib.import_module("experiments.images")
    monkeypatch.setattr(reader, "MD5", dict(zip(reader.PARTS, digests)))
    return folder, images, labels


def test_mosaics_are_read_tile_by_tile(script, data):
    folder, images, labels = data
    train, test = script.read_cifar10(folder)
    pixels = torch.cat([train.pixels, test.pixels]).numpy()
    np.testing.assert_array_equal(pixels, images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(torch.cat([train.labels, test.labels]), labels)
    assert (len(train.pixels), len(train.labels)) == (5 * EACH, 5 * EACH)


def test_another_label_is_noticed(script, data):
    folder, _, labels = data
    labels[2 * EACH] = (labels[2 * EACH] + 1) % 10
    np.save(folder / "labels.npy", labels)
    with pytest.raises(ValueError, match=r"data_batch_3\.webp' must be CIFAR-10's"):
        script.read_cifar10(folder)


@pytest.mark.parametrize(
    "labels",
    [
        np.zeros(6 * EACH, "int64"),
        np.zeros((6, EACH), "uint8"),
        np.zeros(6 * EACH + 1, "uint8"),
        np.full(6 * EACH, 10, "uint8"),
        np.zeros(0, "uint8"),
    ],
)
def test_other_labels_are_refused(script, data, labels):
    np.save(data[0] / "labels.npy", labels)
    with pytest.raises(
        ValueError, match=r"labels\.npy must be a row of bytes under 10"
    ):
        script.read_cifar10(data[0])


@pytest.mark.parametrize(
    ("mode", "size"), [("RGBA", (128, 96)), ("RGB", (128, 128)), ("RGB", (384, 33))]
)
def test_other_mosaics_are_refused(script, files, data, mode, size):
    color = (1, 2, 3, 4)[: len(mode)]
    Image.new(mode, size, color).save(data[0] / files[2], lossless=True)
    got = f"got {mode} of {size[0]} x {size[1]}"
    with pytest.raises(ValueError, match=rf"data_batch_3\.webp must hold 12 .*, {got}"):
        script.read_cifar10(data[0])


def test_every_image_comes_once_shifted_and_perhaps_mirrored(script, data):
    train, _ = script.read_cifar10(data[0])
    which = script.Images(train.pixels, torch.arange(5 * EACH))
    rng = torch.Generator().manual_seed(1)
    (batch,) = script.batches(which, rng)
    seen = set()
    padded = np.pad(
        train.pixels.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)), mode="reflect"
    )
    padded = script.normalized(torch.from_numpy(padded)).numpy()
    for image, k in zip(*batch):
        moves = [
            (i, j, step)
            for i in range(9)
            for j in range(9)
            for step in (1, -1)
            if np.array_equal(padded[k, :, i : i + 32, j : j + 32][..., ::step], image)
        ]
        assert len(moves) == 1
        seen.update(moves)
    assert sorted(batch[1].tolist()) == list(range(5 * EACH))
    assert batch[1].tolist() != list(range(5 * EACH))
    assert [len({move[axis] for move in seen}) for axis in range(3)] == [9, 9, 2]


def weights(folder):
    """Of the network and of the optimizer, as they were saved."""
    return torch.load(folder / "training.pt", weights_only=True)["parts"][:2]


def log(folder):
    """What was logged, but for the times."""
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [{key: line[key] for key in line if key != "seconds"} for line in lines]


def test_an_interrupted_run_goes_on_to_the_same_numbers(
    script, data, tmp_path, monkeypatch
):
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    script.train_and_export(data[0], whole, 2)
    calls, accuracy = iter([True, False]), script.accuracy

    def interrupted(*args):
        if next(calls):
            return accuracy(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(script, "accuracy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            script.train_and_export(data[0], torn, 2)
    assert [line["epoch"] for line in log(torn)] == [1]
    torch.manual_seed(99)  # what another program may have done to the state
    script.train_and_export(data[0], torn, 2)
    torch.testing.assert_close(weights(torn), weights(whole), rtol=0, atol=0)
    assert log(torn) == log(whole)
    assert [line["epoch"] for line in log(torn)] == [1, 2]
    with pytest.raises(ValueError, match=r"training\.pt' must be of the training"):
        script.train_and_export(data[0], torn, 3)


def test_the_result_says_what_was_made(script, data, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ACCURACY", 0.0)
    result = script.train_and_export(data[0], tmp_path / "out", 1)
    assert result == json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["holds"]
    assert result["images"] == [5 * EACH, EACH]
    assert result["bytes"] < 2_000_000
    model = onnx.load(tmp_path / "out" / "cifar10_resnet.onnx")
    sizes = {x.name: np.prod(x.dims) for x in model.graph.initializer}
    trained = [size for name, size in sizes.items() if "running" not in name]
    assert result["parameters"] == sum(trained)
    props = {prop.key: prop.value for prop in model.metadata_props}
    assert props["test_accuracy"] == str(result["test_accuracy"])
    monkeypatch.setattr(script, "ACCURACY", 1.1)
    assert not script.train_and_export(data[0], tmp_path / "out", 1)["holds"]


def test_the_file_agrees_with_the_network(script, rng, tmp_path):
    torch.manual_seed(0)
    network = script.Network()
    for name, tensor in network.state_dict().items():
        if ".norm." in name and tensor.ndim:  # far from how they begin
            tensor.uniform_(0.5, 1.5)
    pixels = torch.from_numpy(rng.integers(256, size=(5, 3, 32, 32), dtype=np.uint8))
    path = tmp_path / "network.onnx"
    onnx.save(script.onnx_model(network, {"seed": 3}), path)
    found = script.compare(path, network, pixels)
    assert found["same_classes"]
    largest = script.logits(network, pixels).abs().max().item()
    assert found["difference"] <= 100 * np.finfo("float32").eps * largest
    model = onnx.load(path)
    want = {name for name in network.state_dict() if "num_batches" not in name}
    assert {tensor.name for tensor in model.graph.initializer} == want
    (images,) = model.graph.input
    sizes = [d.dim_param or d.dim_value for d in images.type.tensor_type.shape.dim]
    assert (images.name, sizes) == ("images", ["batch", 3, 32, 32])
    kinds = "Conv BatchNormalization Relu Add GlobalAveragePool Flatten Gemm"
    assert {node.op_type for node in model.graph.node} == set(kinds.split())


@pytest.mark.parametrize("holds", [True, False])
def test_the_exit_code_is_the_verdict(script, monkeypatch, tmp_path, capsys, holds):
    from experiments.__main__ import main

    given = []

    def train_and_export(*args):
        given.extend(args)
        facts = {"parameters": 3, "epochs": 2, "test_accuracy": 0.5, "bytes": 10}
        return facts | {"holds": holds}

    monkeypatch.setattr(script, "train_and_export", train_and_export)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    line = f"train_embedded --data {tmp_path} --out {tmp_path / 'out'}"
    assert main(line.split()) == (not holds)
    assert given == [2, tmp_path, tmp_path / "out" / "train_embedded", 20]
    assert "50.00 %" in capsys.readouterr().out
