"""Why jobs wait: because they are not eligible, or because the policy gave others the GPUs.

The policy is asked about eligible jobs only. A job is not eligible while its owner holds it, before its time, while it
waits for other jobs to end or for other tasks of its array, and when this machine has no GPUs that can run it. It is
looked at again when that may have changed; `Timers` has the instants.

`Reasons` keeps the last decision. Lists use it, since they cannot ask the policy about every row. A row of the decision
becomes text when it is first read.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.decision import DETAILED, Decision, Reason, reason_text
from fairway.core.holders import usable_types
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.runtime.jobs.estimates import speeds_of
from fairway.runtime.jobs.records import JobRecord, JobState, family_of
from fairway.runtime.jobs.store import JobStore

GRANTED = "it is about to start"
NOT_ENDED = "it has not ended"
_NOBODY = -1


class Timers:
    """The instants ahead. They are set and handled in the scheduler's thread."""

    def __init__(self) -> None:
        self._instants: list[float] = []
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._calls = 0

    @property
    def next_s(self) -> float:
        """The next instant, or infinity."""
        return self._instants[0] if self._instants else math.inf

    def set(self, time_s: float) -> None:
        """Ask for a round at an instant in the future."""
        heapq.heappush(self._instants, time_s)

    def call_at(self, time_s: float, act: Callable[[float], None]) -> None:
        """Call a function at an instant, before the round of that instant."""
        self._calls += 1
        heapq.heappush(self._due, (time_s, self._calls, act))
        self.set(time_s)

    def ring(self, now_s: float) -> None:
        """Call the functions that are due by now."""
        while self._instants and self._instants[0] <= now_s:
            heapq.heappop(self._instants)
        while self._due and self._due[0][0] <= now_s:
            heapq.heappop(self._due)[2](now_s)


def begins_s(record: JobRecord, shift_s: float) -> float:
    """The date by the scheduler's clock before which a job is not started; the time of day is ahead by `shift_s`.

    A begin time is a time of day. It means the first start.
    """
    begin_s = None if record.attempts else record.request.begin_s
    return max(0.0 if begin_s is None else begin_s - shift_s, record.not_before_s or 0.0)


class Arrays:
    """Tasks by array. A task that may run keeps its place until it has ended, is held or is suspended."""

    def __init__(self) -> None:
        self._inside: dict[str, set[int]] = {}
        self._waiting: dict[str, dict[int, JobRecord]] = {}

    def refused(self, record: JobRecord) -> str:
        """Give a task a place and return ""; or return why it has to wait."""
        most, name = record.request.array_at_once, _array(record)
        if not most:
            return ""
        inside = self._inside.setdefault(name, set())
        if record.number in inside or len(inside) < most:
            inside.add(record.number)
            self._waiting.get(name, {}).pop(record.number, None)
            return ""
        self._waiting.setdefault(name, {})[record.number] = record
        return f"{most} tasks of its array run at a time" if most > 1 else "one task of its array runs at a time"

    def left(self, record: JobRecord) -> list[JobRecord]:
        """Take back the place of a task that may not run any more; returns the tasks that there is room for now."""
        most, name = record.request.array_at_once, _array(record)
        inside, waiting = self._inside.get(name), self._waiting.get(name, {})
        waiting.pop(record.number, None)
        if not most or inside is None or record.number not in inside:
            return []
        inside.discard(record.number)
        room = most - len(inside)
        found = [other for other, _ in zip(waiting.values(), range(room), strict=False)]
        if not inside and not found:
            del self._inside[name]
        return found


def _array(record: JobRecord) -> str:
    return record.id.partition("_")[0]


class Awaited:
    """A job or a whole array that other jobs wait for.

    `tasks` are those of its jobs that have not ended; `states` counts all of them by state. What has ended stays so. So
    each task is looked at until it has ended and never again, however many jobs wait.
    """

    def __init__(self, tasks: Sequence[JobRecord], states: Mapping[JobState, int]) -> None:
        self.waiting: set[int] = set()
        self._tasks = tasks
        self._exists = any(states.values())
        self._seen = 0
        self._completed = all(state is JobState.COMPLETED for state, count in states.items() if count and state.ended)

    def over(self) -> bool:
        """Whether all of it has ended."""
        while self._seen < len(self._tasks) and self._tasks[self._seen].state.ended:
            self._completed &= self._tasks[self._seen].state is JobState.COMPLETED
            self._seen += 1
        if self._seen < len(self._tasks):
            return False
        self._tasks, self._seen = (), 0
        return True

    def blocks(self, kind: str) -> str:
        """Why a dependency of this kind is not met; "" if it is."""
        if not self._exists:
            return "it does not exist any more"
        if not self.over():
            return NOT_ENDED
        if kind == "afterok" and not self._completed:
            return "it did not complete, so this one never starts"
        if kind == "afternotok" and self._completed:
            return "it completed, so this one never starts"
        return ""


