"""The command `convspectra`: data on stdout, talk on stderr, and an exit code."""

import argparse
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

from .._text import sentence_of
from .arguments import parser
from .diff import diff
from .kernels import clipped, compare, norm, projected, values
from .lipschitz import lipschitz
from .render import say
from .report import report

GONE = 141  # the code of a command whose reader has gone, as shells have it
COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "report": report,
    "diff": diff,
    "values": values,
    "norm": norm,
    "clip": clipped,
    "project": projected,
    "compare": compare,
    "lipschitz": lipschitz,
}


def run() -> None:
    """Run the command and exit with its code."""
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that stdout has no letters for must not end a report.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = main()
    except Exception:  # Python's own code for it, 1, is that of `--fail-above`
        say(traceback.format_exc())
        code = 2
    for stream in (sys.stdout, sys.stderr):
        _let_go_of_what_cannot_be_written(stream)
    sys.exit(code)


def _open_closed_streams() -> None:
    """Let what is for a stream that is closed, as after `>&-`, go nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", errors="backslashreplace"))


def _let_go_of_what_cannot_be_written(stream: TextIO) -> None:
    """Empty the buffer of a stream, over which Python's exit would fail otherwise."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    int
        0: done; 1: what `--fail-above` asks does not hold; 2: could not run. As shells
        have it, 130 after an interrupt and 141 after the reader of stdout has gone.
    """
    try:
        args = parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said what is wrong, or helped
        return int(stop.code or 0)
    try:
        code = COMMANDS[args.command](args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        say("interrupted.")
        return 130
    except BrokenPipeError:
        return GONE
    except (MemoryError, OverflowError):
        error = "The memory must suffice for the sizes asked for, and does not."
    except (OSError, ValueError, TypeError, ImportError, ArithmeticError) as failed:
        error = sentence_of(failed)
    file = getattr(args, "file", None)
    say(f"{file}: {error}" if file else error)
    return 2
