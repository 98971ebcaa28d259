"""Array libraries and seeded randomness for every test."""

import os
import zlib

import numpy as np
import pytest
from hypothesis import settings
from optional import library

from convspectra._arrays.threads import cores

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# XLA optimizes for longer than the tests then run. It is read when JAX is imported.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)
# TensorFlow's plain CPU code has no dilated transposed convolutions; oneDNN's has, and
# is the default on machines of one maker only. It is read when TensorFlow is imported.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"

# Under CI the same examples every time; elsewhere new ones, to find new failures.
settings.register_profile("shared", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("shared")

LIBRARIES = ("numpy", "array_api_strict", "torch", "jax.numpy", "tensorflow")


@pytest.fixture(scope="session", autouse=True)
def two_cores():
    """Two threads of our own on every machine, whatever else limits this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
        patch.setattr("os.cpu_count", lambda: 2)
        patch.delenv("OMP_NUM_THREADS", raising=False)
        cores.cache_clear()
        assert cores() == 2


@pytest.fixture(params=LIBRARIES)
def xp(request):
    return library(request.param)


@pytest.fixture
def torch():
    return library("torch")


@pytest.fixture(scope="session")
def keras():
    """Keras, on TensorFlow unless a test has started another process for another."""
    found = library("keras")
    if found.backend.backend() == "tensorflow":
        from tensorflow.python.framework.test_util import IsMklEnabled

        assert IsMklEnabled(), "TF_ENABLE_ONEDNN_OPTS must be 1 before it is imported"
    return found


@pytest.fixture
def jax():
    library("jax.numpy")
    return library("jax")


@pytest.fixture
def rng(request):
    """Numbers that depend on the test's own name and on nothing else."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
