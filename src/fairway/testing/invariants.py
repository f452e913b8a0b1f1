"""Laws that hold after every event and every round, whatever the policy and the engine do.

`Invariants` is an observer of the loop. If it also watches the engine (`invariants.watch(engine)`), it keeps a journal
of all events and actions, and can show that replaying the journal gives the same state.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairway.core.action import Action, SetQueues
from fairway.core.decision import Decision
from fairway.core.event import Event, JobCancelled, JobEvicted, JobFailed, JobFinished, JobSubmitted, RegimeEntered
from fairway.core.round import Engine
from fairway.core.sharing import WHOLE, thousandths
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import to_json
from fairway.core.state import State

ULPS = 1e-9
"""Relative slack for quantities that are computed in closed form from different anchors."""


class InvariantError(AssertionError):
    """A law of the scheduler was broken; the text says which one, by which job, and when."""


def state_digest(state: State) -> str:
    """A fingerprint of everything that a state knows; equal states have equal digests."""
    about = {
        "snapshot": to_json(state.snapshot().copy()) if state.active else [state.now_s, state.round],
        "held": sorted(state.held_gpus.items()),
        "down": sorted(state.occupancy.down),
        "tenants": [state.occupancy.tenants(gpu) for gpu in range(state.cluster.gpu_count)],
        "ids": sorted(state.ids.items()),
    }
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


class JournalEntry(NamedTuple):
    """One line of the journal: an event that came, or a round that was committed."""

    event: Event | None
    actions: tuple[Action, ...] = ()
    memory: Any = None


class Invariants:
    """Raises `InvariantError` as soon as a law is broken."""

    def __init__(self) -> None:
        self.journal: list[JournalEntry] = []
        self.checks = 0
        self._state: State | None = None
        self._watching = False
        self._seen: dict[int, tuple[float, float, float]] = {}
        self._left: set[int] = set()
        self._may_fall: set[int] = set()
        self._now_s = -math.inf

    def watch(self, engine: Engine) -> Engine:
        """The same engine, with all its reports written to the journal."""
        self._watching = True
        return _Watched(engine, self)

    def note(self, events: Sequence[Event]) -> None:
        """Note what an engine reported."""
        for event in events:
            self.journal.append(JournalEntry(event))
            if isinstance(event, JobEvicted):
                self._may_fall.add(event.job)
            elif isinstance(event, RegimeEntered) and not math.isnan(event.work):
                # The regime counts the work in other units, so the progress may be a smaller number.
                self._may_fall.add(event.job)
            elif isinstance(event, JobFinished | JobFailed | JobCancelled):
                self._left.add(event.job)
            elif isinstance(event, JobSubmitted) and event.job in self._left:
                raise InvariantError(f"job {event.job} is submitted again after it has left")

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Part of the observer's protocol: events were applied."""
        if not self._watching:
            self.note(events)
        self._state = state
        if state.now_s < self._now_s:
            raise InvariantError(f"time went back from {self._now_s} s to {state.now_s} s")
        self._now_s = state.now_s
        self.check_state(state)

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Part of the observer's protocol: a decision was checked and turned into actions."""
        self.journal.append(JournalEntry(None, tuple(actions), decision.memory))
        if not decision.wake_s > snapshot.now_s:
            raise InvariantError(f"the wake-up at {decision.wake_s} s is not after {snapshot.now_s} s")
        for row in (decision.gpus == 0).nonzero()[0].tolist():
            self._check_reason(snapshot, decision, row)
        changed = [action.job for action in actions if not isinstance(action, SetQueues)]
        if len(set(changed)) != len(changed):
            raise InvariantError(f"at {snapshot.now_s} s a job gets two actions: {list(actions)}")

    def _check_reason(self, snapshot: Snapshot, decision: Decision, row: int) -> None:
        name = snapshot.job_id(int(snapshot.jobs[row]))
        try:
            text = decision.reason(snapshot, row)
        except Exception as error:
            raise InvariantError(f"the reason why job {name!r} waits cannot be put into words: {error!r}") from error
        if decision.reasons[row] == 0 or not text:
            raise InvariantError(f"job {name!r} waits at {snapshot.now_s} s without a reason")

    def check_state(self, state: State) -> None:
        """All laws about a state at one instant."""
        self.checks += 1
        snapshot = state.snapshot()
        jobs = snapshot.jobs.tolist()
        if jobs != sorted(set(jobs)):
            raise InvariantError(f"the rows are not in the order of submission: {jobs}")
        for job in jobs:
            if job in self._left:
                raise InvariantError(f"job {job} has left and is still active")
        if state.held_gpus.keys() != set(snapshot.jobs[snapshot.running].tolist()):
            raise InvariantError(f"GPUs are held by {sorted(state.held_gpus)}, but the running jobs differ")
        if state.ids.keys() != set(jobs) or state.specs.keys() != set(jobs):
            raise InvariantError("the ids of the active jobs do not agree with the rows")
        self._check_gangs(state, snapshot)
        self._check_occupancy(state, snapshot)
        self._check_service(snapshot)

    def _check_gangs(self, state: State, snapshot: Snapshot) -> None:
        for row in snapshot.running_rows.tolist():
            job, gpus = int(snapshot.jobs[row]), snapshot.gpus_held(row)
            if len(gpus) != snapshot.held[row] or len(set(gpus)) != len(gpus):
                raise InvariantError(f"job {job} holds {snapshot.held[row]} GPUs but books {gpus}")
            if snapshot.facts(row).round is not None:
                self._check_tasks(state, snapshot, row)
                continue
            if not snapshot.gpus_min[row] <= len(gpus) <= snapshot.gpus_max[row]:
                limits = f"{snapshot.gpus_min[row]}..{snapshot.gpus_max[row]}"
                raise InvariantError(f"job {job} holds {len(gpus)} GPUs; it can use {limits}")
            kinds = {state.cluster.node_type[state.cluster.node_of_gpu[gpu]] for gpu in gpus}
            if kinds != {int(snapshot.gpu_type[row])}:
                raise InvariantError(f"job {job} is said to hold type {snapshot.gpu_type[row]}, but holds {kinds}")
            if snapshot.speeds[snapshot.gpu_type[row], row] <= 0:
                raise InvariantError(f"job {job} holds GPUs of a type on which it cannot run")

    def _check_tasks(self, state: State, snapshot: Snapshot, row: int) -> None:
        """The tasks of an open round run on the GPUs that the job holds, at most one for each GPU of its gang."""
        job, gpus, opened = int(snapshot.jobs[row]), snapshot.gpus_held(row), snapshot.facts(row).round
        if opened is None or sorted(task.gpu for task in opened.running) != sorted(gpus):
            raise InvariantError(f"job {job} holds GPUs {gpus}, but its open round is {opened}")
        if not len(gpus) <= opened.begun <= snapshot.gpus[row]:
            raise InvariantError(f"job {job} has begun {opened.begun} tasks of a round of {snapshot.gpus[row]}")
        for gpu in gpus:
            if snapshot.speeds[state.cluster.node_type[state.cluster.node_of_gpu[gpu]], row] <= 0:
                raise InvariantError(f"job {job} has a task on GPU {gpu}, where it cannot run")

    def _check_occupancy(self, state: State, snapshot: Snapshot) -> None:
        """No GPU is booked twice, except by guests and their host, and no share of it; the bit masks say the same."""
        asked = dict(zip(snapshot.jobs.tolist(), thousandths(snapshot.share).tolist(), strict=True))
        host = dict(zip(snapshot.jobs.tolist(), snapshot.host.tolist(), strict=True))
        tenants: dict[int, list[int]] = {}
        for job, gpus in state.held_gpus.items():
            for gpu in gpus:
                tenants.setdefault(gpu, []).append(job)
        for gpu, jobs in tenants.items():
            if len({host[job] if host[job] >= 0 else job for job in jobs}) > 1:
                raise InvariantError(f"at {state.now_s} s GPU {gpu} is booked by jobs {jobs}, which are no partners")
            if sum(asked[job] for job in jobs if asked[job] < WHOLE) > WHOLE:
                raise InvariantError(f"at {state.now_s} s jobs {jobs} have shares of more than GPU {gpu}")
            if state.cluster.node_of_gpu[gpu] in state.occupancy.down:
                raise InvariantError(f"at {state.now_s} s jobs {jobs} hold GPU {gpu} of a node that is down")
        for gpu in range(state.cluster.gpu_count):
            if state.occupancy.tenants(gpu) != len(tenants.get(gpu, ())):
                raise InvariantError(
                    f"GPU {gpu} has {state.occupancy.tenants(gpu)} tenants, held by {tenants.get(gpu)}"
                )
        free = np.zeros_like(snapshot.capacity)
        for gpu, node in enumerate(state.cluster.node_of_gpu):
            if gpu not in tenants and node not in state.occupancy.down:
                free[state.cluster.node_type[node]] += 1
        if free.tolist() != list(state.occupancy.free_by_type):
            raise InvariantError(f"{free.tolist()} GPUs are free; occupancy says {state.occupancy.free_by_type}")

    def _check_service(self, snapshot: Snapshot) -> None:
        """Attained service never falls; progress falls only when a job was evicted."""
        seen: dict[int, tuple[float, float, float]] = {}
        columns = (snapshot.attained_s, snapshot.attained_gpu_s, snapshot.progress)
        for row, job in enumerate(snapshot.jobs.tolist()):
            now = (float(columns[0][row]), float(columns[1][row]), float(columns[2][row]))
            before = self._seen.get(job, (0.0, 0.0, 0.0))
            for name, old, new in zip(("time", "GPU time", "progress"), before, now, strict=True):
                excused = name == "progress" and job in self._may_fall
                if new < old - ULPS * max(old, 1.0) and not excused:
                    raise InvariantError(f"{name} of job {job} fell from {old} to {new} at {snapshot.now_s} s")
            seen[job] = now
        self._seen = seen
        self._may_fall.clear()

    def check_replay(self) -> None:
        """Apply the journal to a fresh state and compare. Needs a watched engine, or events are missing."""
        state = self._state
        if state is None:
            return
        copy = replayed(state, self.journal)
        if state_digest(copy) != state_digest(state):
            raise InvariantError("replaying the journal gives another state")


def replayed(like: State, journal: Sequence[JournalEntry]) -> State:
    """A fresh state on the same cluster with a journal applied to it."""
    queues = like.snapshot().queues is not None
    state = State(like.cluster, min_run_s=like.min_run_s, seed=like.seed, runs_queues=queues)
    for entry in journal:
        if entry.event is not None:
            state.apply(entry.event)
        else:
            state.memory = entry.memory
            state.round += 1
            state.commit(entry.actions)
    return state


class _Watched:
    """An engine whose reports are noted in a journal before the loop sees them."""

    def __init__(self, engine: Engine, invariants: Invariants) -> None:
        self.engine = engine
        self.invariants = invariants

    def poll(self, until_s: float) -> Sequence[Event]:
        events = self.engine.poll(until_s)
        self.invariants.note(events)
        return events

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        events = self.engine.enact(now_s, actions)
        self.invariants.note(events)
        return events
