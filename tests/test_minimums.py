"""The lowest versions that pyproject.toml allows are those of minimums.txt."""

import importlib.metadata
import os
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def pins(name):
    """The versions by package that a file of constraints states."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(
        line.partition("#")[0].strip().split("==") for line in lines if line[0] != "#"
    )


def short(version):
    """The version without zeros at its end: 2.0.0 and 2.0 are the same."""
    return re.sub(r"(\.0)+$", "", version)


def test_every_bound_is_a_version_that_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = project["dependencies"] + [
        one for extra in extras.keys() - {"dev", "docs"} for one in extras[extra]
    ]
    bounds = dict(
        re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+)", one).groups()
        for one in needed
        if not one.startswith("convspectra[")
    )
    lowest, pinned = pins("minimums.txt"), pins("constraints.txt")
    assert bounds.keys() <= lowest.keys() <= pinned.keys()
    for name, bound in bounds.items():
        assert short(lowest[name]) == short(bound), name


def test_the_environment_of_minimums_has_these():
    if os.environ.get("CI") != "minimums":
        return  # only .ci/minimums makes one
    for name, version in pins("minimums.txt").items():
        if name not in ("keras", "ray", "tensorflow-cpu", "torch"):
            found = importlib.metadata.version(name)
            assert short(found) == short(version), name
