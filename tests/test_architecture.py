"""The page on the code's layout says what the code is like now."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import make_map

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "convspectra"
PAGE = ROOT / "docs" / "architecture.md"
FILE = re.compile(r"`([\w/]+\.py)`")


def test_the_map_is_that_of_the_imports():
    picture, page = make_map.made()
    again = "run `python docs/make_map.py`"
    assert make_map.PICTURE.read_text(encoding="utf-8") == picture, again
    assert make_map.PAGE.read_text(encoding="utf-8") == page, again


def test_every_room_has_a_question():
    for layer in make_map.layers():
        for room in layer:
            assert make_map.question(room), room


PAGES = [PAGE, *PACKAGE.glob("*/README.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_files_that_are_named_are_there(page):
    for name in FILE.findall(page.read_text(encoding="utf-8")):
        if "NAME" not in name:
            places = (ROOT, PACKAGE, page.parent)
            assert any((place / name).exists() for place in places), name


def test_walks_go_through_the_files_named():
    done = subprocess.run(
        [sys.executable, "docs/walks.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    traced = dict(re.findall(r"^([\w ]+):.*\n((?:  .*\n)+)", done.stdout, re.MULTILINE))
    text = PAGE.read_text(encoding="utf-8")
    named = dict(
        re.findall(r"<!-- walk: ([\w ]+) -->(.*?)<!-- end of walk -->", text, re.DOTALL)
    )
    assert named.keys() == traced.keys()
    for name, part in named.items():
        assert set(FILE.findall(part)) == set(traced[name].split()), name
