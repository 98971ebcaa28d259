"""Packages that tests need and users may not have."""

import importlib
import os

import pytest


def needed(name):
    """The package, or a skip of the whole file; under CI a missing one is a failure."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{name} is not installed", allow_module_level=True)
