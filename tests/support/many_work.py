"""Work on checkpoints that other processes can import; a checkpoint is a number."""

import os
import signal
import sys
import time
import uuid
from functools import partial
from pathlib import Path

from convspectra._arrays import threads
from convspectra._report.many import each_checkpoint, shard


def norms(path):
    """The document of a checkpoint, or what `float` says of a corrupt one."""
    number = float(path.read_text())
    row = {"name": "conv", "norm_lower": number, "norm_upper": 2 * number}
    return {"layers": [row], "process": os.getpid()}


def marked(path, *, marks, seconds=0.0):
    """The document, after leaving a mark that counts this call."""
    (marks / f"{path.name}.{uuid.uuid4().hex}").touch()
    time.sleep(seconds)
    return norms(path)


def deadly(path, *, marks, seconds=0.0):
    """Like `marked`, but files named `deadly` kill the process that opens them."""
    if path.stem.startswith("deadly"):
        (marks / f"{path.name}.{uuid.uuid4().hex}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return marked(path, marks=marks, seconds=seconds)


def large(path, *, marks):
    """Like `marked`; `large` fits at its second try, `huge` into no memory at all."""
    tries = sum(mark.name.startswith(path.name) for mark in marks.iterdir())
    found = marked(path, marks=marks)
    if path.stem == "huge" or (path.stem == "large" and not tries):
        raise MemoryError("10 GiB")
    return found


def impossible(path):
    """Fails in ways that nobody has foreseen."""
    if path.stem == "deep":
        raise RecursionError("too deep")
    return {"an object": path}


def surroundings(path):
    """How many threads the library would take here."""
    return {"cores": threads.cores()}


def main():
    """Run a shard, for tests that need it in a process of its own."""
    checkpoints, marks, folder = map(Path, sys.argv[1:4])
    jobs, number, count = map(int, sys.argv[4:])
    # Which tests that run in the background would ignore.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        each_checkpoint(
            shard(checkpoints.iterdir(), number, count),
            partial(marked, marks=marks, seconds=0.02),
            folder,
            key={},
            jobs=jobs,
        )
    except KeyboardInterrupt:
        sys.exit(77)
