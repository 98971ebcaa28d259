"""What is said on stderr: lines that stay, and a live line where a person looks."""

import sys

from .processes import is_first


def say(text: str) -> None:
    """Write a line that stays."""
    _clear()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def live(text: str) -> None:
    """Write over the last live line; nothing if stderr is not a terminal."""
    if is_first() and sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def duration(seconds: float) -> str:
    """Return seconds as people say them: 8 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table, its columns aligned."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(text.ljust(w) for text, w in zip(line, widths)) + " |"
        for line in lines
    )


def _clear() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
