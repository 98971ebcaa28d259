"""The whole benchmark: measure what is not known yet, and write down what follows."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .cases import FULL, QUICK, SEED
from .contenders import JOBS, RTOL, installed
from .figure import png
from .machine import gemm_rate, load, machine, source_digest
from .measuring import FAILED, measure
from .page import markdown, say
from .record import RESULTS, Record, write
from .summary import Row, summarize

BUSY = 0.3  # of the cores; above this load a machine is not quiet


def run(
    folder: Path, *, full: bool, jobs: Sequence[str], fresh: bool
) -> tuple[dict[str, list[Row]], bool]:
    """Run the benchmark, or what is left of it.

    The folder gets results.json after every job, in the end results.md and figure.png.
    Returns what `summarize` does, and whether every answer of convspectra is right.
    """
    suite = FULL if full else QUICK
    contenders, missing = installed()
    for library in missing:
        say(f"{library} is not installed: its contenders are not in this run.")
    about, busy = machine(), load()
    if (busy or 0) > BUSY * (about["cores"] or 1):
        say(f"this machine is busy (load {busy:.1f}): times will be off.")
    settings = {
        "suite": suite.name,
        "seed": SEED,
        "rtol": RTOL,
        "source": source_digest(),
        **{key: about[key] for key in about if key != "blas"},
    }
    date = datetime.now(UTC).isoformat(timespec="seconds")
    begin = {"settings": settings, "date": date, "machine": about, "load": busy}
    record = Record(folder, begin | {"gemm_rate": gemm_rate()}, fresh=fresh)
    work = [(case, job) for case in suite.cases for job in JOBS if job in jobs]
    left = [pair for pair in work if record.entries(*pair) is None]
    if len(left) < len(work):
        done = f"{len(work) - len(left)} of {len(work)}"
        say(f"{done} jobs are in {folder / RESULTS} already; --fresh forgets them.")
    for i, (case, job) in enumerate(left, 1):
        say(f"{i} of {len(left)}: {job}, {case.name}")
        known = record.entries(case, "values") or {}
        smaller = record.entries(case.with_half_the_channels(), job) or {}
        record.add(case, job, measure(case, job, contenders, suite, known, smaller))
    return _conclude(folder, record.document)


def _conclude(
    folder: Path, document: dict[str, Any]
) -> tuple[dict[str, list[Row]], bool]:
    summary = summarize(document)
    write(folder / "results.md", markdown(document, summary).encode())
    try:
        write(folder / "figure.png", png(document))
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        say("no figure: matplotlib is not installed; convspectra[plot] brings it.")
    failed = [
        f"{entry['contender']}, {result['job']} of {result['name']}: {entry['reason']}"
        for result in document["results"]
        for entry in result["entries"]
        if entry["status"] == FAILED
    ]
    for line in failed:
        say(f"failed: {line}.")
    return summary, not any(line.startswith("convspectra") for line in failed)
