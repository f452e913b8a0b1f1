"""What the end of an attempt means: exit codes, signals and the last lines of a log, as a verdict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

from fairway.runtime.processes import Outcome
from fairway.runtime.records import JobState

CHECKPOINTED = 75
"""The exit code with which a job says: my state is saved, run me again."""
_SIGNALLED = (128 + 9, 128 + 15)
_TAIL_BYTES = 8192
_OUT_OF_MEMORY = (b"out of memory", b"OutOfMemoryError", b"MemoryError", b"Cannot allocate memory")

Next = Literal["done", "again", "retry", "lost", "failed"]


class Verdict(NamedTuple):
    """What becomes of the job: it is done, runs again (`again` at no cost, `retry` using up one of its retries,
    `lost` because of the machine), or has failed with `state`."""

    next: Next
    state: JobState
    code: int
    why: str


def verdict(outcome: Outcome, *, asked: bool, logs: list[Path]) -> Verdict:
    """Judge an attempt. `asked`: the scheduler had asked it to stop and wants it to run again later."""
    codes = outcome.codes
    worst = next((code for code in codes if code not in (0, CHECKPOINTED)), 0)
    if outcome.cause == "lost":
        return Verdict("lost", JobState.NODE_FAIL, -1, outcome.problem)
    if codes and not any(codes):
        return Verdict("done", JobState.COMPLETED, 0, "")
    if outcome.cause == "limit":
        return Verdict("failed", JobState.TIMEOUT, worst or CHECKPOINTED, "it ran longer than its time limit")
    stopped = [code for code in codes if code not in (0, CHECKPOINTED, *_SIGNALLED)]
    if CHECKPOINTED in codes and not stopped:
        return Verdict("again", JobState.PREEMPTED, CHECKPOINTED, "saved its state and stopped")
    if asked and not stopped:
        killed = "did not stop within its grace period and was killed" if outcome.killed else "was stopped"
        return Verdict("again", JobState.PREEMPTED, worst, killed)
    if outcome.problem:
        return Verdict("retry", JobState.FAILED, 127, f"cannot be started: {outcome.problem}")
    if _ran_out_of_memory(codes, outcome, logs):
        return Verdict("retry", JobState.OUT_OF_MEMORY, worst, "ran out of memory")
    return Verdict("retry", JobState.FAILED, worst, _told(worst))


def _told(code: int) -> str:
    if code > 128:
        return f"was ended by signal {code - 128}"
    return f"exited with code {code}"


def _ran_out_of_memory(codes: tuple[int, ...], outcome: Outcome, logs: list[Path]) -> bool:
    """Whether a rank said so, or was killed by somebody who was not us: the kernel does that when memory is short."""
    if 128 + 9 in codes and not outcome.killed and outcome.cause in ("", "gang"):
        return True
    return any(any(mark in tail(log) for mark in _OUT_OF_MEMORY) for log in logs)


def tail(log: Path, most_bytes: int = _TAIL_BYTES) -> bytes:
    """The end of a file."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most_bytes))
            return file.read()
    except OSError:
        return b""
