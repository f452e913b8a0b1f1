"""Which jobs are eligible: the policy is asked about these. Each of the others has a reason.

A job is not eligible while its owner holds it, before its time, while it waits for other jobs to end or for other tasks
of its array, and when this machine has no GPUs that can run it. It is looked at again when that may have changed.
"""

from __future__ import annotations

import time

from fairway.core.state import State
from fairway.runtime.jobs.records import JobRecord, JobState, JobStore
from fairway.runtime.jobs.timers import Timers


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


class Eligibility:
    """Decides which jobs are eligible. `outside` has those that are not, by job number with the reason."""

    def __init__(self, store: JobStore, state: State, timers: Timers, origin_s: float) -> None:
        self.outside: dict[int, str] = {}
        self._impossible: set[int] = set()
        self._store = store
        self._state = state
        self._origin_s = origin_s
        self._timers = timers
        self._arrays = Arrays()
        self._dependants: dict[str, set[int]] = {}

    def rule_out(self, jobs: set[int]) -> None:
        """Set the jobs that no GPUs of this machine can run. Another machine had accepted them."""
        self._impossible = jobs

    def know(self, record: JobRecord) -> None:
        """Remember which jobs a job waits for."""
        for one in record.request.depends:
            self._dependants.setdefault(one.job, set()).add(record.number)

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

    def note_off(self, record: JobRecord, now_s: float) -> None:
        """A job has ended or lost its GPUs: look again at the jobs that wait for that."""
        self.look_at(record, now_s, leaves=True)
        if record.state.ended:
            # Other jobs may wait for this one, or for its whole array.
            for name in {record.id, record.id.partition("_")[0]}:
                for number in self._dependants.get(name, ()):
                    self.look_at(self._store[number], now_s)

    def _why_outside(self, record: JobRecord, now_s: float) -> str:
        if record.suspended:
            return "suspended by its owner; `fairway resume` lets it go on"
        if record.held:
            return "held by its owner; `fairway release` lets it run"
        if record.number in self._impossible:
            return "no GPUs that are here now can run it"
        request = record.request
        begins = max(request.begin_s or 0.0, record.not_before_s or 0.0) - self._origin_s
        if begins > now_s:
            self._timers.call_at(begins, lambda at_s: self.look_at(record, at_s))
            day_and_time = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._origin_s + begins))
            return record.reason or f"not before {day_and_time}"
        for one in request.depends:
            why = _blocked(one.kind, self._store.tasks(one.job))
            if why:
                return f"waits for job {one.job}: {why}"
        return ""


def _blocked(kind: str, others: list[JobRecord]) -> str:
    """Why a dependency is not met."""
    if not others:
        return "it does not exist any more"
    if any(not other.state.ended for other in others):
        return "it has not ended"
    good = all(other.state is JobState.COMPLETED for other in others)
    if kind == "afterok" and not good:
        return "it did not complete, so this one never starts"
    if kind == "afternotok" and good:
        return "it completed, so this one never starts"
    return ""
