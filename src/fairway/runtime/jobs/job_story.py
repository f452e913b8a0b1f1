"""What happened to a job, in sentences without their subject: "preempted for job 12 by tiresias: …".

Starts, the submission and the end of a job follow from its record. Everything else is noted when it happens and kept in
the journal: what policies, users and machines did to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fairway.core.action import Action, Launch, Move, Resize, Start, Suspend
from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.runtime.jobs.records import Attempt, JobNote, JobRecord, JobState
from fairway.runtime.jobs.store import JobStore

MOST_EVENTS = 200
THE_SCHEDULER = "the scheduler"
NOT_STARTED = "cannot be started"
_FEW = 3
"""How many jobs or nodes are named."""
_WORDS = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.TIMEOUT: "ended at its time limit",
    JobState.NODE_FAIL: "lost with its machine",
    JobState.OUT_OF_MEMORY: "ran out of memory",
}


def note_decision(
    store: JobStore, policy: str, snapshot: Snapshot, decision: Decision, actions: Sequence[Action], date_s: float
) -> None:
    """Note which running jobs a policy takes off their GPUs or gives others, for whom, and why."""
    if all(isinstance(action, Launch) for action in actions):
        return
    held, takes = snapshot.frame.held_gpus, dict[int, list[int]]()
    for action in actions:
        if isinstance(action, Start):
            for gpu in action.gpus:
                takes.setdefault(gpu, []).append(action.job)
    for action in actions:
        if not isinstance(action, Suspend | Resize | Move):
            continue
        record, had = store[action.job], held.get(action.job, ())
        if record.open_attempt is None:
            continue
        others = {job: None for gpu in had for job in takes.get(gpu, ()) if job != action.job}
        what = "resized" if isinstance(action, Resize) else "moved"
        text = f"{what}{_for(store, others)} by {policy}"
        if isinstance(action, Resize):
            text += f" from {_count(len(had))} to {len(action.gpus)}"
        elif isinstance(action, Move):
            text += f" to {gpus_text(snapshot.cluster, action.gpus)}"
        else:
            what = "suspended" if record.stays else "preempted"
            why = decision.reason(snapshot, int(snapshot.rows_of(action.job)))
            text = f"{what}{_for(store, others)} by {policy}{f': {why}' if why else ''}"
        store.note(record, date_s, what, text)


def _for(store: JobStore, jobs: Iterable[int]) -> str:
    ids = [store[job].id for job in jobs]
    more = f" and {len(ids) - _FEW} more" if len(ids) > _FEW else ""
    return f" for {'jobs' if len(ids) > 1 else 'job'} {', '.join(ids[:_FEW])}{more}" if ids else ""


def by_whom(by: str, record: JobRecord) -> str:
    """Who did something to a job, as the end of a sentence: its owner, an operator, or a part of the scheduler."""
    if not by:
        return ""
    if by == record.request.user:
        return " by its owner"
    return f" by {by}" if by.startswith(THE_SCHEDULER) else f" by the operator {by}"


def changes_text(before: Any, after: Any, names: Iterable[str]) -> str:
    """Which terms of a request were changed, from what to what."""
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in names]
    return ", ".join(f"{name} from {_value(one)} to {_value(two)}" for name, one, two in pairs if one != two)


def _value(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)


def gpus_text(cluster: Cluster, gpus: Sequence[int], nodes: Sequence[str] = ()) -> str:
    """GPUs as a reader knows them: by their numbers within their nodes, where these are few or in a row.

    `nodes` are those that they were on, if that is known. GPUs that are numbered otherwise by now are only counted.
    """
    real = [gpu for gpu in gpus if gpu >= 0]
    there = bool(real) and max(real) < cluster.gpu_count
    found = cluster.names_of(real) if there else []
    if not found or (nodes and set(nodes) != set(found)):
        return _count(len(gpus)) + _of(nodes)
    within: dict[str, list[int]] = {name: [] for name in found}
    for gpu in sorted(real):
        node = cluster.node_of_gpu[gpu]
        within[cluster.nodes[node].name].append(gpu - cluster.first_gpu[node])
    named = {name: _numbers(own) for name, own in within.items()}
    if len(found) > _FEW or not all(named.values()):
        return _count(len(real)) + _of(found)
    told = " and ".join(f"{numbers} of {name}" for name, numbers in named.items())
    return f"GPU{'s' if len(real) != 1 else ''} {told}"


def _numbers(numbers: Sequence[int]) -> str:
    """Numbers that are few or in a row; "" for others."""
    if len(numbers) <= _FEW:
        return ", ".join(map(str, numbers))
    return f"{numbers[0]} to {numbers[-1]}" if numbers[-1] - numbers[0] == len(numbers) - 1 else ""


def _of(nodes: Sequence[str]) -> str:
    left = len(nodes) - _FEW
    more = f" and {left} more node{'s' if left > 1 else ''}" if left > 0 else ""
    return f" of {', '.join(nodes[:_FEW])}{more}" if nodes else ""


def _count(gpus: int) -> str:
    return f"{gpus} GPU{'s' if gpus != 1 else ''}"


def story(
    record: JobRecord, notes: Sequence[JobNote], cluster: Cluster, *, shift_s: float, seen: bool
) -> list[dict[str, Any]]:
    """What happened to a job, in order: the first and the last of more than `MOST_EVENTS`.

    Dates are by the time of day, which is ahead by `shift_s`. `seen`: its command and directory are shown.
    """
    number = record.number
    known = [JobNote(number, record.submitted_s, "submitted", f"submitted by {record.request.user or 'nobody'}")]
    known += [note for attempt in list(record.attempts) for note in _start(number, attempt, cluster)]
    # In the order of their dates. At one date the submission comes first, and a start before what follows from it.
    known = sorted([*known, *notes], key=lambda note: note.date_s)
    if record.state.ended and not (
        record.state is JobState.CANCELLED and any(note.what == "cancelled" for note in notes)
    ):
        known.append(JobNote(number, record.ended_s or record.submitted_s, "ended", _end(record)))
    if len(known) > MOST_EVENTS:
        known = [*known[: MOST_EVENTS // 2], *known[-MOST_EVENTS // 2 :]]
    return [_told(note, shift_s, seen=seen) for note in known]


def _told(note: JobNote, shift_s: float, *, seen: bool) -> dict[str, Any]:
    return {"time_s": note.date_s + shift_s, "what": note.what, "text": note.text if seen else for_others(note.text)}


def for_others(text: str) -> str:
    """A reason without the command and the directory of the job: why it was not started may name them."""
    before, cannot, _ = text.partition(NOT_STARTED)
    return f"{before}{cannot}"


def _start(number: int, attempt: Attempt, cluster: Cluster) -> Iterable[JobNote]:
    if attempt.started_s is None:
        return
    again = f"started again (attempt {attempt.number})" if attempt.number > 1 else "started"
    saved = ", from its last checkpoint" if attempt.resume else ""
    text = f"{again} on {gpus_text(cluster, attempt.gpus, attempt.nodes)}{saved}"
    yield JobNote(number, attempt.started_s, "started", text)


def _end(record: JobRecord) -> str:
    word, reason = _WORDS.get(record.state, str(record.state).lower()), record.reason
    if record.state is JobState.COMPLETED:
        return f"{word} after {record.ran_s:,.0f} s of run time"
    return f"{word}: {reason}" if reason and reason != word else word
