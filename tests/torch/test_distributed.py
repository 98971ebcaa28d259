"""Real processes, started by torchrun."""

import os
import subprocess
import sys
from pathlib import Path

from optional import needed

needed("torch")

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "support"


def test_in_two_processes():
    """All that replicas.py checks; what fails is named in its traceback."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node=2", str(HERE / "distributed" / "replicas.py")),
    ]
    environment = os.environ | {"PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
