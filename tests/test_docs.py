"""The commands in README and docs run as they stand; Python examples are doctests."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from convspectra.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    return [line[len("$ convspectra ") :] for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if commands(p)], ids=lambda p: p.name
)
def test_the_commands_of_a_page_run_one_after_another(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weight = np.random.default_rng(0).standard_normal((4, 4, 3, 3)) / 6
    np.save("kernel.npy", weight)
    for command in commands(page):
        assert main(shlex.split(command)) == 0, command


def test_pages_link_to_files_that_are_there():
    for page in PAGES:
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target = part.partition(")")[0]
            assert (page.parent / target).exists(), f"{page.name}: {target}"
