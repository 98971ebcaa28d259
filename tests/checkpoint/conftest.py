"""What tests of several formats share."""

import pytest

from convspectra._checkpoint import onnx_file
from convspectra._checkpoint.onnx_geometry import Inferred


@pytest.fixture
def no_inference(monkeypatch):
    """Reads without a process for the shapes, where a test is about something else."""
    monkeypatch.setattr(onnx_file, "sizes_in", lambda model, **_: Inferred([]))