class Dependencies:
    """What jobs wait for. A job waits for one thing at a time: the first of its dependencies that is not met."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._awaited: dict[str, Awaited] = {}
        self._met: dict[int, int] = {}

    def unmet(self, record: JobRecord) -> str:
        """Why the first dependency that is not met is not; "" if all are met."""
        depends = record.request.depends
        for at in range(self._met.get(record.number, 0), len(depends)):
            name = depends[at].job
            awaited = self._awaited_by(name)
            why = awaited.blocks(depends[at].kind)
            if why:
                self._met[record.number] = at
                awaited.waiting.add(record.number)
                return f"waits for job {name}: {why}"
        self._met.pop(record.number, None)
        return ""

    def freed(self, record: JobRecord) -> list[int]:
        """The jobs that waited for a job that has ended, or for its array if that was the last of its tasks."""
        self._forget(record)
        found: list[int] = []
        for name in {record.id, _array(record)}:
            awaited = self._awaited.get(name)
            if awaited is not None and awaited.over():
                found += sorted(awaited.waiting)
                awaited.waiting.clear()
        # How an array ended is kept, because its tasks are many. A single job is quickly looked at again.
        self._awaited.pop(record.id, None)
        return found

    def _awaited_by(self, name: str) -> Awaited:
        known = self._awaited.get(name)
        if known is not None:
            return known
        # A job that has not ended is in memory.
        tasks = [one for one in self._store.present(name) if not one.state.ended]
        made = Awaited(tasks, self._store.states(name))
        if tasks:
            self._awaited[name] = made
        return made

    def _forget(self, record: JobRecord) -> None:
        """A job has ended, and so waits for nothing."""
        at = self._met.pop(record.number, None)
        awaited = None if at is None else self._awaited.get(record.request.depends[at].job)
        if awaited is not None:
            awaited.waiting.discard(record.number)


class Eligibility:
    """Decides which jobs are eligible. `outside` has those that are not, by job number with the reason.

    `shift_s` is how much the time of day is ahead of the scheduler's own dates.
    """

    def __init__(self, store: JobStore, state: State, timers: Timers, origin_s: float) -> None:
        self.outside: dict[int, str] = {}
        self.shift_s = 0.0
        self._impossible: set[int] = set()
        self._store = store
        self._state = state
        self._origin_s = origin_s
        self._timers = timers
        self._arrays = Arrays()
        self._dependencies = Dependencies(store)

    def rule_out(self, jobs: set[int]) -> None:
        """Set the jobs that no GPUs of this machine can run. Another machine had accepted them."""
        self._impossible = jobs

    def grew(self, now_s: float) -> None:
        """There are more GPUs: those that could run nowhere are looked at again."""
        before = self._impossible
        requests = {job: self._store[job].request for job in before if job in self._state.specs}
        self._impossible = {job for job, one in requests.items() if not any(speeds_of(one, self._state.cluster))}
        for job in requests.keys() - self._impossible:
            self.look_at(self._store[job], now_s)

    def look_at(self, record: JobRecord, now_s: float, *, leaves: bool = False) -> None:
        """Decide whether a job is eligible. `leaves`: it is about to give up its GPUs, if it has any."""
        ended = record.state.ended
        why = "" if ended else self._why_outside(record, now_s)
        goes_on = not ended and not leaves and record.number in self._state.held_gpus
        next_in = self._arrays.left(record) if (why or ended) and not goes_on else []
        if goes_on:
            self._arrays.refused(record)
        why = why or ("" if ended else self._arrays.refused(record))
        if why:
            self.outside[record.number] = why
        else:
            self.outside.pop(record.number, None)
        for other in next_in:
            self.look_at(other, now_s)

    def is_early(self, record: JobRecord, now_s: float) -> bool:
        """Whether the time of a job has not come."""
        return begins_s(record, self.shift_s) - self._origin_s > now_s

    def note_off(self, record: JobRecord, now_s: float) -> None:
        """A job has ended or lost its GPUs: look again at the jobs that wait for that."""
        self.look_at(record, now_s, leaves=True)
        if record.state.ended:
            for number in self._dependencies.freed(record):
                self.look_at(self._store[number], now_s)

    def awaited(self) -> set[int]:
        """The jobs and arrays that jobs that have not ended depend on, by the number in their ids."""
        waiting = [record for record in self._store if record.request.depends and not record.state.ended]
        names = {one.job for record in waiting for one in record.request.depends}
        return {family_of(name) for name in names if name.partition("_")[0].isdecimal()}

    def _why_outside(self, record: JobRecord, now_s: float) -> str:
        if record.suspended:
            return "suspended by its owner; `fairway resume` lets it go on"
        if record.held:
            return "held by its owner; `fairway release` lets it run"
        if record.number in self._impossible:
            return "no GPUs that are here now can run it"
        if self.is_early(record, now_s):
            date_s = begins_s(record, self.shift_s)
            self._timers.call_at(date_s - self._origin_s, lambda at_s: self.look_at(record, at_s))
            if record.reason and date_s == record.not_before_s:
                return record.reason
            return time.strftime("not before %Y-%m-%d %H:%M:%S", time.localtime(date_s + self.shift_s))
        return self._dependencies.unmet(record)


class _Round(NamedTuple):
    """One decision and the snapshot it was about. The columns of a snapshot change later, so these are copies.

    `usable` are the GPU types that each row can use. `details` are what reasons say about GPUs of such types.
    """

    jobs: Ints
    gpus: Ints
    decision: Decision
    free: int
    ahead: str
    usable: Ints
    details: Mapping[tuple[int, int], str]


class Reasons:
    """The reasons of the last round. The scheduler's thread notes them; any thread may read."""

    def __init__(self) -> None:
        self._round: _Round | None = None
        self._told: tuple[_Round | None, Mapping[int, str]] = (None, {})

    def note(self, snapshot: Snapshot, decision: Decision) -> None:
        """Keep the decision of a round, with the snapshot that the policy saw."""
        free = decision.free(snapshot)
        ahead = snapshot.job_id(decision.ahead)
        usable = usable_types(snapshot)
        detailed = np.isin(decision.reasons, DETAILED)
        kinds = set(zip(decision.reasons[detailed].tolist(), usable[detailed].tolist(), strict=True))
        details = {(code, types): decision.detail(snapshot, Reason(code), types) for code, types in kinds}
        self._round = _Round(snapshot.jobs.copy(), snapshot.gpus.copy(), decision, free, ahead, usable, details)

    def forget(self, job: int) -> None:
        """Drop the reason of a job: it no longer applies, and there is no new decision yet."""
        if self._round is not None:
            self._round.jobs[self._round.jobs == job] = _NOBODY
            self._round = self._round._replace()

    def all(self) -> Mapping[int, str]:
        """Texts by job number, for the jobs of the last round. Callers may keep the mapping but not change it."""
        last, (told_of, told) = self._round, self._told
        if last is not None and told_of is not last:
            told = _Told(last)
            self._told = last, told
        return told


class _Told(Mapping[int, str]):
    """The texts of one round by job number, each made when it is first read."""

    def __init__(self, last: _Round) -> None:
        self._last = last
        self._rows = dict(zip(last.jobs.tolist(), range(len(last.jobs)), strict=True))
        self._made: dict[int, str] = {}
        self._known: dict[tuple[int, int, int], str] = {}

    def __getitem__(self, job: int) -> str:
        text = self._made.get(job)
        if text is None:
            text = self._made[job] = self._text(self._rows[job])
        return text

    def __contains__(self, job: object) -> bool:
        return job in self._rows

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _text(self, row: int) -> str:
        last = self._last
        if last.decision.gpus[row]:
            return GRANTED
        if row in last.decision.texts:
            return last.decision.texts[row]
        key = int(last.decision.reasons[row]), int(last.gpus[row]), int(last.usable[row])
        if key not in self._known:
            code, gpus, usable = key
            self._known[key] = reason_text(
                Reason(code), gpus, last.free, last.ahead, last.details.get((code, usable), "")
            )
        return self._known[key]
