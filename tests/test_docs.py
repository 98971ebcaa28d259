"""The commands in README and docs run as they stand; Python examples are doctests."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import convspectra
from convspectra._checkpoint import FORMATS
from convspectra._cli.arguments import parser
from convspectra._cli.main import main
from docs import formats

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
    text = page.read_text(encoding="utf-8")
    for name, block in re.findall(r"```toml\n# (\S+)\n(.*?)```", text, re.DOTALL):
        Path(name).write_text(block, encoding="utf-8")
    for command in commands(page):
        assert main(shlex.split(command)) == 0, command


SCRIPTS = [
    (page.name, name, block)
    for page in PAGES
    for block in re.findall(r"```python\n(# .*?)```", page.read_text(), re.DOTALL)
    for name in re.findall(r"^# (\w+\.py)", block)
]


@pytest.mark.parametrize(("page", "name", "block"), SCRIPTS, ids=lambda x: x[:20])
def test_the_scripts_of_a_page_run(page, name, block, tmp_path):
    (tmp_path / name).write_text(block, encoding="utf-8")
    start = [sys.executable]
    if "torchrun" in block:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*start, name],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{page}: {done.stderr[-3000:]}"


def test_the_reference_has_every_public_name(torch, keras, jax):
    for module, page in (
        (convspectra, "convspectra"),
        (convspectra.torch, "torch"),
        (convspectra.keras, "keras"),
        (convspectra.jax, "jax"),
    ):
        text = (ROOT / "docs" / "api" / f"{page}.md").read_text(encoding="utf-8")
        listed = re.findall(rf"^::: {module.__name__}\.(\w+)$", text, re.MULTILINE)
        public = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and not isinstance(value, ModuleType)
        ]
        assert set(public) == set(listed) - {"__version__"}


def test_pages_link_to_files_that_are_there():
    for page in PAGES:
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target = part.partition(")")[0].partition("#")[0]  # mkdocs checks anchors
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def suffixes_in(text):
    """The suffixes in code spans, but for those of files that have a name."""
    return set(re.findall(r"`(\.[\w.]+)`", text))


def test_the_table_of_formats_is_that_of_the_readers():
    text = formats.PAGE.read_text(encoding="utf-8")
    assert text == formats.made(), "run `python docs/formats.py`"
    assert suffixes_in(formats.TABLE.search(text)[0]) == set(FORMATS)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages_name_no_other_suffixes(page):
    known = {*FORMATS, ".toml", ".html", ".json", ".png", ".upper", ".weight"}
    assert suffixes_in(page.read_text(encoding="utf-8")) <= known


def test_help_names_the_formats_that_an_option_is_for(capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["project", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for suffix in FORMATS:
        assert suffix in text
    linear = text.partition("does not say what they are (these do: ")[2]
    assert linear.partition(")")[0].split(", ") == [
        suffix for suffix, found in FORMATS.items() if found.matrices
    ]
