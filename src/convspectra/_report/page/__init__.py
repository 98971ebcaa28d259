"""A report as one page that holds everything it shows and asks the network nothing."""

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any

from ..._base import require

SCRIPTS = ("data.js", "plots.js", "page.js")  # one after the other: one script


def page(document: Mapping[str, Any]) -> str:
    """Return a report as the text of one self-contained HTML page.

    Parameters
    ----------
    document : mapping
        Plain data, as JSON knows it: title, version, notes, summary, layers, skipped
        and trajectories. Names may be any text: the page shows it, and runs none of it.

    Returns
    -------
    str
        To be written in UTF-8.

    Raises
    ------
    ValueError
        If a number is infinite or not a number: None stands for what is unknown.
    """
    try:
        data = json.dumps(document, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise ValueError(
            "The numbers of `document` must be finite, got one that is not "
            f"({error}). Put None in its place."
        ) from None
    plotly = require("plotly.offline", extra="report").get_plotlyjs()
    ours = "".join(map(_read, SCRIPTS))
    scripts = {"plotly": _script(plotly), "script": _script(ours)}
    parts = {
        # Without "<" nothing in the data can end its element or begin another.
        "data": data.replace("<", "\\u003c"),
        "style": _read("page.css"),
        # Scripts with these sums run, and no others: not even one that got in.
        "hashes": " ".join(f"'sha256-{_sum(text)}'" for text in scripts.values()),
        **scripts,
    }
    # In one pass: what is put in is not searched for further places.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _read("page.html"))


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """The text as a browser reads it between script tags: the sum is of that."""
    if re.search(r"</script|<!--", text, re.IGNORECASE):
        raise ValueError(
            "A script must not contain what ends it, `</script` or `<!--`. Install "
            "another version of plotly."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _sum(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()
