"""Pretrained networks that lie outside the repository, where the user says."""

import os
from pathlib import Path

import pytest

VARIABLE = "CONVSPECTRA_DATA"


def real_data(name):
    """The path of a file in the data folder, or a skip where no folder is named."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} does not name the folder with the real networks")
    path = Path(folder) / "nets" / name
    assert path.exists(), f"{VARIABLE} is {folder}, which has no {name}"
    return path
