"""What a record holds, and what README and docs say of it."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

from benchmarks.contenders import installed
from benchmarks.machine import machine
from benchmarks.summary import summarize

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "records" / "2026-11-16"
TITLES = {
    "values": "all singular values",
    "norm": "operator norm, certified to 1e-4",
    "clip": "one clip (up to 512 channels)",
}


def test_the_version_of_every_library_is_recorded():
    about = machine()
    for library in {one.name.rpartition(", ")[2].lower() for one in installed()[0]}:
        assert about[library] == importlib.import_module(library).__version__


def as_shown(ratio):
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"


@pytest.fixture(scope="module")
def means():
    """Means of the record, by cases and job."""
    document = json.loads((RECORD / "results.json").read_text(encoding="utf-8"))
    rows = summarize(document)["means"]
    return {(row["cases"], row["job"]): row for row in rows}


def test_the_means_in_the_readme_are_those_of_the_record(means):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for job, title in TITLES.items():
        row = means["figure 1, 16 channels up", job]
        cells = [
            f"{as_shown(row[f'{key}_mean'])} ({as_shown(row[f'{key}_least'])})"
            for key in ("paper", "best")
        ]
        assert f"| {title} | {' | '.join(cells)} |" in text
    rest = [as_shown(means["ResNets, 3x3 and 7x7", job]["best_mean"]) for job in TITLES]
    said = "over the fastest other method are {}, {} and {}.".format(*rest)
    assert said in " ".join(text.split())


def test_the_seconds_in_the_docs_are_those_of_the_record():
    found = json.loads((RECORD / "training.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    seconds = found["median_seconds"]
    assert f"| a step | {seconds['step']:.1f} |" in text
    assert f"| a pass over {found['kernels']} kernels | {seconds['pass']:.2f} |" in text
    assert f"| {seconds['paper']:.1f} | {found['paper_over_ours']:.0f} times" in text


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))],
    ids=lambda p: p.name,
)
def test_links_to_benchmarks_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]*benchmarks/[^)#]*)", page.read_text("utf-8"))
    for link in links:
        assert (page.parent / link).exists(), link


def private_names(source):
    """Names with an underscore that code imports from convspectra, or reads of it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        for name in names:
            root, *rest = name.split(".")
            private = [part for part in rest if re.match("_(?!_)", part)]
            if root in ("convspectra", "cs") and private:
                yield name


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("import convspectra._norm", ["convspectra._norm"]),
        ("from convspectra import _norm", ["convspectra._norm"]),
        ("from convspectra.torch._pass import Pass", ["convspectra.torch._pass.Pass"]),
        ("cs._norm", ["cs._norm"]),
        ("from convspectra.torch import layers; cs.__file__; self._path", []),
    ],
)
def test_private_names_are_seen(source, private):
    assert list(private_names(source)) == private


def test_benchmarks_use_public_names_only():
    files = list((ROOT / "benchmarks").rglob("*.py"))
    assert len(files) > 10
    for path in files:
        found = list(private_names(path.read_text(encoding="utf-8")))
        assert not found, path.name
