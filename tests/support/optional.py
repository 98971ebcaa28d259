"""Packages that tests need and users may not have."""

import importlib
import os

import pytest


def needed(name):
    """The package, or a skip, of the whole file if this is called outside of tests.

    Under CI a missing one is a failure.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{name} is not installed", allow_module_level=True)


def library(name):
    """The array library of this name, or a skip; JAX with double precision.

    TensorFlow's functions are by the names of the standard, as the package has them.
    """
    module = needed(name)
    if name == "tensorflow":
        return importlib.import_module("convspectra._arrays.tensorflow")
    if name == "jax.numpy":
        importlib.import_module("jax").config.update("jax_enable_x64", True)
    return module
