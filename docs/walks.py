"""Which files a job goes through: `python docs/walks.py` prints what was traced.

A file is entered when one of its functions is called, and a switch is an entry into
another file than the last one. Compiled loops leave no trace, and neither do imports.
"""

import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import convspectra as cs

PACKAGE = str(Path(cs.__file__).parent) + "/"
WEIGHT = np.random.default_rng(0).standard_normal((64, 64, 3, 3))


def norm() -> Callable[[], Any]:
    """The norm of 64 channels, 3 x 3 taps, on a circular grid of 16 x 16."""
    geometry = cs.Geometry(16)
    return lambda: cs.operator_norm(WEIGHT, geometry)


def report() -> Callable[[], Any]:
    """`convspectra report` on the network that comes with the package."""
    from convspectra._cli.main import main

    def run() -> None:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            assert main(["report", "-o", folder]) == 0

    return run


def training_step() -> Callable[[], Any]:
    """One pass of `SpectralClip(method="project")` over a layer of 16 channels."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.Conv2d(16, 16, 3, padding=1, padding_mode="circular")
    example = torch.zeros(1, 16, 16, 16)
    bound = cs.torch.SpectralClip(layer, 0.5, 1, method="project", example=example)

    def run() -> None:
        with torch.no_grad():
            layer.weight.mul_(2)  # what the optimizer does; else there is no work
        bound.step()

    return run


WALKS = {
    "norm": norm,
    "report": report,
    "training step": training_step,
}


ENTERED: list[str] = []


def note(frame: FrameType, event: str, _: Any) -> None:
    """Write down a call, in any thread that has started since this was set."""
    path = frame.f_code.co_filename
    if event == "call" and path.startswith(PACKAGE):
        ENTERED.append(path.removeprefix(PACKAGE))


def walk(name: str) -> tuple[list[str], int]:
    """The files in the order of their first entry, and the number of switches."""
    run = WALKS[name]()
    run()  # what is imported, compiled and cached the first time is no part of it
    ENTERED.clear()
    sys.setprofile(note)
    run()
    sys.setprofile(None)
    switches = sum(one != other for one, other in zip([None, *ENTERED], ENTERED))
    return list(dict.fromkeys(ENTERED)), switches


if __name__ == "__main__":
    threading.setprofile(note)  # before the pool has threads
    for name in WALKS:
        files, switches = walk(name)
        sys.stdout.write(f"{name}: {len(files)} files, {switches} switches\n")
        sys.stdout.writelines(f"  {path}\n" for path in files)
