"""Live jobs that share GPUs: who computes beside whom, and what they are measured to keep of their speeds.

The *company* of a job are the other jobs that compute on its GPUs. When it changes, a speed that was measured before
says nothing any more. What two jobs do together is measured against their speeds alone, in the same place.
"""

from __future__ import annotations

from collections.abc import Hashable, Set
from typing import NamedTuple

from fairway.core import columns
from fairway.core.arrays import Ints
from fairway.core.pairing import Factors
from fairway.core.state import State
from fairway.models.measured_profile import TIME_SLICING, MeasuredKind, MeasuredProfile, factors_of
from fairway.models.names import ProfileKey
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.store import JobStore

SETTLED = 8
"""How many reports a job must have made in its present company before its speed counts as measured."""
_UNPAIRED = ProfileKey("", None, 0)


class _Alone(NamedTuple):
    """A speed alone, in steps per second, and for which kind of job it was measured."""

    kind: MeasuredKind
    speed: float


class Company:
    """Who computes beside whom. `profile` gets what is measured, as pairs that share GPUs by `sharing`.

    `in_steps` are the jobs that have reported how many steps they make in all.
    """

    def __init__(self, store: JobStore, state: State, profile: MeasuredProfile, in_steps: Set[int]) -> None:
        self.profile = profile
        self.sharing = TIME_SLICING
        self._in_steps = in_steps
        self._store = store
        self._state = state
        self._known: dict[int, tuple[int, ...]] = {}
        self._parted: set[int] = set()
        self._reports: dict[int, int] = {}
        self._speeds: dict[int, float] = {}
        self._alone: dict[int, _Alone] = {}

    @property
    def types(self) -> tuple[str, ...]:
        """The names of the GPU types."""
        return tuple(self._state.cluster.type_index)

    def of(self, job: int) -> tuple[int, ...]:
        """The other jobs that compute on a job's GPUs now."""
        return self._beside(job, self._group(job))

    def is_new(self, job: int) -> bool:
        """Whether a job has another company than at the last call of `changed`."""
        return bool(self._state.guests or self._known) and self.of(job) != self._known.get(job, ())

    def changed(self) -> list[int]:
        """The running jobs that have another company than at the last call."""
        if not self._state.guests and not self._known:
            return []
        groups = dict[int, list[int]]()
        jobs, hosts = self._seats()
        for row in (hosts >= 0).nonzero()[0].tolist():
            host = int(hosts[row])
            groups.setdefault(host, [host]).append(int(jobs[row]))
        now = {job: self._beside(job, group) for group in groups.values() for job in group}
        now = {job: beside for job, beside in now.items() if beside}
        before, self._known, self._parted = self._known, now, set()
        return self._noted([job for job in before.keys() | now.keys() if before.get(job, ()) != now.get(job, ())])

    def changed_around(self, job: int) -> list[int]:
        """The same for a job and those that are or were on its GPUs: nobody else can have another company."""
        if not self._state.guests and not self._known:
            return []
        around, self._parted = {job, *self._known.get(job, ()), *self._group(job), *self._parted}, set()
        now = {one: self.of(one) for one in around}
        changed = [one for one, beside in now.items() if self._known.get(one, ()) != beside]
        for one in changed:
            self._known[one] = now[one]
            if not now[one]:
                del self._known[one]
        return self._noted(changed)

    def _noted(self, changed: list[int]) -> list[int]:
        """Let the measurements of jobs begin again. Returns those that run."""
        for job in changed:
            self.begin(job)
        held = self._state.held_gpus
        return [job for job in sorted(changed) if job in held and self._store[job].state is JobState.RUNNING]

    def begin(self, job: int) -> None:
        """A job starts, or its company changes: what it is measured to do begins again."""
        self._reports.pop(job, None)
        self._speeds.pop(job, None)

    def forget(self, job: int) -> None:
        """A job has ended."""
        self.begin(job)
        self._parted.update(self._known.pop(job, ()))
        self._alone.pop(job, None)

    def heard(self, job: int) -> None:
        """A job has made a report of its progress."""
        self._reports[job] = self._reports.get(job, 0) + 1

    def measured(self, record: JobRecord, speed: float, date_s: float) -> bool:
        """A job is as fast as this where it runs. If that has settled, it counts: as its speed alone, or in a pair.

        Returns whether it has settled just now.
        """
        job = record.number
        if self._reports.get(job, 0) < SETTLED:
            return False
        new = job not in self._speeds
        self._speeds[job] = speed
        if self._known.get(job):
            self._note_pair(record, date_s)
            return new
        key, gpu_type = self.key(record), self._type(job)
        self._alone[job] = _Alone(MeasuredKind(gpu_type, key), speed)
        if key.model:
            self.profile.note_speed(gpu_type, key, speed * key.gpus, date_s)
        return new

    def _note_pair(self, record: JobRecord, date_s: float) -> None:
        """A job has reported beside others. Two that have settled are noted when the one that came later reports."""
        job, other = record.number, self._partner(record.number)
        if other is None or other > job or other not in self._speeds:
            return
        mate = self._store[other]
        mine, theirs, a, b = self.alone(record), self.alone(mate), self.key(record), self.key(mate)
        if mine and theirs and a.model and b.model:
            kept = self._speeds[job] / mine, self._speeds[other] / theirs
            self.profile.note_pair(self._type(job), a, b, kept, date_s, self.sharing)

    def expected(self, record: JobRecord) -> float | None:
        """What part of its speed alone a job is expected to have in its company; None if what it reports counts.

        If its speed alone was not measured, its speed beside others says nothing. It is then taken to gain nothing from
        them, as if all took turns. A throttled guest is not held against its host in this way.
        """
        job = record.number
        beside = self.of(job)
        if not beside or any(self._throttle(one) < 1.0 for one in (job, *beside)):
            return None
        if self.alone(record) is None:
            return 1.0 / (1 + len(beside))
        if record.progress.steps_per_s:
            return None
        other = self._partner(job)
        kept = None if other is None else self._kept(record, self._store[other])
        return None if kept is None else max(kept[0], 1e-3)

    def slowed(self, record: JobRecord) -> float:
        """What part of its speed alone a job reports to have in its company."""
        alone, speed = self.alone(record), record.progress.steps_per_s
        return speed / alone if alone and speed and self.of(record.number) else 1.0

    def alone(self, record: JobRecord) -> float | None:
        """The measured speed of a job, or of its kind, alone on the GPUs that it has; in steps per second."""
        kind, own = MeasuredKind(self._type(record.number), self.key(record)), self._alone.get(record.number)
        if own is not None and own.kind == kind:
            return own.speed
        speed = self.profile.speeds.get(kind)
        return None if speed is None else speed.rate / kind.key.gpus

    def is_seen(self, job: int) -> bool:
        """Whether a job has not run yet, or reports its steps and was measured alone, itself or others of its kind."""
        record = self._store[job]
        if not record.attempts or job in self._alone:
            return True
        return job in self._in_steps and job in self._state.held_gpus and self.alone(record) is not None

    def key(self, record: JobRecord) -> ProfileKey:
        """The kind of a job in the profile, without a model if it has no name. Reported batches are of all GPUs."""
        request, held = record.request, self._state.held_gpus.get(record.number, ())
        gpus, batch = len(held) or request.gpus, record.progress.batch_size
        size = batch // gpus if batch is not None and batch >= gpus else request.batch_size
        return ProfileKey(request.model or request.name, size, gpus)

    def key_of(self, job: int) -> ProfileKey:
        """The kind of a job, by its number."""
        return self.key(self._store[job])

    def _seats(self) -> tuple[Ints, Ints]:
        """All active jobs, and the hosts of those that are guests."""
        table = self._state.table
        window = slice(table.start, table.start + table.n)
        return table.i[columns.JOB, window], table.i[columns.HOST, window]

    def _group(self, job: int) -> list[int]:
        """The host of a job, or the job itself if it has none, and all guests of that one."""
        if not self._state.guests or job not in self._state.held_gpus:
            return []
        jobs, hosts = self._seats()
        row = self._state.table.position(job) - self._state.table.start
        host = int(hosts[row]) if hosts[row] >= 0 else job
        return [host, *jobs[hosts == host].tolist()]

    def _beside(self, job: int, group: list[int]) -> tuple[int, ...]:
        """The other jobs of a group that compute on a job's GPUs."""
        held = self._state.held_gpus
        mine = set(held.get(job, ()))
        beside = (one for one in sorted(group) if one != job and not mine.isdisjoint(held.get(one, ())))
        return tuple(one for one in beside if self._store[one].state is JobState.RUNNING)

    def _kept(self, record: JobRecord, other: JobRecord) -> tuple[float, float] | None:
        """What was measured of two jobs like these."""
        a, b = self.key(record), self.key(other)
        return self.profile.kept(self._type(record.number), a, b) if a.model and b.model else None

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
        cluster = self._state.cluster
        node = cluster.node_of_gpu[self._state.held_gpus[job][0]]
        return cluster.types[cluster.node_type[node]].name


class LivePairing:
    """The measurements of live jobs as a `Pairing`, and nothing else. All kinds that were in no pair are alike."""

    def __init__(self, profile: MeasuredProfile) -> None:
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
        if self._company is None or _UNPAIRED in keys:
            return ()
        return factors_of(self._profile, self._company.types, *keys)

    def is_seen(self, job: int) -> bool:
        """Whether a job has not run yet, or reports its steps and was measured alone."""
        return self._company is not None and self._company.is_seen(job)

    def _key(self, job: int) -> ProfileKey:
        if self._company is None or not self._profile.pairs:
            return _UNPAIRED
        key = self._company.key_of(job)
        return key if self._profile.is_paired(key) else _UNPAIRED
