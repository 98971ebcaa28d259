"""The whole benchmark: measure what is not known yet, and write down what follows."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from convspectra._files import replacing
from convspectra._render import progress, say
from .cases import SEED
from .contender import JOBS, RTOL
from .contenders import installed
from .figure import save_figure
from .machine import gemm_rate, load, machine, source_digest
from .measure import FAILED, measure
from .page import markdown
from .plans import FULL, QUICK
from .store import RESULTS, Store
from .summary import Summary, summarize

BUSY = 0.3  # of the cores, beyond which a machine is not quiet


def bench(
    folder: Path, *, full: bool, jobs: Sequence[str], fresh: bool
) -> tuple[Summary, bool]:
    """Run the benchmark, or what is left of it.

    Parameters
    ----------
    folder : Path
        Gets results.json after every job, in the end results.md and figure.png.
    full : bool
        Whether to run all cases, or a few that take two minutes.
    jobs : sequence of {"values", "norm", "clip"}
    fresh : bool
        Whether to forget the results that the folder has.

    Returns
    -------
    Summary
    bool
        Whether every answer of convspectra has passed its check.
    """
    _check_jobs(jobs)
    plan = FULL if full else QUICK
    contenders, missing = installed()
    for library in missing:
        say(f"{library} is not installed: its contenders are not in this run.")
    about = machine()
    settings = {
        "plan": plan.name,
        "seed": SEED,
        "rtol": RTOL,
        "source": source_digest(),
        **{key: about[key] for key in about if key != "blas"},
    }
    beginning = {"date": _now(), "machine": about, "load": load()}
    beginning["gemm_rate"] = gemm_rate()
    if (beginning["load"] or 0) > BUSY * (about["cores"] or 1):
        say(f"this machine is busy (load {beginning['load']:.1f}): times will be off.")
    store = Store(folder, settings, fresh=fresh, about=beginning)
    work = [(case, job) for case in plan.cases for job in JOBS if job in jobs]
    left = [pair for pair in work if store.entries(*pair) is None]
    if len(left) < len(work):
        done = f"{len(work) - len(left)} of {len(work)}"
        say(f"{done} jobs are in {folder / RESULTS} already; --fresh forgets them.")
    for case, job in progress(left, f"bench, {plan.name}"):
        known = store.by_contender(case, "values")
        smaller = store.by_contender(case.with_half_the_channels, job)
        store.add(case, job, measure(case, job, contenders, plan, known, smaller))
    return _conclude(folder, store.document)


def _conclude(folder: Path, document: dict[str, Any]) -> tuple[Summary, bool]:
    summary = summarize(document)
    with replacing(folder / "results.md") as partial:
        partial.write_text(markdown(document, summary), encoding="utf-8")
    try:
        save_figure(document, folder / "figure.png")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        say("no picture: matplotlib is not installed; convspectra[plot] brings it.")
    failed = [
        f"{entry['contender']}, {found['job']} of {found['name']}: {entry['reason']}"
        for found in document["results"]
        for entry in found["entries"]
        if entry["status"] == FAILED
    ]
    for line in failed:
        say(f"failed: {line}.")
    return summary, not any(line.startswith("convspectra") for line in failed)


def _check_jobs(jobs: Sequence[str]) -> None:
    if not jobs or any(job not in JOBS for job in jobs):
        raise ValueError(
            f"`--jobs` must be some of {', '.join(JOBS)}, joined by commas, got "
            f"{','.join(jobs)!r}."
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
