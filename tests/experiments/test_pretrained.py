"""What is told of known networks, what is read off reports, and the verdicts on it."""

import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
from oracles import values_by_matrix
from real_data import VARIABLE, real_data

import convspectra as cs
from convspectra._checkpoint.select import Options as ReadOptions
from convspectra._checkpoint.select import read_table, select
from experiments import pretrained, reports
from experiments.options import Options

KNOWN = tomllib.loads((reports.DATA / "networks.toml").read_text())
GEOMETRY = """
["*"]
grid = [4, 4]
padding = 1
boundary = "zeros"

["second"]
stride = 2
"""


@pytest.fixture
def network(tmp_path, rng):
    """Two kernels and a 1x1, with their geometry beside the file."""
    arrays = {
        "first": rng.standard_normal((3, 2, 3, 3)),
        "point": rng.standard_normal((3, 3, 1, 1)),
        "second": rng.standard_normal((2, 3, 3, 3)) / 3,
    }
    np.savez(tmp_path / "tiny.npz", **arrays)
    (tmp_path / "tiny.toml").write_text(GEOMETRY)
    return tmp_path / "tiny.npz", arrays


def test_both_views_of_a_network_are_judged_by_the_matrix(network, tmp_path):
    path, arrays = network
    claims = pretrained.run(Options(out=tmp_path, networks=(path,)))
    assert len(claims) == 6
    document = json.loads((tmp_path / "pretrained" / "result.json").read_text())
    torus = document["results"][f"tiny.npz, {pretrained.PAPERS}"]
    layers = document["results"][f"tiny.npz, {pretrained.LAYERS}"]
    assert torus["skipped"] == layers["skipped"] == 1  # the 1x1 kernel
    for found, as_is, name in zip(
        torus["layers"], layers["layers"], ("first", "second"), strict=True
    ):
        weight = arrays[name]
        values = values_by_matrix(weight, cs.Geometry(grid=(4, 4)))
        assert found["largest"] == pytest.approx(values[0], rel=1e-6)
        assert found["count_above_one"] == np.sum(values > 1)
        assert document["summary"]["above one"][name] == np.sum(values > 1)
        stride = 2 if name == "second" else 1
        geometry = cs.Geometry((4, 4), stride, padding=1, boundary="zeros")
        norm = values_by_matrix(weight, geometry)[0]
        assert as_is["norm_lower"] * (1 - 1e-9) <= norm
        assert norm <= as_is["norm_upper"] * (1 + 1e-9)
        reshaped = np.linalg.norm(weight.reshape(len(weight), -1), 2)
        assert as_is["reshaped"] == pytest.approx(reshaped)
    assert (tmp_path / "pretrained" / "pretrained.png").exists()


def test_what_a_report_says_when_it_fails_is_passed_on(tmp_path):
    with pytest.raises(ValueError, match=r"nothing\.npz: .*No such file"):
        reports.report(tmp_path / "nothing.npz")


def layer(norm, count, above, rank):
    fixed = {"norm_upper": norm, "count": count, "above_one": above / count}
    fixed |= {"count_above_one": above}
    curve = {"rank": [0, count - 1], "values": [norm, 0.1]}
    return fixed | {"effective_rank": rank, "curve": curve}


def test_the_paper_s_picture_is_recognized():
    layers = [
        layer(9.0, 40_000, 15_000, 9000.0),
        layer(4.0, 40_000, 30_000, 8000.0),
        layer(3.0, 20_000, 12_000, 7000.0),
        layer(2.0, 20_000, 9_999, 600.0),
        layer(2.5, 10_000, 500, 500.0),
    ]
    assert all(claim.holds for claim in pretrained.claims_on(layers))
    backwards = pretrained.claims_on(layers[::-1])
    assert [claim.holds for claim in backwards] == [False, False, True, True, False]
    few = pretrained.claims_on([layer(3.0 - i, 9_999, 9_999 - i, 2.0) for i in (0, 1)])
    assert [claim.holds for claim in few][2:4] == [False, False]


