"""One job on one case: check every answer, then time the contenders in turn."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import convspectra as cs

from .cases import Case, Suite, Task
from .checking import ALLOWED, affordable, as_reference, error, is_right, reference
from .contenders import BOUNDS, COMPUTED, PAPER, Contender, Run
from .memory import run_in_process

LEAST_SAMPLE = 0.02  # seconds; a shorter run is repeated within a sample
PAUSE = 0.02  # seconds before a sample, for the threads of the one before to settle
SHORT = 0.05  # seconds; a shorter run has an untimed one after the pause
GROWTH = 8  # of the time with twice the channels, which enter cubed
TIMED, FAILED, LEFT_OUT = "timed", "failed", "left out"

Entry = dict[str, Any]


@dataclass(slots=True, eq=False)
class Trial:
    """A contender on a job: its entry in the results, and its first run."""

    contender: Contender
    kind: str
    entry: Entry
    answer: Any = None
    seconds: float = 0.0
    run: Run | None = None  # None if the first run was in another process


def task_of(case: Case, job: str) -> Task:
    """The weight of a case; a clip is at half of the layer's norm."""
    weight = case.weight()
    if job != "clip":
        return Task(case, weight)
    return Task(case, weight, float(cs.operator_norm(weight, case.geometry).upper) / 2)


def measure(
    case: Case,
    job: str,
    contenders: Sequence[Contender],
    suite: Suite,
    known: Mapping[str, Entry],
    smaller: Mapping[str, Entry],
) -> list[Entry]:
    """An entry for each contender that has the job.

    `known` has the entries of the job "values" on the same case, by contender: where a
    norm is the largest of all values, and computing them took so long that it was done
    once, their time stands for it. `smaller` has the entries of the same job with half
    of the channels, which tell what to expect.
    """
    task, entries, answered = task_of(case, job), [], []
    for one in contenders:
        if job not in one.jobs:
            continue
        kind = one.kind(job)
        entry: Entry = {"contender": one.name, "kind": kind}
        entries.append(entry)
        values, half = known.get(one.name, {}), smaller.get(one.name, {})
        expected = GROWTH * half.get("median", half.get("expected", 0.0))
        needed = one.is_ours or one.name == PAPER  # all ratios are to one of these
        if reason := one.refuses(case):
            entry |= {"status": LEFT_OUT, "reason": reason}
        elif expected > suite.patience and not needed:
            reason = f"would take about {expected:.0f} s"
            entry |= {"status": LEFT_OUT, "reason": reason, "expected": expected}
        elif kind == COMPUTED and values.get("repeats") == 1:
            entry |= values | {"kind": COMPUTED, "reason": "time of all values"}
        else:
            trial = Trial(one, kind, entry)
            try:
                _run_first(trial, job, task, in_process=case in suite.memory)
            except Exception as wrong:  # whatever a contender may raise
                reason = f"{type(wrong).__name__}: {wrong}".splitlines()[0]
                entry |= {"status": FAILED, "reason": reason}
            else:
                answered.append(trial)
    _time(_judged(answered, job, task), job, task, suite)
    return entries


def _run_first(trial: Trial, job: str, task: Task, *, in_process: bool) -> None:
    one, memory = trial.contender, None
    if in_process:
        trial.answer, trial.seconds, memory = run_in_process(one.name, job, task)
    else:
        trial.run = one.prepare(job, task)
        start = time.perf_counter()
        trial.answer = trial.run()
        trial.seconds = time.perf_counter() - start
    trial.entry["memory"] = memory


def _judged(answered: Sequence[Trial], job: str, task: Task) -> list[Trial]:
    """The trials whose answers are right.

    Where a reference takes too long, ours is judged by the first of the others and the
    others by ours.
    """
    full = [trial for trial in answered if trial.kind not in BOUNDS]
    judges = {trial.contender.is_ours: trial for trial in reversed(full)}
    common = None
    if affordable(task.case) or len(judges) < 2:
        common = reference(task, job)
    right = []
    for trial in answered:
        if common:
            want, how = common
        else:
            judge = judges[not trial.contender.is_ours]
            want, how = as_reference(judge.kind, judge.answer), judge.contender.name
        off = error(trial.kind, trial.answer, want)
        trial.entry |= {"error": off, "against": how}
        if is_right(trial.kind, off):
            right.append(trial)
        else:
            below, above = ALLOWED[trial.kind]
            reason = f"off by {off:.1e}, allowed are {-below:.0e} to {above:.0e}"
            trial.entry |= {"status": FAILED, "reason": f"{reason} (judged by {how})"}
    return right


def _time(right: Sequence[Trial], job: str, task: Task, suite: Suite) -> None:
    runs: dict[str, Run] = {}
    samples: dict[str, tuple[list[float], int]] = {}
    for trial in right:
        name = trial.contender.name
        if trial.seconds > suite.once_above:
            samples[name] = [trial.seconds], 1
        else:
            runs[name] = trial.run or trial.contender.prepare(job, task)
    samples |= in_turn(runs, suite)
    for trial in right:
        seconds, inner = samples[trial.contender.name]
        trial.entry |= {
            "status": TIMED,
            "median": statistics.median(seconds),
            "least": min(seconds),
            "most": max(seconds),
            "repeats": len(seconds),
            "inner": inner,
        }


def in_turn(
    runs: Mapping[str, Run], suite: Suite
) -> dict[str, tuple[list[float], int]]:
    """Seconds of one run for each contender: its samples, and the runs in each.

    Every round takes one sample from each contender that still has some to give.
    """
    seconds = {name: _sample(run, 1) for name, run in runs.items()}  # also warms up
    inner = {name: max(1, math.ceil(LEAST_SAMPLE / s)) for name, s in seconds.items()}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(suite.repeats):
        for name, run in runs.items():
            if turn >= suite.repeats_for(seconds[name]):
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
