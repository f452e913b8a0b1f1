"""Live jobs that share GPUs: who computes beside whom, and what they are measured to keep of their speeds.

The *company* of a job are the other jobs that compute on its GPUs. When it changes, a speed that was measured before
says nothing any more. What two jobs do together is measured against their speeds alone, in the same place.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from fairway.core import columns
from fairway.core.arrays import Ints
from fairway.core.cluster import Cluster
from fairway.core.pairing import Factors
from fairway.core.state import State
from fairway.models.measured_profile import TIME_SLICING, MeasuredKind, MeasuredProfile, factors_of
from fairway.models.names import ProfileKey
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.store import JobStore

SETTLED = 8
"""How many reports a job must have made in its present company before its speed counts as measured."""
_NAMELESS = ProfileKey("", None, 0)


class Told(NamedTuple):
    """The speed that a job reports where it runs now, and its speed alone there, in its own steps per second."""

    speed: float
    alone: float | None


class Company:
    """Who computes beside whom. `profile` gets what is measured."""

    def __init__(self, store: JobStore, state: State, cluster: Cluster, profile: MeasuredProfile) -> None:
        self.profile = profile
        self._store = store
        self._state = state
        self._cluster = cluster
        self._known: dict[int, tuple[int, ...]] = {}
        self._reports: dict[int, int] = {}
        self._told: dict[int, Told] = {}

    def of(self, job: int) -> tuple[int, ...]:
        """The other jobs that compute on a job's GPUs now."""
        held = self._state.held_gpus
        if not self._state.guests or job not in held:
            return ()
        jobs, hosts = self._seats()
        row = self._state.table.position(job) - self._state.table.start
        host = int(hosts[row]) if hosts[row] >= 0 else job
        return self._beside(job, [host, *jobs[hosts == host].tolist()])

    def is_new(self, job: int) -> bool:
        """Whether a job has another company than at the last call of `changed`."""
        return bool(self._state.guests or self._known) and self.of(job) != self._known.get(job, ())

    def changed(self) -> list[int]:
        """The running jobs that have another company than at the last call."""
        if not self._state.guests and not self._known:
            return []
        held, groups = self._state.held_gpus, dict[int, list[int]]()
        jobs, hosts = self._seats()
        for row in (hosts >= 0).nonzero()[0].tolist():
            host = int(hosts[row])
            groups.setdefault(host, [host]).append(int(jobs[row]))
        now = {job: self._beside(job, group) for group in groups.values() for job in group}
        now = {job: beside for job, beside in now.items() if beside}
        before, self._known = self._known, now
        changed = [job for job in sorted(before.keys() | now.keys()) if before.get(job, ()) != now.get(job, ())]
        for job in changed:
            self.begin(job)
        return [job for job in changed if job in held and self._store[job].state is JobState.RUNNING]

    def begin(self, job: int) -> None:
        """A job starts, or its company changes: what it is measured to do begins again."""
        self._reports.pop(job, None)
        self._told.pop(job, None)

    def forget(self, job: int) -> None:
        """A job has ended."""
        self.begin(job)
        self._known.pop(job, None)

    def heard(self, job: int) -> None:
        """A job has made a report of its progress."""
        self._reports[job] = self._reports.get(job, 0) + 1

    def measured(self, record: JobRecord, told: Told, date_s: float) -> None:
        """A job is as fast as this where it runs. If that has settled, the profile gets it: alone or beside another."""
        job = record.number
        if self._reports.get(job, 0) < SETTLED:
            return
        self._told[job] = told
        key, gpu_type, beside = self.key(record), self._type(job), self._known.get(job, ())
        if not beside:
            if key is not None:
                self.profile.note_speed(gpu_type, key, told.speed * key.gpus, date_s)
            return
        other = self._partner(job)
        # Once for both of them: when the one that came later reports.
        if other is None or other > job or other not in self._told:
            return
        mate = self._store[other]
        mine = self._measured_beside(record, told, date_s)
        theirs = self._measured_beside(mate, self._told[other], date_s)
        if mine is not None and theirs is not None:
            self.profile.note_pair(gpu_type, mine[0], theirs[0], (mine[1], theirs[1]), date_s, TIME_SLICING)

    def factor(self, record: JobRecord, *, reports: bool) -> float:
        """What a job is expected to keep of its speed in its company, before it is measured there.

        A job that does not report its progress is never measured. It is taken to gain nothing: as if all took turns.
        """
        job = record.number
        beside = self.of(job)
        if not beside or any(self._throttle(one) < 1.0 for one in (job, *beside)):
            return 1.0
        if not reports:
            return 1.0 / (1 + len(beside))
        other = self._partner(job)
        keys = None if other is None else (self.key(record), self.key(self._store[other]))
        if keys is None or keys[0] is None or keys[1] is None:
            return 1.0
        known = self.profile.kept(self._type(job), keys[0], keys[1])
        return 1.0 if known is None else max(known[0], 1e-3)

    def alone(self, record: JobRecord) -> float | None:
        """The speed of a job's kind alone on the GPUs that it has, in steps per second."""
        key = self.key(record)
        speed = None if key is None else self.profile.speeds.get(MeasuredKind(self._type(record.number), key))
        return None if speed is None or key is None else speed.rate / key.gpus

    def key(self, record: JobRecord) -> ProfileKey | None:
        """The kind of a job in the profile; None for a job without a name. Reported batches are those of all GPUs."""
        request, held = record.request, self._state.held_gpus.get(record.number, ())
        name, gpus, batch = request.model or request.name, len(held) or request.gpus, record.progress.batch_size
        size = batch // gpus if batch is not None and batch >= gpus else request.batch_size
        return ProfileKey(name, size, gpus) if name else None

    def key_of(self, job: int) -> ProfileKey | None:
        """The kind of a job, by its number."""
        return self.key(self._store[job])

    def _seats(self) -> tuple[Ints, Ints]:
        """All active jobs, and the hosts of those that are guests."""
        table = self._state.table
        window = slice(table.start, table.start + table.n)
        return table.i[columns.JOB, window], table.i[columns.HOST, window]

    def _beside(self, job: int, group: list[int]) -> tuple[int, ...]:
        """The other jobs of a group that compute on a job's GPUs."""
        held = self._state.held_gpus
        mine = set(held.get(job, ()))
        beside = (one for one in sorted(group) if one != job and not mine.isdisjoint(held.get(one, ())))
        return tuple(one for one in beside if self._store[one].state is JobState.RUNNING)

    def _measured_beside(self, record: JobRecord, told: Told, date_s: float) -> tuple[ProfileKey, float] | None:
        """The kind of a job and what it keeps of its speed; None if it has no name or was never seen alone."""
        key, alone = self.key(record), told.alone or self.alone(record)
        if key is None or not alone:
            return None
        gpu_type = self._type(record.number)
        if MeasuredKind(gpu_type, key) not in self.profile.speeds:
            # It was alone for a short time only.
            self.profile.note_speed(gpu_type, key, alone * key.gpus, date_s)
        return key, told.speed / alone

    def _partner(self, job: int) -> int | None:
        """The only other job on a job's GPUs, if both have the same number of them and none is throttled."""
        beside, held = self.of(job), self._state.held_gpus
        if len(beside) != 1 or self.of(beside[0]) != (job,) or len(held[job]) != len(held[beside[0]]):
            return None
        return beside[0] if self._throttle(job) == self._throttle(beside[0]) == 1.0 else None

    def _throttle(self, job: int) -> float:
        table = self._state.table
        return float(table.f[columns.THROTTLE, table.position(job)])

    def _type(self, job: int) -> str:
        cluster = self._cluster
        node = cluster.node_of_gpu[self._state.held_gpus[job][0]]
        return cluster.types[cluster.node_type[node]].name


class LivePairing:
    """A `Pairing` of live jobs: what was measured of their kinds, and nothing else. Jobs without a name are alike."""

    def __init__(self, cluster: Cluster, profile: MeasuredProfile) -> None:
        self._types = tuple(gpu.name for gpu in cluster.types)
        self._profile = profile
        self._company: Company | None = None

    def look_in(self, company: Company) -> None:
        """Take the kinds of jobs from here."""
        self._company = company

    def kind(self, job: int) -> Hashable:
        """The kind of a job in the profile."""
        return self._key(job)

    def factors(self, a: int, b: int) -> Factors:
        """What two jobs were measured to keep on each GPU type; empty if they were not."""
        keys = self._key(a), self._key(b)
        if not self._profile.pairs or _NAMELESS in keys:
            return ()
        return factors_of(self._profile, self._types, *keys)

    def _key(self, job: int) -> ProfileKey:
        company = self._company
        return (None if company is None else company.key_of(job)) or _NAMELESS