def test_the_reshaped_norm_is_compared_with_the_layer_s():
    def far(*ratios):
        rows = [{"norm_lower": ratio, "reshaped": 1.0} for ratio in ratios]
        return pretrained.claim_on_reshaping(rows).holds

    assert far(1.2, 1.0)
    assert not far(1.2, 1.05, 1.0)
    assert far(1.2, None, None)
    assert far(None) is None


def test_layers_without_a_known_geometry_are_not_compared(network, tmp_path, rng):
    path, _ = network
    alone = tmp_path / "alone.npz"
    np.savez(alone, conv=rng.standard_normal((2, 2, 3, 3)))
    *_, claim = pretrained.run(Options(out=tmp_path, networks=(path, alone)))
    assert "of 2 layers" in claim.found
    assert claim.note.endswith("left out: 1")
    (claim,) = pretrained.run(Options(out=tmp_path / "new", networks=(alone,)))
    assert claim.holds is None
    path.with_suffix(".toml").write_text(GEOMETRY.replace("*", "first"))
    (claim,) = pretrained.run(Options(out=tmp_path / "newer", networks=(path,)))
    assert "of 1 layers" in claim.found


@pytest.mark.parametrize("name", KNOWN)
def test_the_tables_fit_the_networks(name):
    """A table for no kernel, or one that does not fit its kernel, is an error."""
    told = reports._told_of(real_data(name))
    table = read_table(Path(told["--geometry"])) if "--geometry" in told else {}
    options = ReadOptions(table=table, layout=told.get("--layout"))
    placed = select(real_data(name), options).layers
    if table:
        grids = [one.geometry.grid for one in placed if len(one.kernel.shape) == 4]
        assert None not in grids


@pytest.mark.skipif(VARIABLE not in os.environ, reason="no real networks")
def test_the_geometry_of_resnet_50_is_that_of_its_graph():
    model = json.loads(real_data("resnet50_keras_topology.json").read_text())
    want = geometries(model["model_config"]["config"]["layers"])
    table = read_table(reports.DATA / "resnet50.toml")
    path = real_data("resnet50_keras_imagenet_fp16.safetensors")
    placed = select(path, ReadOptions(table=table, layout="hwio")).layers
    found = {}
    for one in placed:
        kernel, geometry = one.kernel.shape[2:], one.geometry
        out = geometry.out_grid(kernel)
        found[one.kernel.name] = geometry.grid[0], geometry.stride[0], out[0]
        assert geometry.boundary == "zeros"
    assert found == want
    assert len(found) == 53


def geometries(layers):
    """(input without its padding, stride, output) of each convolution, by a walk."""
    sizes, bare, found = {}, {}, {}
    for entry in layers:
        name, kind, config = entry["name"], entry["class_name"], entry["config"]
        if kind == "InputLayer":
            sizes[name] = config["batch_input_shape"][1]
            continue
        source = entry["inbound_nodes"][0][0][0]
        n = sizes[source]
        if kind == "ZeroPadding2D":
            sizes[name], bare[name] = n + sum(config["padding"][0]), n
        elif kind in ("Conv2D", "MaxPooling2D"):
            k = config.get("kernel_size", config.get("pool_size"))[0]
            s = config["strides"][0]
            same = config["padding"] == "same"
            sizes[name] = -(-n // s) if same else (n - k) // s + 1
            if kind == "Conv2D":
                found[f"{name}/kernel"] = bare.get(source, n), s, sizes[name]
        else:
            sizes[name] = n
    return found


def test_networks_are_told_apart_by_what_is_in_their_files(tmp_path):
    for folder, content in (("a", b"one"), ("b", b"two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.onnx").write_bytes(content)
    first, second = (reports.identified([tmp_path / x / "net.onnx"]) for x in "ab")
    assert [*first] == [*second] == ["net.onnx"]
    assert first != second
    with pytest.raises(ValueError, match=r"different names, got two of 'net\.onnx'"):
        reports.identified([tmp_path / x / "net.onnx" for x in "ab"])
    assert reports.identified([None]) == {reports.EMBEDDED: None}
