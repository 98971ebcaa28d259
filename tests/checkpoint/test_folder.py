"""Networks in folders: weights, and a config.json that describes some of them."""

import json

import numpy as np
import pytest
import safetensors.numpy
from optional import needed

import convspectra as cs
from convspectra._checkpoint import read_network
from convspectra._checkpoint.folder import weights_file
from convspectra._checkpoint.hugging_face import PATCHES, SPEECH, described
from convspectra._checkpoint.records import Kernel
from convspectra._checkpoint.select import Options, select
from convspectra._cli.main import main

VIT = {"model_type": "vit", "patch_size": 4, "image_size": 16, "num_channels": 3}
PATCH = "vit.embeddings.patch_embeddings.projection.weight"
TIMM = {"pretrained_cfg": {"input_size": [3, 20, 24], "first_conv": "stem.conv"}}
# Models that AutoModel does not know.
CLASSES = {"blip_vision_model": "BlipVisionModel"}


def kernel(name, shape):
    return Kernel(name, shape, "float32", {}, lambda: np.zeros(shape, "float32"))


@pytest.fixture
def folder(tmp_path, rng):
    arrays = {PATCH: rng.standard_normal((5, 3, 4, 4)), "z.other": np.ones((2, 2, 3))}
    safetensors.numpy.save_file(
        arrays, tmp_path / "model.safetensors", {"format": "pt"}
    )
    (tmp_path / "config.json").write_text(json.dumps(VIT))
    return tmp_path


def test_a_patch_embedding_is_known_and_the_rest_is_not(folder):
    patch, other = select(folder, Options()).layers
    assert (patch.name, patch.unknown) == (PATCH, ())
    assert (patch.geometry.grid, patch.geometry.stride) == ((16, 16), (4, 4))
    alone = select(folder / "model.safetensors", Options()).layers
    assert other.unknown == alone[1].unknown == alone[0].unknown


