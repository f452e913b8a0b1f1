"""The life of a job: what may happen to it, and every way from one state to another.

Happenings are in the past tense: what a site sees, and what users ask for. The live engine reports them, and
`live_jobs` translates each into events for the scheduler's state. Instructions are what the engine has to do then.
`verdict` says what the end of an attempt means.

A job waits (`PENDING`; `PREEMPTED` after it has run; `SUSPENDED` with its processes in memory or by its owner), runs,
and ends. Each edge of that diagram is one function here, named after its two ends. These functions only change the
job's record.

`python -m fairway.runtime.jobs.life` prints the table that is in `docs/ARCHITECTURE.md`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Any, Literal, NamedTuple, TypeAlias

from fairway.core.errors import EngineError
from fairway.core.event import Event, Woken
from fairway.models.log_progress import LogProgress
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.processes.ranks import CHECKPOINTED
from fairway.runtime.processes.site import REFUSED, NodeChange, NodesJoined, Outcome, Report

Command = Callable[[float], tuple[list[Event], Any]]
"""A user's command: called with the present instant, it changes records and returns events and the answer.

A command that would take long does a part of its work and answers `MORE`: it is called again, and other commands come
in between. One that cannot run yet changes nothing and answers `WAITS`.
"""


class NotDone(Enum):
    """The answers of a command that is to be called again."""

    MORE = "more"
    WAITS = "waits"


MORE, WAITS = NotDone.MORE, NotDone.WAITS

RECLAIMED = "taken off its GPUs, on which it did nothing; `fairway resume` lets it go on"
"""The reason of a job that was suspended for being idle."""
NODE_LOST = "node lost"
"""The cause of an attempt that has lost one of its nodes. It stands in the record before the attempt is over."""
_SIGNALLED = (128 + 9, 128 + 15)
_MEANINGS = {126: "its command is not executable", 127: "its command was not found"}

Next = Literal["done", "again", "retry", "lost", "refused", "failed"]

Edge = Callable[[JobRecord, float], None]
"""What a transition changes in a record, at a date by the scheduler's clock."""

ENDED = "ended"
"""All final states, drawn as one in the diagram."""

TRANSITIONS: dict[tuple[str, str], Edge] = {}


class AttemptStarted(NamedTuple):
    """A job's processes compute: they were started, or go on (`resumed`), maybe on other GPUs than before."""

    time_s: float
    job: int
    gpus: tuple[int, ...]
    resumed: bool


class RoomLacked(NamedTuple):
    """A job was granted GPUs whose memory is taken, and cannot be freed for a while."""

    time_s: float
    job: int
    why: str


class AttemptEnded(NamedTuple):
    """An attempt is over since the instant `ended_s`. `found`: it ended while no scheduler was running."""

    time_s: float
    job: int
    outcome: Outcome
    ended_s: float
    found: bool = False


class NodesChanged(NamedTuple):
    """Nodes of the site are up, do not answer, or are lost. Each is named once."""

    time_s: float
    changes: Sequence[NodeChange]


class ClusterGrew(NamedTuple):
    """The site has more nodes than before."""

    time_s: float
    joined: NodesJoined


class Reported(NamedTuple):
    """A job has reported on its training."""

    time_s: float
    job: int
    report: Report


class ReadOff(NamedTuple):
    """What the log of an attempt says has changed. `found` is None if it does not say any more how far the job is."""

    time_s: float
    job: int
    attempt: int
    found: LogProgress | None


class Asked(NamedTuple):
    """A user gave a command. The answer is sent when everything that it changed is on disk."""

    time_s: float
    command: Command
    answer: Future[Any]


class Looked(NamedTuple):
    """Some time has passed: those of these jobs that report nothing may have run longer than expected."""

    time_s: float
    jobs: Sequence[int]


class TimeOfDaySet(NamedTuple):
    """Somebody has set the time of day. It is now ahead of the scheduler's own dates by `shift_s`."""

    time_s: float
    shift_s: float


Happening: TypeAlias = (
    AttemptStarted
    | AttemptEnded
    | RoomLacked
    | NodesChanged
    | ClusterGrew
    | Reported
    | ReadOff
    | Asked
    | Looked
    | TimeOfDaySet
    | Woken
)


class Stop(NamedTuple):
    """Ask an attempt to stop. `hurry`: what it would save is not needed."""

    job: int
    hurry: bool = False


class Converge(NamedTuple):
    """Bring the attempt of a job to its present target."""

    job: int


class Settle(NamedTuple):
    """GPUs have become free: start the jobs that wait for them."""


Instruction: TypeAlias = Stop | Converge | Settle


class Verdict(NamedTuple):
    """What becomes of the job: it is done, it runs again (`again` at no cost, `retry` with one of its retries, `lost`
    because of the machine, `refused` because the machine could not start it), or it has failed with `state`."""

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
    if outcome.cause == REFUSED:
        return Verdict("refused", JobState.NODE_FAIL, -1, outcome.problem)
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


