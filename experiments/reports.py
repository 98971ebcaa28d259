"""What does `convspectra report` say of a network's file?"""

import hashlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
EMBEDDED = "the network that comes with convspectra"
RTOL = 1e-3  # of the norms
# The paper's view of any layer: a torus of the input's size, and no stride. The pattern
# is for every name, and not "*", which a table of geometries may have already.
AS_A_TORUS = """
["**"]
stride = 1
padding = "same"
boundary = "circular"
"""


def report(network: Path | None, *, as_torus: Path | None = None) -> dict[str, Any]:
    """Report on a network, 1x1 layers left out; on the embedded one if none is named.

    Parameters
    ----------
    network : Path or None
    as_torus : Path, optional
        Where to write a table of geometries that makes every layer a torus of the size
        of its input, without stride: the paper's view.
    """
    command = [sys.executable, "-m", "convspectra", "report", "--json"]
    command += ["--skip-pointwise", "--rtol", str(RTOL)]
    told = {} if network is None else _told_of(network)
    if as_torus is not None:
        stated = told.get("--geometry")
        before = "" if stated is None else Path(stated).read_text(encoding="utf-8")
        as_torus.write_text(before + AS_A_TORUS, encoding="utf-8")
        told["--geometry"] = str(as_torus)
    for option, value in told.items():
        command += [option, value]
    command += [] if network is None else ["--", str(network)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{network}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def name_of(network: Path | None) -> str:
    """The name of a network in records."""
    return EMBEDDED if network is None else network.name


def identified(networks: Sequence[Path | None]) -> dict[str, str | None]:
    """The SHA-256 digest of every network's file, by its name in records.

    None for the embedded network, which belongs to the commit.
    """
    found: dict[str, str | None] = {}
    for path in networks:
        if name_of(path) in found:
            raise ValueError(
                "The files of networks must have different names, got two of "
                f"{name_of(path)!r}. Rename one."
            )
        found[name_of(path)] = None if path is None else _digest(path)
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _told_of(network: Path) -> dict[str, str]:
    """The options for a file that is well known, or that has a table beside it."""
    known = tomllib.loads((DATA / "networks.toml").read_text(encoding="utf-8"))
    entry = known.get(network.name, {})
    told = {f"--{option}": value for option, value in entry.items()}
    if "geometry" in entry:
        told["--geometry"] = str(DATA / entry["geometry"])
    beside = network.with_suffix(".toml")
    if beside.exists():
        told["--geometry"] = str(beside)
    return told