def test_the_norm_is_that_of_the_modules_matrix(folder, capsys):
    torch = needed("torch")
    weight = torch.from_numpy(read_network(folder).kernels[0].load())
    basis = torch.eye(3 * 16 * 16, dtype=torch.float64).reshape(-1, 3, 16, 16)
    matrix = torch.nn.functional.conv2d(basis, weight, stride=4).flatten(1)
    wanted = torch.linalg.matrix_norm(matrix, 2).item()
    assert main(["report", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["title"] == folder.name
    row = next(row for row in found["layers"] if row["name"] == PATCH)
    assert row["norm_lower"] <= wanted * (1 + 1e-9)
    assert wanted <= row["norm_upper"] * (1 + 1e-9)
    assert row["norm_upper"] <= wanted * (1 + 1e-3)


def test_a_configuration_can_be_named_for_a_file(folder, tmp_path):
    weights = folder / "model.safetensors"
    one, _ = select(weights, Options(like=folder / "config.json")).layers
    assert one.geometry == select(folder, Options()).layers[0].geometry


def test_a_sharded_folder(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = dict.fromkeys([PATCH, "z.other"], "model-00001-of-00001.safetensors")
    text = json.dumps({"weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    assert select(folder, Options()).layers[0].unknown == ()


def test_a_copy_is_a_file(folder, tmp_path):
    line = ["clip", str(folder), "--key", PATCH, "--max-norm", "1", "--grid", "16"]
    assert main([*line, "-o", str(tmp_path / "new.safetensors")]) == 0
    assert len(read_network(tmp_path / "new.safetensors").kernels) == 2


def test_several_folders(tmp_path, folder, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "checkpoint-2"
    other.mkdir()
    for name in ("model.safetensors", "config.json"):
        (other / name).write_bytes((folder / name).read_bytes())
    line = ["report", str(folder), str(other), "--quick", "-o", str(tmp_path / "out")]
    assert main(line) == 0
    (other / "config.json").write_text("{}")
    capsys.readouterr()
    assert main(line) == 0  # the folder that has changed is done again
    assert "1 of 2 were done before" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"patch_size": 5},
        {"patch_size": "4"},
        {"patch_size": [4, 4, 4]},
        {"patch_size": None},
        {"num_channels": 1},
        {"image_size": -16},
        {"image_size": True},
        {"model_type": "vitpose_backbone"},  # which pads
        {"model_type": ["vit"]},
    ],
)
def test_what_is_not_clear_is_not_stated(change):
    assert described(VIT | change, kernel(PATCH, (5, 3, 4, 4))) == {}


def test_the_vision_model_inside_another():
    inner = VIT | {"model_type": "clip_vision_model"}
    one = kernel("vision_model.embeddings.patch_embedding.weight", (5, 3, 4, 4))
    found = described({"model_type": "clip", "vision_config": inner}, one)
    assert found["stride"] == (4, 4)
    assert described({"model_type": "clip", "vision_config": 3}, one) == {}


def test_the_first_layer_of_timm_reads_the_image():
    found = described(TIMM, kernel("stem.conv.weight", (8, 3, 7, 7)))
    assert found == {"grid": (20, 24), "groups": 1}
    for name, shape in (("stem.conv.weight", (8, 1, 7, 7)), ("a.weight", (8, 3, 7, 7))):
        assert described(TIMM, kernel(name, shape)) == {}
    for first in (None, 3, ["stem.conv"]):
        config = {"pretrained_cfg": TIMM["pretrained_cfg"] | {"first_conv": first}}
        found = described(config, kernel("stem.conv.weight", (8, 3, 7, 7)))
        assert bool(found) == (first == ["stem.conv"])


@pytest.mark.parametrize("text", ["", "[", "[]", '{"a": ' * 10**5, "3", "\0"])
def test_a_damaged_configuration_is_refused(folder, capsys, text):
    (folder / "config.json").write_text(text)
    assert main(["report", str(folder), "--json"]) == 2
    assert "whole configuration of a model" in capsys.readouterr().err


def test_a_huge_configuration_is_not_read(folder, capsys):
    with (folder / "config.json").open("wb") as stream:
        stream.truncate(2**33)
    assert main(["report", str(folder), "--json"]) == 2
    assert "must have at most 16777216 bytes" in capsys.readouterr().err


def test_a_folder_without_a_network_or_with_two(tmp_path):
    with pytest.raises(ValueError, match="must hold a network in a file like"):
        read_network(tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        safetensors.numpy.save_file({"k": np.ones((1, 1, 3))}, tmp_path / name)
    with pytest.raises(ValueError, match=r"got 2 files like 'a\.safetensors'"):
        weights_file(tmp_path)


def modules_of(kind):
    """The convolutions of a model of transformers, without numbers, and its config."""
    torch, transformers = needed("torch"), needed("transformers")
    config = transformers.AutoConfig.for_model(kind)
    make = transformers.AutoModel.from_config
    if kind in CLASSES:
        make = getattr(transformers, CLASSES[kind])
    with torch.device("meta"):
        model = make(config)
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Conv1d, torch.nn.Conv2d))
    }
    return found, json.loads(config.to_json_string())


def rules_hold(kind):
    """How many layers the rules describe, once all are as the modules themselves."""
    modules, config = modules_of(kind)
    count = 0
    for name, module in modules.items():
        one = kernel(f"{name}.weight", tuple(module.weight.shape))
        stated = described(config, one)
        if stated:
            count += 1
            geometry = cs.Geometry(**{"grid": None, **stated})
            padding = (0, 0) if module.padding == "valid" else module.padding
            assert geometry.stride == module.stride
            assert geometry.padding == tuple((n, n) for n in padding)
            assert geometry.dilation == module.dilation
            assert geometry.groups == module.groups
            assert geometry.boundary == module.padding_mode
    return count


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "count"), [("vit", 1), ("hubert", 7), ("segformer", 4)]
)
def test_rules_hold_for_the_models_themselves(kind, count):
    assert rules_hold(kind) == count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*PATCHES, *SPEECH])
def test_rules_hold_for_all_the_models(kind):
    assert rules_hold(kind) >= (7 if kind in SPEECH else 1)
