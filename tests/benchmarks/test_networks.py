"""The table of networks: what the command says of each file, and what it takes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from onnx_models import make_node, model_of, stored, value

from benchmarks import networks

ROOT = Path(__file__).parents[2]


def save_networks(folder):
    conv = make_node("Conv", ["x", "w"], ["a"], pads=[1, 1])
    odd = make_node("DeformConv", ["a", "w"], ["y"], "odd")
    tensors = [stored("w", np.arange(12.0).reshape(2, 2, 3))]
    model = model_of([conv, odd], tensors, [value("x", ["N", 2, "W"])])
    (folder / "open.onnx").write_bytes(model.SerializeToString())
    np.savez(folder / "weights.npz", kernel=np.ones((2, 2, 3)))
    (folder / "README.md").write_text("no network")


def measured(folder, *options):
    """What the command prints, from a process that is small: a child's peak memory is
    never below its parent's."""
    command = [sys.executable, "-m", "benchmarks", "--networks", folder]
    command += ["-o", folder / "out", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


def test_a_folder_of_networks_is_a_table(tmp_path):
    save_networks(tmp_path)
    rows = json.loads(measured(tmp_path, "--json").stdout)
    rows = {row["network"]: row for row in rows}
    assert list(rows) == ["open.onnx", "weights.npz"]
    graph = rows["open.onnx"]
    assert graph["arguments"] == "--input 1x2x224"
    keys = ("layers", "named", "grids", "bounded", "values")
    assert [graph[key] for key in keys] == [1, 1, 1, 1, 1]
    assert 0 <= graph["gap"] <= graph["widest"] < 1e-3
    assert 10 < graph["megabytes"] < 1000
    weights = rows["weights.npz"]
    assert [weights[key] for key in keys] == [1, 0, 0, 0, 0]
    assert weights["gap"] is None
    shown = measured(tmp_path)
    assert "of 2" not in shown.stderr  # it resumes
    assert "open.onnx" in shown.stdout


def test_what_takes_too_much_is_said(tmp_path):
    row = {"network": "n", "seconds": 61.0, "megabytes": 1001.0}
    (shown,) = networks.rows_of({"results": {"n": row}})
    assert shown["over"] == "time, memory"
    (tmp_path / "broken.npz").write_bytes(b"PK")
    row = networks.measure_network(tmp_path / "broken.npz")
    (shown,) = networks.rows_of({"results": {"n": row}})
    assert "damaged or cut short" in shown["over"]
