"""What the end of an attempt means: a verdict from exit codes, signals and causes."""

from __future__ import annotations

import signal
from typing import Literal, NamedTuple

from fairway.runtime.jobs.records import JobState
from fairway.runtime.processes.site import Outcome

CHECKPOINTED = 75
"""The exit code of a job that has saved its state and wants to run again."""
RECLAIMED = "taken off its GPUs, on which it did nothing; `fairway resume` lets it go on"
"""The reason of a job that was suspended for being idle."""
_SIGNALLED = (128 + 9, 128 + 15)
_MEANINGS = {126: "its command is not executable", 127: "its command was not found"}

Next = Literal["done", "again", "retry", "lost", "failed"]


class Verdict(NamedTuple):
    """What becomes of the job: it is done, it runs again (`again` at no cost, `retry` with one of its retries, `lost`
    because of the machine), or it has failed with `state`."""

    next: Next
    state: JobState
    code: int
    why: str


def verdict(outcome: Outcome, *, asked: bool) -> Verdict:
    """Judge an attempt. `asked`: the scheduler asked it to stop and wants it to run again later."""
    codes = outcome.codes
    bad = [code for code in codes if code not in (0, CHECKPOINTED)]
    # When one rank fails, the others are stopped. The code of the rank that failed is the one that counts.
    worst = next((code for code in bad if code not in _SIGNALLED), bad[0] if bad else 0)
    if outcome.cause == "lost":
        return Verdict("lost", JobState.NODE_FAIL, -1, outcome.problem)
    if codes and not any(codes):
        return Verdict("done", JobState.COMPLETED, 0, "")
    if outcome.cause == "limit":
        return Verdict("failed", JobState.TIMEOUT, worst or CHECKPOINTED, "it ran longer than its time limit")
    stopped = [code for code in codes if code not in (0, CHECKPOINTED, *_SIGNALLED)]
    if CHECKPOINTED in codes and not stopped:
        return Verdict("again", JobState.PREEMPTED, CHECKPOINTED, "saved its state and stopped")
    if asked and codes:
        return Verdict("again", JobState.PREEMPTED, worst, _told_stop(outcome, worst))
    if outcome.problem:
        return Verdict("retry", JobState.FAILED, 127, f"cannot be started: {outcome.problem}")
    if _ran_out_of_memory(codes, outcome):
        return Verdict("retry", JobState.OUT_OF_MEMORY, worst, "ran out of memory")
    return Verdict("retry", JobState.FAILED, worst, _told(worst))


def _told_stop(outcome: Outcome, worst: int) -> str:
    """How it ended after it was asked to stop. Many programs exit with an error then, which is not their failure."""
    if outcome.killed:
        return "did not stop within its grace period and was killed"
    return "was stopped" if worst in _SIGNALLED else f"was stopped and left with code {worst}"


def _told(code: int) -> str:
    if code == 128 + 9:
        return "was killed (signal 9) by somebody else than Fairway"
    if code > 128:
        return f"was ended by signal {code - 128}{_named(code - 128)}"
    if code in _MEANINGS:
        return f"exited with code {code} ({_MEANINGS[code]})"
    return f"exited with code {code}"


def _named(signo: int) -> str:
    try:
        return f" ({signal.Signals(signo).name})"
    except ValueError:
        return ""


def _ran_out_of_memory(codes: tuple[int, ...], outcome: Outcome) -> bool:
    """Whether a rank said so, or was killed by the kernel, which does that when memory is short.

    If the kernel does not count its kills, a rank that was killed, but not by Fairway, counts as killed by the kernel.
    """
    if 128 + 9 in codes and not outcome.killed and outcome.cause in ("", "gang") and outcome.memory_kills:
        return True
    return outcome.said_no_memory
