"""The typed program runs; that its types hold is for basedpyright to check."""

import runpy
from pathlib import Path


def test_the_typed_program_runs(torch):
    usage = runpy.run_path(str(Path(__file__).with_name("usage.py")))
    usage["numbers"](usage["geometries"]())
    usage["training"]()
