"""The life of a job: its states, and every way from one to another.

A job waits (`PENDING`; `PREEMPTED` after it has run; `SUSPENDED` with its processes in memory or by its owner), runs,
and ends. Each edge of that diagram is one function here, named after its two ends. These functions only change the
job's record. What has to be done about a change is in the instructions of `live_jobs`.

`python -m fairway.runtime.jobs.life` prints the table that is in `docs/ARCHITECTURE.md`.
"""

from __future__ import annotations

from collections.abc import Callable

from fairway.core.errors import EngineError
from fairway.runtime.jobs.records import JobRecord, JobState

Edge = Callable[[JobRecord, float], None]
"""What a transition changes in a record, at a date (seconds since 1970)."""

ENDED = "ended"
"""All final states, drawn as one in the diagram."""

TRANSITIONS: dict[tuple[str, str], Edge] = {}


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
