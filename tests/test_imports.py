"""The public surface, and what importing it must not bring along."""

import subprocess
import sys
from types import ModuleType

import pytest

import convspectra

PUBLIC = """
    Cost Geometry Layer LayerSpectrum NormBounds Plan Projection Report Summary
    TopVectors clip dense_matrix operator_norm plan project scale_to singular_values
    spectra summarize top_vectors
"""


def test_public_names_are_these():
    assert {
        name
        for name, value in vars(convspectra).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    } == set(PUBLIC.split())


@pytest.mark.parametrize("name", PUBLIC.split())
def test_public_names_are_documented(name):
    assert getattr(convspectra, name).__doc__


@pytest.mark.parametrize(
    "library", ["torch", "jax", "matplotlib", "numba", "rich", "safetensors", "scipy"]
)
def test_importing_the_package_imports_no_framework(library):
    code = f"import sys, convspectra.baselines; sys.exit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
