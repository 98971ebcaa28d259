"""Sharded checkpoints: kernels of several files, and indices that are refused."""

import json

import numpy as np
import pytest
import safetensors.numpy

from convspectra._checkpoint.sharded import read_sharded
from convspectra._checkpoint.stored import Refusal

INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def arrays(rng):
    return {
        "b.weight": rng.standard_normal((3, 2, 3, 4)).astype("float32"),
        "a.weight": rng.standard_normal((4, 2, 5)).astype("float16"),
        "a.bias": np.ones(4),
        "ids": np.arange(6).reshape(1, 2, 3),
    }


@pytest.fixture
def save(tmp_path, arrays):
    """Saves a checkpoint in two files; returns the path of its index."""

    def saved(formats=("pt", "pt"), **changes):
        first = {name: arrays[name] for name in ("b.weight", "ids")}
        second = {name: arrays[name] for name in ("a.weight", "a.bias")}
        for name, part, kind in zip((ONE, TWO), (first, second), formats):
            metadata = {"format": kind} if kind else None
            safetensors.numpy.save_file(part, tmp_path / name, metadata)
        index = dict.fromkeys(second, TWO) | dict.fromkeys(first, ONE) | changes
        text = json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
        (tmp_path / INDEX).write_text(text)
        return tmp_path / INDEX

    return saved


def test_kernels_of_all_shards_are_found(save, arrays):
    network = read_sharded(save())
    assert [kernel.name for kernel in network.kernels] == ["b.weight", "a.weight"]
    for kernel in network.kernels:
        assert kernel.stated == {}
        assert kernel.shape == arrays[kernel.name].shape
        np.testing.assert_array_equal(kernel.load(), arrays[kernel.name])
        assert kernel.load().dtype == arrays[kernel.name].dtype
    assert dict(network.skipped) == {
        "ids": "holds I64, not floating point",
        "a.bias": "has fewer than 3 axes",
    }


@pytest.mark.parametrize(
    ("layout", "format", "turned"),
    [
        (None, "pt", False),
        (None, "tf", True),
        (None, "", False),
        ("hwio", "", True),
        ("hwio", "np", True),
        ("oihw", "flax", False),
    ],
)
def test_layouts_are_given_or_stated(save, arrays, layout, format, turned):
    kernel = read_sharded(save(("pt", format)), layout).kernels[1]
    want = arrays["a.weight"]
    want = np.moveaxis(want, (-1, -2), (0, 1)) if turned else want
    assert kernel.shape == want.shape
    np.testing.assert_array_equal(kernel.load(), want)


def test_nothing_is_written(save, tmp_path):
    network = read_sharded(save())
    before = sorted(tmp_path.iterdir())
    assert all(
        "several files" in kernel.not_writable_because for kernel in network.kernels
    )
    arrays = {kernel.name: kernel.load() for kernel in network.kernels}
    target = tmp_path / "new.safetensors.index.json"
    with pytest.raises(ValueError, match="is in one of several files"):
        network.write(target, arrays)
    with pytest.raises(ValueError, match="Change its shards one by one"):
        network.write(target, {})
    assert sorted(tmp_path.iterdir()) == before


def test_what_the_index_leaves_out_is_skipped(save, tmp_path):
    path = save()
    index = json.loads(path.read_text())
    del index["weight_map"]["b.weight"]
    path.write_text(json.dumps(index))
    network = read_sharded(path)
    assert [kernel.name for kernel in network.kernels] == ["a.weight"]
    assert ("b.weight", "is not in the index") in network.skipped


@pytest.mark.parametrize(
    "file",
    [
        "../secret.safetensors",
        "/secret.safetensors",
        "in/secret.safetensors",
        "in\\secret.safetensors",
        "C:secret.safetensors",
        "..",
        "",
        "secret.bin",
        3,
        None,
        [ONE],
    ],
)
def test_shards_lie_in_the_folder_of_the_index(save, tmp_path, file):
    (tmp_path / "in").mkdir()
    for place in (tmp_path / "in", tmp_path.parent):
        safetensors.numpy.save_file({"x": np.ones(3)}, place / "secret.safetensors")
    with pytest.raises(Refusal, match=r"must name \.safetensors files in its own"):
        read_sharded(save(x=file))


def test_shards_must_be_there(save, tmp_path):
    (tmp_path / "folder.safetensors").mkdir()
    for file in ("missing.safetensors", "folder.safetensors", "nul\0.safetensors"):
        with pytest.raises(Refusal, match="must lie beside its index, got no file"):
            read_sharded(save(x=file))


def test_shards_must_hold_what_the_index_says(save):
    with pytest.raises(Refusal, match=f"'{ONE}' must hold all .* none named 'more'"):
        read_sharded(save(more=ONE))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "3", '{"weight_map": []}', '{"weight_map": 3}', "[" * 10**5],
)
def test_damaged_indices_are_refused(tmp_path, text):
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(Refusal, match="must be a whole index of a checkpoint"):
        read_sharded(tmp_path / INDEX)


def test_a_link_to_a_shard_is_followed(save, tmp_path, arrays):
    # As in the cache of Hugging Face, where every file is a link to its content.
    path = save()
    (tmp_path / "cache").mkdir()
    for name in (ONE, TWO):
        (tmp_path / name).rename(tmp_path / "cache" / name)
        (tmp_path / name).symlink_to(tmp_path / "cache" / name)
    np.testing.assert_array_equal(
        read_sharded(path).kernels[0].load(), arrays["b.weight"]
    )
