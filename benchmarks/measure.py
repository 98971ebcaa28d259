"""Check every answer, then time the contenders in turn."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import convspectra as cs

from .cases import Case, kernel_of
from .contender import COMPUTED, LOWER, UPPER, Contender, Run, Task
from .contenders import PAPER
from .plans import Plan
from .probe import Measured, ProbeError, probed
from .reference import ALLOWED, affordable, as_reference, error, is_right, reference

LEAST_SAMPLE = 0.02  # seconds; what is shorter is run several times in a row
PAUSE = 0.02  # seconds before a sample, for the threads of the one before to settle
SHORT = 0.05  # seconds; what is shorter has one untimed run after the pause
GROWTH = 8  # of the time with twice the channels, which are cubed
TIMED, FAILED, LEFT_OUT = "timed", "failed", "left out"

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class First:
    """The first run of a contender: its answer is to be checked before others count."""

    answer: Any
    seconds: float
    memory: int | None
    run: Run | None  # what was set up in this process


def task_of(case: Case, job: str) -> Task:
    """The kernel of a case; a clip is at half of the layer's norm."""
    weight = kernel_of(case)
    if job != "clip":
        return Task(case, weight, 0.0)
    norm = cs.operator_norm(weight, case.geometry)
    return Task(case, weight, 0.5 * float(norm.upper))


def measure(
    case: Case,
    job: str,
    contenders: Sequence[Contender],
    plan: Plan,
    known: Mapping[str, Entry],
    smaller: Mapping[str, Entry],
) -> list[Entry]:
    """One job on one case: an entry for each contender.

    Parameters
    ----------
    case : Case
    job : str
    contenders : sequence of Contender
    plan : Plan
    known : mapping of names to entries
        Of the job "values" on the same case. Where a norm is the largest of all values
        and they took so long that they were run once, their time stands for it.
    smaller : mapping of names to entries
        Of the same job with half of the channels, which tell what to expect.
    """
    task = task_of(case, job)
    entries: dict[str, Entry] = {}
    firsts: dict[str, First] = {}
    able: dict[str, Contender] = {}
    for one in contenders:
        if job not in one.makers:
            continue
        entry = entries[one.name] = {"contender": one.name, "kind": one.kind(job)}
        values = known.get(one.name, {})
        expected = GROWTH * _seconds(smaller.get(one.name, {}))
        if reason := one.refuses(case):
            entry |= {"status": LEFT_OUT, "reason": reason}
        elif expected > plan.patience and not _is_needed(one):
            reason = f"would take about {expected:.0f} s"
            entry |= {"status": LEFT_OUT, "reason": reason, "expected": expected}
        elif one.kind(job) == COMPUTED and values.get("repeats") == 1:
            entry |= values | {"kind": COMPUTED, "reason": "the time of all values"}
        else:
            able[one.name] = one
            try:
                firsts[one.name] = _first(one, job, task, case in plan.memory)
            except Exception as wrong:  # whatever a contender may raise
                entry |= {"status": FAILED, "reason": _words(wrong)}
    right = _checked(task, job, able, firsts, entries)
    _time(right, able, job, task, plan, entries)
    return list(entries.values())


def _seconds(entry: Entry) -> float:
    """What a contender has taken, or would have; 0 if that is not known."""
    return entry.get("median", entry.get("expected", 0.0))


def _is_needed(one: Contender) -> bool:
    """Whether all ratios are to its time, or from it."""
    return one.is_ours or one.name == PAPER


def _first(one: Contender, job: str, task: Task, in_a_process: bool) -> First:
    if in_a_process:
        found: Measured = probed(one, job, task)
        return First(found.answer, found.seconds, found.memory, None)
    run = one.makers[job](task)
    start = time.perf_counter()
    answer = run()
    return First(answer, time.perf_counter() - start, None, run)


def _words(wrong: Exception) -> str:
    if isinstance(wrong, ProbeError):
        return str(wrong)
    return f"{type(wrong).__name__}: {wrong}".splitlines()[0]


def _checked(
    task: Task,
    job: str,
    able: Mapping[str, Contender],
    firsts: Mapping[str, First],
    entries: Mapping[str, Entry],
) -> dict[str, First]:
    """The runs whose answers are right; entries get their errors."""
    right = {}
    apart = None
    if affordable(task.case) or not _is_judged_by_others(job, able, firsts):
        apart = reference(task, job)
    for name, first in firsts.items():
        kind, entry = able[name].kind(job), entries[name]
        want, how = apart or _by_another(able[name], job, able, firsts)
        off = error(kind, first.answer, want)
        entry |= {"error": off, "against": how, "memory": first.memory}
        if is_right(kind, off):
            right[name] = first
        else:
            below, above = ALLOWED[kind]
            reason = f"off by {off:.1e}, allowed are {-below:.0e} to {above:.0e}"
            entry |= {"status": FAILED, "reason": f"{reason} (judged by {how})"}
    return right


def _rivals(
    job: str, able: Mapping[str, Contender], firsts: Mapping[str, First]
) -> list[str]:
    """The contenders that answer in full, and not by a bound."""
    bounds = (UPPER, LOWER)
    return [name for name in firsts if able[name].kind(job) not in bounds]


def _is_judged_by_others(
    job: str, able: Mapping[str, Contender], firsts: Mapping[str, First]
) -> bool:
    """Whether there are answers both of ours and of others."""
    return len({able[name].is_ours for name in _rivals(job, able, firsts)}) == 2


def _by_another(
    one: Contender,
    job: str,
    able: Mapping[str, Contender],
    firsts: Mapping[str, First],
) -> tuple[np.ndarray, str]:
    """The answer of another contender: ours for others, theirs for ours."""
    name = next(
        name for name in _rivals(job, able, firsts) if able[name].is_ours != one.is_ours
    )
    return as_reference(able[name].kind(job), firsts[name].answer), name


def _time(
    right: Mapping[str, First],
    able: Mapping[str, Contender],
    job: str,
    task: Task,
    plan: Plan,
    entries: Mapping[str, Entry],
) -> None:
    runs: dict[str, Run] = {}
    for name, first in right.items():
        if first.seconds > plan.once_above:
            entries[name].update(_summary([first.seconds], 1))
        else:
            runs[name] = first.run or able[name].makers[job](task)
    for name, (samples, inner) in in_turn(runs, plan).items():
        entries[name].update(_summary(samples, inner))


def _summary(samples: list[float], inner: int) -> Entry:
    return {
        "status": TIMED,
        "median": statistics.median(samples),
        "least": min(samples),
        "most": max(samples),
        "repeats": len(samples),
        "inner": inner,
    }


def in_turn(runs: Mapping[str, Run], plan: Plan) -> dict[str, tuple[list[float], int]]:
    """Seconds of one run, for each contender: its samples, and the runs in each.

    Every round takes one sample from each contender that still has some to give.
    """
    seconds = {name: _sample(run, 1) for name, run in runs.items()}  # also warms up
    inner = {name: max(1, math.ceil(LEAST_SAMPLE / s)) for name, s in seconds.items()}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(plan.repeats):
        for name, run in runs.items():
            if turn >= plan.repeats_of(seconds[name]):
                continue
            time.sleep(PAUSE)
            if seconds[name] < SHORT:
                run()
            samples[name].append(_sample(run, inner[name]))
    return {name: (samples[name], inner[name]) for name in runs}


def _sample(run: Run, inner: int) -> float:
    start = time.perf_counter()
    for _ in range(inner):
        run()
    return (time.perf_counter() - start) / inner