def _edge(edge: Edge) -> Edge:
    before, _, after = edge.__name__.partition("_to_")
    TRANSITIONS[before, after] = edge
    return edge


def move(record: JobRecord, to: JobState, date_s: float, why: str = "") -> None:
    """Take a job to another state, with the reason. `EngineError` if there is no such transition."""
    edge = TRANSITIONS.get((_place(record.state), _place(to)))
    if edge is None:
        raise EngineError(f"job {record.id} is {record.state}; it cannot become {to}")
    edge(record, date_s)
    record._state, record.reason = to, why


def _place(state: JobState) -> str:
    return ENDED if state.ended else state.lower()


def _computes(record: JobRecord, date_s: float) -> None:
    """Its run time counts from here on."""
    record.started_s = record.started_s or date_s
    record.count_until(date_s)
    record.since_s = date_s


@_edge
def pending_to_running(record: JobRecord, date_s: float) -> None:
    """Its processes compute."""
    _computes(record, date_s)


@_edge
def preempted_to_running(record: JobRecord, date_s: float) -> None:
    """It was started again."""
    _computes(record, date_s)


@_edge
def suspended_to_running(record: JobRecord, date_s: float) -> None:
    """It goes on where it stood still, or was started again."""
    _computes(record, date_s)


@_edge
def running_to_running(record: JobRecord, date_s: float) -> None:
    """It computes under other numbers of GPUs, or was found by a scheduler that has started again."""
    _computes(record, date_s)


@_edge
def running_to_suspended(record: JobRecord, date_s: float) -> None:
    """It gives up its GPUs and stays in memory, or its owner has suspended it."""
    record.count_until(date_s)


@_edge
def running_to_preempted(record: JobRecord, date_s: float) -> None:
    """It gives up its GPUs, is asked to stop, and runs again later or elsewhere."""
    record.count_until(date_s)


@_edge
def running_to_pending(record: JobRecord, date_s: float) -> None:
    """It was put back in the queue, failed and may try again, or never began."""
    record.count_until(date_s)


@_edge
def suspended_to_suspended(record: JobRecord, date_s: float) -> None:
    """Its processes have ended, and its owner still has it suspended."""
    record.count_until(date_s)


@_edge
def suspended_to_preempted(record: JobRecord, date_s: float) -> None:
    """Its processes were stopped while it stood still; it runs again from its checkpoint."""
    record.count_until(date_s)


@_edge
def suspended_to_pending(record: JobRecord, date_s: float) -> None:
    """Its processes failed while it stood still; it tries again."""
    record.count_until(date_s)


@_edge
def preempted_to_preempted(record: JobRecord, date_s: float) -> None:
    """It has stopped as it was asked to, or could not be started."""
    record.count_until(date_s)


@_edge
def preempted_to_suspended(record: JobRecord, date_s: float) -> None:
    """It loses GPUs that it was about to get, and stays in memory."""
    record.count_until(date_s)


@_edge
def preempted_to_pending(record: JobRecord, date_s: float) -> None:
    """It failed instead of stopping, and tries again; or it was put back in the queue."""
    record.count_until(date_s)


@_edge
def pending_to_pending(record: JobRecord, date_s: float) -> None:
    """It could not be started, or its last processes failed while it was in the queue."""
    record.count_until(date_s)


@_edge
def pending_to_preempted(record: JobRecord, date_s: float) -> None:
    """It is back in the queue, and its last processes have stopped; or it is taken off GPUs that it was promised."""
    record.count_until(date_s)


@_edge
def pending_to_suspended(record: JobRecord, date_s: float) -> None:
    """It is taken off GPUs that it was promised while its last processes stay in memory."""
    record.count_until(date_s)


@_edge
def pending_to_ended(record: JobRecord, date_s: float) -> None:
    """It was cancelled before it ran, or its last processes have ended it."""
    _ends(record, date_s)


@_edge
def running_to_ended(record: JobRecord, date_s: float) -> None:
    """It has done its work, has failed, or was cancelled."""
    _ends(record, date_s)


@_edge
def preempted_to_ended(record: JobRecord, date_s: float) -> None:
    """It was cancelled while it waited, or ended instead of stopping."""
    _ends(record, date_s)


@_edge
def suspended_to_ended(record: JobRecord, date_s: float) -> None:
    """It was cancelled while it stood still, or its processes have ended it."""
    _ends(record, date_s)


def _ends(record: JobRecord, date_s: float) -> None:
    record.count_until(date_s)
    record.ended_s = date_s


def table() -> str:
    """The diagram as a table in Markdown."""
    rows = [f"| {a} | {b} | `{edge.__name__}` | {edge.__doc__} |" for (a, b), edge in sorted(TRANSITIONS.items())]
    return "\n".join(["| from | to | function | when |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())
