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
# Keras imports all that it can, which takes longer than most tests: here it finds what
# it needs, and no other backend.
ALONE = """
import os, sys, pytest
hidden = {"tensorflow", "jax", "torch", "pandas", "matplotlib.pyplot"}
hidden.remove(os.environ["KERAS_BACKEND"])
sys.modules.update(dict.fromkeys(hidden))
import keras
for name in hidden - {"tensorflow"}:
    del sys.modules[name]
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
