"""What the end of an attempt means."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.runtime.jobs.life import verdict
from fairway.runtime.jobs.records import JobState
from fairway.runtime.processes.local import said_no_memory
from fairway.runtime.processes.site import LOST, Outcome


def _judged(outcome: Outcome, *, asked: bool = False, log: Path | None = None) -> tuple[str, JobState, int]:
    if log is not None:
        outcome = outcome._replace(said_no_memory=said_no_memory(log.parent, len(outcome.codes)))
    found = verdict(outcome, asked=asked)
    return found.next, found.state, found.code


@pytest.mark.parametrize(
    ("outcome", "asked", "expected"),
    [
        (Outcome((0,)), False, ("done", JobState.COMPLETED, 0)),
        (Outcome((0, 0), "request"), True, ("done", JobState.COMPLETED, 0)),
        (Outcome((0,), "limit"), False, ("done", JobState.COMPLETED, 0)),
        (Outcome((1,)), False, ("retry", JobState.FAILED, 1)),
        (Outcome((0, 3, 143), "gang"), False, ("retry", JobState.FAILED, 3)),
        (Outcome((75,)), False, ("again", JobState.PREEMPTED, 75)),
        (Outcome((75, 75, 0)), False, ("again", JobState.PREEMPTED, 75)),
        (Outcome((75, 1), "gang"), False, ("retry", JobState.FAILED, 1)),
        (Outcome((143,), "request"), True, ("again", JobState.PREEMPTED, 143)),
        (Outcome((137,), "request", killed=True), True, ("again", JobState.PREEMPTED, 137)),
        (Outcome((1,), "request"), True, ("again", JobState.PREEMPTED, 1)),
        (Outcome((143,)), False, ("retry", JobState.FAILED, 143)),
        (Outcome((143,), "limit"), False, ("failed", JobState.TIMEOUT, 143)),
        (Outcome((75,), "limit"), False, ("failed", JobState.TIMEOUT, 75)),
        (Outcome((137,), memory_kills=1), False, ("retry", JobState.OUT_OF_MEMORY, 137)),
        (Outcome((137,), memory_kills=-1), False, ("retry", JobState.OUT_OF_MEMORY, 137)),
        (Outcome((137,), memory_kills=0), False, ("retry", JobState.FAILED, 137)),
        (Outcome((137,), "gang", killed=True, memory_kills=3), False, ("retry", JobState.FAILED, 137)),
        (Outcome((), "start", problem="'x': No such file"), False, ("retry", JobState.FAILED, 127)),
        (Outcome((), "start", problem="'x': No such file"), True, ("retry", JobState.FAILED, 127)),
        (LOST, False, ("lost", JobState.NODE_FAIL, -1)),
        (LOST, True, ("lost", JobState.NODE_FAIL, -1)),
    ],
)
def test_codes_and_causes(outcome: Outcome, asked: bool, expected: tuple[str, JobState, int]) -> None:
    assert _judged(outcome, asked=asked) == expected


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: out of memory",
        "MemoryError",
        "OSError: [Errno 12] Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "Resource exhausted: Out Of Memory",
    ],
)
def test_a_log_that_ends_for_want_of_memory_is_recognised(tmp_path: Path, line: str) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("epoch 1\n" * 5000 + line + "\nsome more\n")
    assert _judged(Outcome((1,)), log=log) == ("retry", JobState.OUT_OF_MEMORY, 1)


def test_memory_long_ago_does_not_count_and_a_cut_log_does(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("out of memory, going on with less\n" + "epoch\n" * 5000)
    assert _judged(Outcome((1,)), log=log)[1] is JobState.FAILED
    log.write_text("")
    (tmp_path / "rank-0.log.1").write_text("x\n" * 10_000 + "CUDA out of memory\n")
    assert _judged(Outcome((1,)), log=log)[1] is JobState.OUT_OF_MEMORY


def test_reasons_are_sentences_with_names() -> None:
    def why(outcome: Outcome, *, asked: bool = False) -> str:
        return verdict(outcome, asked=asked).why

    assert why(Outcome((139,))) == "was ended by signal 11 (SIGSEGV)"
    assert why(Outcome((127,))) == "exited with code 127 (its command was not found)"
    assert why(Outcome((137,), memory_kills=0)) == "was killed (signal 9) by somebody else than Fairway"
    assert why(Outcome((1,), "request"), asked=True) == "was stopped and left with code 1"
    assert why(Outcome((143,), "request"), asked=True) == "was stopped"
    assert "grace period" in why(Outcome((137,), "request", killed=True), asked=True)
