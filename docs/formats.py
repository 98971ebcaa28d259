"""Write the table of file formats in report.md: `python docs/formats.py`.

It is made from the formats that the package reads, so that a new one has no page of its
own to edit.
"""

import re
from pathlib import Path

from convspectra._checkpoint import FORMATS

PAGE = Path(__file__).with_name("report.md")
TABLE = re.compile(
    r"(?<=<!-- formats -->\n).*?(?=\n<!-- end of formats -->)", re.DOTALL
)


def table() -> str:
    """A row for each format, in Markdown."""
    lines = [
        "| file | what it contains | what you add | can be written |",
        "|---|---|---|---|",
    ]
    for found in dict.fromkeys(FORMATS.values()):
        names = ", ".join(f"`{suffix}`" for suffix in found.suffixes)
        written = "yes" if found.writable else "no"
        lines.append(f"| {names} | {found.contains} | {found.you_add} | {written} |")
    return "\n".join(lines)


def made() -> str:
    """The page as it should be now."""
    page = PAGE.read_text(encoding="utf-8")
    return TABLE.sub(lambda _: f"\n{table()}\n", page)


if __name__ == "__main__":
    PAGE.write_text(made(), encoding="utf-8")
