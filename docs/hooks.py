"""What mkdocs does to the pages beyond Markdown."""

import argparse
import os
import re
from typing import Any

OUTSIDE = re.compile(r"\[([^]]*)\]\(((?:\.\./)+)([^)]*)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put in the help of the command; links out of docs/ become names of files."""
    if "<!-- help -->" in markdown:
        return markdown.replace("<!-- help -->", _help())
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
