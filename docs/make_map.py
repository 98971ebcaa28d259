"""Draw the rooms of the package and what they import: `python docs/make_map.py`.

Writes images/rooms.svg and the table in architecture.md. The order of the rooms is that
of the import contract in pyproject.toml, the questions are the rooms' own docstrings,
and the imports are those of the code.
"""

import ast
import re
import textwrap
import tomllib
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "convspectra"
PICTURE, PAGE = ROOT / "docs/images/rooms.svg", ROOT / "docs/architecture.md"
TABLE = re.compile(r"(?<=<!-- rooms -->\n).*?(?=\n<!-- end of rooms -->)", re.DOTALL)

# In pixels.
BOX, HEIGHT = 430, 44  # of a room
STEP, GAP = 54, 12  # from room to room, and more between layers
LANE, MARGIN = 17, 10

# Box and text carry their own colors; the lines' gray shows on white and on black.
FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
     width="{width}" height="{height}">
<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"
  markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">
  <path d="M0 0L8 4L0 8z" fill="#808890"/></marker></defs>
<g fill="none" stroke="#808890" stroke-width="1.25">
{lines}
</g>
<g fill="#808890">
{dots}
</g>
<style>rect {{ fill: #eef1f4; stroke: #808890 }} text {{ fill: #1c2126 }}</style>
{boxes}
</svg>
"""

Imports = dict[str, set[str]]


def layers() -> list[list[str]]:
    """The rooms from top to bottom, a list for each layer."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (stated,) = (each["layers"] for each in contracts if each["type"] == "layers")
    return [layer.split(" | ") for layer in stated]


def imports(rooms: list[str]) -> Imports:
    """The rooms that each room imports directly."""
    graph = grimp.build_graph(PACKAGE.name, cache_dir=None)
    own = {room: f"{PACKAGE.name}.{room}" for room in rooms}
    parts = {room: {own[room], *graph.find_descendants(own[room])} for room in rooms}
    found = {
        room: {
            imported
            for part in parts[room]
            for imported in graph.find_modules_directly_imported_by(part)
        }
        for room in rooms
    }
    return {
        room: {other for other in rooms if other != room and found[room] & parts[other]}
        for room in rooms
    }


def question(room: str) -> str:
    """The first line of the room's docstring."""
    path = PACKAGE / f"{room}.py"
    path = path if path.exists() else PACKAGE / room / "__init__.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def picture(order: list[list[str]], found: Imports) -> str:
    """An SVG: a box for each room, and a line down to each room that others import.

    A dot joins a room to the lines of what it imports. Lines of lower rooms are further
    to the right, so that none is crossed on its way into a box.
    """
    rooms = [room for layer in order for room in layer]
    top, y = {}, MARGIN
    for layer in order:
        for room in layer:
            top[room], y = y, y + STEP
        y += GAP
    used = [room for room in rooms if any(room in found[other] for other in rooms)]
    lane = {room: MARGIN + BOX + LANE * (i + 2) for i, room in enumerate(used)}
    width, height = max(lane.values()) + MARGIN, y - GAP - STEP + HEIGHT + MARGIN
    lines, dots = [], []
    for room in used:
        first = next(other for other in rooms if room in found[other])
        start, end = top[first] + HEIGHT * 2 // 3, top[room] + HEIGHT // 3
        path = f"M{lane[room]} {start}V{end}H{MARGIN + BOX + 2}"
        lines.append(f'<path d="{path}" marker-end="url(#arrow)"/>')
    for room in rooms:
        at = top[room] + HEIGHT * 2 // 3
        if found[room]:
            last = max(lane[other] for other in found[room])
            lines.append(f'<path d="M{MARGIN + BOX} {at}H{last}"/>')
        for other in sorted(found[room], key=lane.__getitem__):
            dots.append(f'<circle cx="{lane[other]}" cy="{at}" r="3.5"/>')
    boxes = [line for room in rooms for line in _box(room, top[room])]
    return FRAME.format(
        width=width,
        height=height,
        lines="\n".join(lines),
        dots="\n".join(dots),
        boxes="\n".join(boxes),
    )


def _box(room: str, y: int) -> list[str]:
    lines = textwrap.wrap(escape(question(room).replace("`", "")), 50)
    middle = y + HEIGHT // 2
    texts = [(20, middle + 5, "bold 14px", room)]
    for i, line in enumerate(lines):
        texts.append((128, middle + 4 + 8 * (2 * i + 1 - len(lines)), "12.5px", line))
    return [
        f'<rect x="{MARGIN}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="4"/>',
        *(
            f'<text x="{x}" y="{at}" style="font: {font} sans-serif">{text}</text>'
            for x, at, font, text in texts
        ),
    ]


def table(order: list[list[str]], found: Imports) -> str:
    """The rooms in Markdown; neighbors in one layer have the same number."""
    lines = ["| layer | room | what it answers | imports |", "|---|---|---|---|"]
    for number, layer in enumerate(order, start=1):
        for room in layer:
            below = [other for each in order for other in each if other in found[room]]
            names = ", ".join(f"`{other}`" for other in below) or "nothing of ours"
            lines.append(f"| {number} | `{room}` | {question(room)} | {names} |")
    return "\n".join(lines)


def made() -> tuple[str, str]:
    """The picture and the page, as they should be now."""
    order = layers()
    found = imports([room for layer in order for room in layer])
    page = PAGE.read_text(encoding="utf-8")
    return picture(order, found), TABLE.sub(
        lambda _: f"\n{table(order, found)}\n", page
    )


if __name__ == "__main__":
    for path, text in zip((PICTURE, PAGE), made()):
        path.write_text(text, encoding="utf-8")
