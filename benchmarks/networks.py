"""What `convspectra report` says of each network in a folder, and what that takes.

Each file is one command, as a user would give it, in a process of its own. If the graph
leaves the sizes of its input open, the example that the command suggests is passed.
"""

import fnmatch
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .machine import load, machine, source_digest
from .page import say
from .record import saved, write

RESULTS = "networks.json"
ADVICE = "Take another folder with -o, or remove that file."
MOST_SECONDS, MOST_MEGABYTES = 60.0, 1000.0  # that a network should take
EXAMPLE = re.compile(r"for example (--input [0-9x]+)")
OTHER_FILES = (".json", ".md", ".py", ".txt", ".toml")  # beside networks
# What files do not say themselves: the kernels of these are (*kernel, in, out).
ARGUMENTS = {
    "squeezenet*.npz": "--layout hwio",
    "*keras*.safetensors": "--layout hwio",
}


def measure_networks(networks: Path, folder: Path) -> dict[str, Any]:
    """Analyse every network that networks.json does not have yet; its document."""
    files = _files(networks)
    folder.mkdir(parents=True, exist_ok=True)
    path, about = folder / RESULTS, machine()
    settings = {"source": source_digest(), "folder": str(networks.resolve())}
    settings |= {key: about[key] for key in about if key != "blas"}
    document: dict[str, Any] = {"settings": settings, "machine": about, "load": load()}
    document["results"] = {}
    if path.exists():
        document = saved(path, settings, ADVICE)
    for i, file in enumerate(files, 1):
        if file.name in document["results"]:
            continue
        say(f"{i} of {len(files)}: {file.name}")
        document["results"][file.name] = measure_network(file)
        write(path, json.dumps(document, indent=1).encode())
    return document


def _files(networks: Path) -> list[Path]:
    found = [
        file
        for file in sorted(networks.iterdir())
        if file.name.endswith(".safetensors.index.json")
        or (file.is_file() and file.suffix not in OTHER_FILES)
    ]
    if not found:
        raise ValueError(f"{str(networks)!r} must hold networks, got none.")
    return found


def measure_network(file: Path) -> dict[str, Any]:
    """A row of the table: what was found, how close, how long, and in how much."""
    arguments = [
        word
        for pattern, text in ARGUMENTS.items()
        if fnmatch.fnmatch(file.name, pattern)
        for word in text.split()
    ]
    if file.suffix == ".onnx":
        example = EXAMPLE.search(_run(file, [*arguments, "--quick"])["said"])
        arguments += example[1].split() if example else []
    row: dict[str, Any] = {
        "network": file.name,
        "arguments": shlex.join(arguments),
        "size": file.stat().st_size / 1e6,
    }
    done = _run(file, arguments)
    row |= {key: done[key] for key in ("seconds", "processor", "megabytes")}
    if done["code"]:
        return row | {"error": done["said"].strip().splitlines()[-1][:200]}
    return row | _facts(done["report"])


def _facts(report: Mapping[str, Any]) -> dict[str, Any]:
    """How many layers, of how many the size, and how close the bounds are.

    `named` are layers of a graph that cannot be read, and are listed with the reason.
    """
    layers = report["layers"]
    gaps = [
        layer["norm_upper"] / layer["norm_lower"] - 1
        for layer in layers
        if layer["norm_lower"]
    ]
    skipped = [each["reason"] for each in report["skipped"]]
    return {
        "layers": len(layers),
        "named": sum(reason.startswith("is of type") for reason in skipped),
        "grids": sum(layer["grid"] is not None for layer in layers),
        "bounded": len(gaps),
        "gap": statistics.median(gaps) if gaps else None,
        "widest": max(gaps, default=None),
        "values": sum(layer["values_of"] is not None for layer in layers),
    }


def _run(file: Path, arguments: list[str]) -> dict[str, Any]:
    """Run the command; its exit code, report and talk, its seconds and memory."""
    command = [sys.executable, "-m", "convspectra", "report", str(file), "--json"]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.perf_counter()
        process = subprocess.Popen([*command, *arguments], stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = code = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return {
            "code": code,
            "report": json.load(out) if not code else None,
            "said": err.read() or f"exit code {code}",
            "seconds": seconds,
            "processor": usage.ru_utime + usage.ru_stime,
            # That of the largest process, of those that the command starts, too.
            "megabytes": usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3),
        }


def rows_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table, and what is over in each."""
    return [
        {**row, "over": ", ".join(_over(row))} for row in document["results"].values()
    ]


def _over(row: Mapping[str, Any]) -> list[str]:
    found = []
    if row["seconds"] > MOST_SECONDS:
        found.append("time")
    if row["megabytes"] > MOST_MEGABYTES:
        found.append("memory")
    if "error" in row:
        found.append(row["error"])
    return found
