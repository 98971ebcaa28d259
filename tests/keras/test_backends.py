"""The tests of layers and of training once more, on Keras's other backends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from optional import needed

needed("keras")
ROOT = Path(__file__).parents[2]
FILES = ["tests/keras/test_layers.py", "tests/keras/test_training.py"]
# Threads that wait cost processor time.
QUICK = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Without TensorFlow, which most users of these backends do not have; Keras imports it
# if it can, which takes longer than most tests.
ALONE = """
import sys, pytest
sys.modules["tensorflow"] = None
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_same_on_another_backend(backend):
    if os.environ["KERAS_BACKEND"] != "tensorflow":
        return
    needed(backend)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, "-q", "-p", "no:xdist", *FILES],
        cwd=ROOT,
        env=os.environ | QUICK | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
