"""The command `convspectra`: data on stdout, talk on stderr, and an exit code."""

import argparse
import io
import os
import sys
from collections.abc import Callable

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
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that stdout has no letters for must not end a report.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = main()
    if code == GONE:  # what is left in the buffer has nowhere to go: let it go quietly
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


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
    except OSError as failed:
        error = f"{failed.strerror}." if failed.strerror else str(failed)
    except (ValueError, TypeError, ImportError, ArithmeticError) as failed:
        error = str(failed)
    file = getattr(args, "file", None)
    say(f"{file}: {error}" if file else error)
    return 2
