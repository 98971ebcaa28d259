"""What mkdocs does to the pages beyond Markdown."""

import argparse
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^]]*)\]\(((?:\.\./)+)([^)]*)\)")
FIGURE = re.compile(r"(!\[[^]]*\])\(\.\./(experiments/records/[^)]*)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the figures of the experiments' records, which stand outside of docs/."""
    for path in (ROOT / "experiments" / "records").glob("*/*.png"):
        uri = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put in the help of the command; links out of docs/ become names of files."""
    if "<!-- help -->" in markdown:
        return markdown.replace("<!-- help -->", _help())
    markdown = FIGURE.sub(r"[\1(\2)](\2)", markdown)  # a click shows it in full
    up = page.file.src_uri.count("/") + 1
    return OUTSIDE.sub(
        lambda link: f"{link[1]} (`{link[3]}`)" if len(link[2]) == 3 * up else link[0],
        markdown,
    )


def _help() -> str:
    from convspectra._cli.arguments import parser

    os.environ["COLUMNS"] = "80"  # else as wide as the terminal
    top = parser()
    commands = next(
        action.choices
        for action in top._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    parts = [f"```text\n{top.format_help()}```"]
    for name, command in commands.items():
        parts.append(f"## {name}\n\n```text\n{command.format_help()}```")
    return "\n\n".join(parts)
