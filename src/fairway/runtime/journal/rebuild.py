"""The state after a restart: from the log, or from the records of jobs alone if the log cannot be used.

The log cannot be used if the GPUs have changed since (their number or their types), after a journal was salvaged, and
if the log contradicts itself. Jobs that have not ended are then queued again with the progress that they had saved.
Jobs whose processes run keep their GPUs if these are still there.

If all jobs were suspended with their scheduler, no job is charged for the time in between: in the state, jobs give up
their GPUs when they were suspended, and get the same ones again when they go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairway.core.action import Action, Launch
from fairway.core.cluster import Cluster
from fairway.core.errors import EngineError
from fairway.core.event import Event, JobCancelled, JobEvicted, JobFailed, JobFinished, Woken
from fairway.core.state import State
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.jobs.estimates import speeds_of, submitted
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.journal.database import Entry

STOOD_STILL = "stood_still_s"
"""The fact of the journal with the date since which all processes are suspended because no scheduler runs."""


def fingerprint(cluster: Cluster, devices: Sequence[str] | None) -> list[Any]:
    """What has to be the same for a log to be usable: the types and numbers of GPUs, and which devices they are."""
    nodes = [[node.gpu_type, node.gpus] for node in cluster.nodes]
    return [nodes, None if devices is None else list(devices)]


def replay(log: Iterable[Entry], state: State, records: Iterable[JobRecord], recall: Callable[[Event], None]) -> None:
    """Apply the log to a new state: events one by one, the actions of a round together.

    `EngineError` if it is not the log of these jobs.
    """
    actions: list[Action] = []
    round_number = 0
    for entry in log:
        if entry.round != round_number and actions:
            state.commit(actions)
            actions = []
        round_number = entry.round
        if entry.round:
            actions.append(entry.thing)
        else:
            recall(entry.thing)
            state.apply(entry.thing)
    if actions:
        state.commit(actions)
    state.settle_guests()
    for record in records:
        if not record.state.ended and record.number not in state.specs:
            raise EngineError(f"the log has no entry of job {record.id}")


def launches(
    running: Mapping[int, tuple[int, ...]],
    cluster: Cluster,
    speeds: Mapping[int, tuple[float, ...]],
    *,
    anywhere: bool,
) -> list[Action]:
    """The actions that book GPUs for jobs that run on them. `anywhere`: other GPUs will do as well.

    `speeds` are by GPU type, 0 where a job cannot run: its gang may be larger than what is left of a type.
    """
    actions: list[Action] = []
    free = set(range(cluster.gpu_count))
    for job, held in running.items():
        gpus = held
        if anywhere and not free.issuperset(held):
            gpus = tuple(sorted(free)[: len(held)])
        kinds = {cluster.node_type[cluster.node_of_gpu[gpu]] for gpu in gpus if gpu in free}
        if len(gpus) == len(held) and free.issuperset(gpus) and len(kinds) == 1 and speeds[job][min(kinds)]:
            free.difference_update(gpus)
            actions.append(Launch(job, gpus, kinds.pop()))
    return actions


def without_pause(
    state: State, since_s: float, events: Sequence[Event], note: Callable[[list[Event]], None]
) -> list[Action]:
    """Take all jobs off their GPUs at the instant `since_s` at which all were suspended. Returns the actions that put
    them back.

    `events` are what has happened since the last scheduler, in order. `note` adds events to the state and the log. A
    job that has ended in the meantime, or whose host has, is not put back.
    """
    since_s = max(since_s, state.now_s)
    note([event for event in events if event.time_s <= since_s])
    state.apply(Woken(since_s))
    snapshot = state.snapshot()
    host, jobs = snapshot.host.tolist(), snapshot.jobs.tolist()
    kinds, throttle, progress = snapshot.gpu_type.tolist(), snapshot.throttle.tolist(), snapshot.progress.tolist()
    # Hosts first: guests are put on the GPUs of their hosts.
    rows = sorted(snapshot.running_rows.tolist(), key=lambda row: host[row] >= 0)
    back = [Launch(jobs[row], snapshot.gpus_held(row), kinds[row], host[row], throttle[row]) for row in rows]
    why = "suspended with its scheduler"
    note([JobEvicted(since_s, jobs[row], progress[row], why) for row in reversed(rows)])
    later = [event for event in events if event.time_s > since_s]
    note(later)
    ended = {event.job for event in later if isinstance(event, JobEvicted | JobFinished | JobFailed | JobCancelled)}
    return [one for one in back if one.job not in ended and one.host not in ended]


def queued_anew(
    records: Iterable[JobRecord],
    cluster: Cluster,
    seen: Observations,
    clock: Clock,
) -> tuple[list[Event], set[int]]:
    """Events that add all jobs that have not ended, and the numbers of those that cannot run here any more."""
    now_s, events, impossible = clock.now_s(), list[Event](), set[int]()
    for record in records:
        if record.state.ended:
            continue
        restart_s = seen.restarts.expected_s(record.request, record.attempts)
        event = submitted(record, cluster, seen.times.expected_s(record.request), now_s, restart_s)
        since_s = max(min(record.submitted_s - clock.origin_s, now_s), 0.0)
        if not any(speeds_of(record.request, cluster)):
            # The state needs a speed for every job. This one is not eligible until the machine can run it.
            impossible.add(record.number)
            event = event._replace(speeds=(1.0,) * len(cluster.types), prospect=None)
        # The deadline counts from the submission, not from now.
        deadline_s = None if record.request.deadline_s is None else since_s + record.request.deadline_s
        events.append(event._replace(since_s=since_s, spec=replace(event.spec, deadline_s=deadline_s)))
        progress = seen.saved(record)
        if progress > 0:
            events.append(JobEvicted(now_s, record.number, progress, "the scheduler's state was rebuilt"))
    return events, impossible


def renumber(records: Iterable[JobRecord], before: Sequence[str] | None, devices: Sequence[str] | None) -> set[int]:
    """Give the GPUs of attempts that may still run their present numbers. Returns the jobs whose GPUs are gone."""
    if before is None or devices is None or list(before) == list(devices):
        return set()
    at = {name: number for number, name in enumerate(devices)}
    moved = [at.get(name, -1) for name in before]
    gone: set[int] = set()
    for record in records:
        attempt = record.attempt
        if attempt is not None and attempt.ended_s is None:
            attempt.gpus = [moved[gpu] if 0 <= gpu < len(moved) else -1 for gpu in attempt.gpus]
            if -1 in attempt.gpus:
                gone.add(record.number)
    return gone
