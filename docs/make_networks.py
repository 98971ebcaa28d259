"""Write the table of networks in report.md, from what was measured.

python -m benchmarks --networks FOLDER -o networks
python docs/make_networks.py networks/networks.json
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("report.md")
SECTION = """
## Networks at hand

What the command said of these files, and what it took, each in a process of its own on
two cores: how many layers it found (and how many it only named), for how many the input
size is known, the median and the largest relative gap between the bounds of a norm,
seconds and peak memory. Files of weights alone state no sizes, and most of their layers
have no lower bound; gaps are of those that do.

<!-- networks -->

<!-- end of networks -->
"""
TABLE = re.compile(
    r"(?<=<!-- networks -->\n).*?(?=\n<!-- end of networks -->)", re.DOTALL
)


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each network, in Markdown."""
    lines = [
        "| network | format | layers | sizes known | gap | widest | seconds | MB |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in sorted(results.items()):
        stem, _, suffix = name.rpartition(".")
        cells = [
            f"{stem} ({row['arguments']})" if row["arguments"] else stem,
            f"`.{suffix}`",
            _count(row, "layers"),
            _count(row, "grids"),
            _percent(row.get("gap")),
            _percent(row.get("widest")),
            f"{row['seconds']:.0f}",
            f"{row['megabytes']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _count(row: Mapping[str, Any], key: str) -> str:
    """How many, with those that are only named after a plus."""
    more = row.get("named") if key == "layers" else 0
    return f"{row.get(key, 0)}{f' + {more}' if more else ''}"


def _percent(gap: float | None) -> str:
    if gap is None:
        return "unknown"
    return f"{100 * gap:.0f} %" if gap > 0.1 else f"{100 * gap:.2g} %"


def made(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with this table."""
    page = PAGE.read_text(encoding="utf-8")
    if not TABLE.search(page):
        page += SECTION
    return TABLE.sub(lambda _: f"\n{table(results)}\n", page)


if __name__ == "__main__":
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    PAGE.write_text(made(document["results"]), encoding="utf-8")
