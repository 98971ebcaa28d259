"""Trainings that processes share, as torchrun starts them."""

import json
import os
import subprocess
import sys
from pathlib import Path

from optional import needed

needed("torch")
needed("matplotlib")

HERE = Path(__file__).parent


def test_two_processes_share_every_training(tmp_path):
    """All that two_processes.py checks; what fails is named in its traceback."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node=2", str(HERE / "torchrun" / "two_processes.py")),
        str(tmp_path),
    ]
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads((tmp_path / "cifar10" / "result.json").read_text())
    assert document["settings"]["processes"] == 2
    assert [*document["results"]] == ["none, seed 0", "0.5, seed 0"]
    assert (tmp_path / "cifar10" / "cifar10.png").exists()
