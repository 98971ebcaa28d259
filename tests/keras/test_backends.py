"""All tests of this folder once more, on Keras's other backends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from optional import needed

needed("keras")
ROOT = Path(__file__).parents[2]
FILES = ["tests/keras/test_layers.py", "tests/keras/test_training.py"]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_same_on_another_backend(backend):
    if os.environ["KERAS_BACKEND"] != "tensorflow":
        return
    needed(backend)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *FILES],
        cwd=ROOT,
        env=os.environ | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
