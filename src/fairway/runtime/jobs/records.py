"""The records of jobs, for users and across restarts: the request, the state and the attempts of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from fairway.runtime.jobs.request import JobRequest


class JobState(StrEnum):
    """Where a job is in its life. The words are those that users of Slurm know."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    PREEMPTED = "PREEMPTED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self in _ENDED

    @property
    def waits(self) -> bool:
        """Whether the job holds no GPUs and may still get some."""
        return self in _WAITING


_WAITING = frozenset((JobState.PENDING, JobState.SUSPENDED, JobState.PREEMPTED))
_ENDED = frozenset(JobState) - _WAITING - {JobState.RUNNING}


@dataclass
class Attempt:
    """One start of a job's processes. Times are seconds since 1970.

    `start_s` is the time from its launch to its first report of a step, `stop_s` from the request to stop to its end.
    Each is None if it was not seen.
    """

    number: int
    gpus: list[int]
    token: str
    launched_s: float
    started_s: float | None = None
    ended_s: float | None = None
    codes: list[int] = field(default_factory=list)
    cause: str = ""
    resume: bool = False
    start_s: float | None = None
    stop_s: float | None = None


@dataclass
class Progress:
    """What a job has reported of its training, and when. `read_bytes` of its reports have been read."""

    step: float = 0.0
    steps: float | None = None
    epoch: float | None = None
    loss: float | None = None
    batch_size: int | None = None
    samples_per_s: float | None = None
    steps_per_s: float | None = None
    noise_scale: float | None = None
    checkpoint: str | None = None
    checkpoint_step: float = 0.0
    checkpoint_s: float | None = None
    reported_s: float | None = None
    reported_step: float = 0.0
    samples: float | None = None
    epochs: float | None = None
    batch_sizes: list[int] | None = None
    epoch_speeds: dict[str, float] = field(default_factory=dict)
    save_s: float | None = None
    speeds: dict[str, float] = field(default_factory=dict)
    read_bytes: int = 0


class StoredJob(NamedTuple):
    """A job's record as the journal stores it."""

    number: int
    id: str
    client_key: str | None
    ended: bool
    record: dict[str, Any]


@dataclass
class JobRecord:
    """One job. `number` is the scheduler's name for it, `id` the one that users see.

    `ran_s` and `gpu_s` count up to `since_s`. For a running job that is the date since which it has run without a
    break. Only `life` changes its state.
    """

    number: int
    id: str
    request: JobRequest
    submitted_s: float
    _state: JobState = JobState.PENDING
    reason: str = ""
    started_s: float | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    held: bool = False
    suspended: bool = False
    failures: int = 0
    preemptions: int = 0
    not_before_s: float | None = None
    ran_s: float = 0.0
    gpu_s: float = 0.0
    since_s: float | None = None
    attempts: list[Attempt] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)

    @property
    def state(self) -> JobState:
        """Where it is in its life."""
        return self._state

    @property
    def attempt(self) -> Attempt | None:
        """The latest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def stays(self) -> bool:
        """Whether it is suspended in place, rather than stopped, when it is taken off its GPUs."""
        return self.request.preempt == "suspend" and not self.state.ended

    def ran_until_s(self, date_s: float) -> float:
        """How long it has run by a date, in seconds."""
        return self.ran_s + (0.0 if self.since_s is None else max(date_s - self.since_s, 0.0))

    def count_until(self, date_s: float) -> None:
        """Add the time since `since_s`. At this date the job stops running, or starts a new stretch."""
        if self.since_s is not None and self.attempt is not None:
            passed_s = max(date_s - self.since_s, 0.0)
            self.ran_s += passed_s
            self.gpu_s += passed_s * len(self.attempt.gpus)
            self.since_s = None

    def plain(self) -> dict[str, Any]:
        """The record as JSON values."""
        out = {name: value for name, value in vars(self).items() if name not in _NESTED}
        out["state"] = self._state
        out["request"] = self.request.plain()
        # Not `asdict`, which copies every value: this runs for every change of every job.
        out["attempts"] = [dict(vars(attempt)) for attempt in self.attempts]
        out["progress"] = dict(vars(self.progress))
        return out

    def stored(self) -> StoredJob:
        """The record as the journal keeps it."""
        return StoredJob(self.number, self.id, _key_of(self.request), self.state.ended, self.plain())

    @staticmethod
    def from_plain(values: dict[str, Any]) -> JobRecord:
        """Read what `plain` gave."""
        known = dict(values)
        known["request"] = JobRequest.from_plain(known["request"])
        known["_state"] = JobState(known.pop("state"))
        # Journals of earlier versions have this field, which follows from the state.
        known.pop("cancelled", None)
        known["attempts"] = [Attempt(**attempt) for attempt in known["attempts"]]
        known["progress"] = Progress(**known["progress"])
        return JobRecord(**known)


_NESTED = frozenset(("request", "attempts", "progress", "_state"))


class JobStore:
    """All jobs by number and id, and which records have changed since they were last stored."""

    def __init__(self) -> None:
        self._by_number: dict[int, JobRecord] = {}
        self._by_id: dict[str, JobRecord] = {}
        self._by_array: dict[str, list[JobRecord]] = {}
        self._by_key: dict[str, int] = {}
        self._changed: dict[int, JobRecord] = {}
        self.next_number = 0
        self.next_id = 1

    def skip_ids(self, least: int) -> None:
        """Give new jobs ids from this one on."""
        self.next_id = max(self.next_id, least)

    def add(self, record: JobRecord) -> None:
        """Add a job."""
        self._by_number[record.number] = record
        self._by_id[record.id] = record
        array, _, task = record.id.partition("_")
        if task:
            self._by_array.setdefault(array, []).append(record)
        key = _key_of(record.request)
        if key is not None:
            self._by_key[key] = record.number
        self.next_number = max(self.next_number, record.number + 1)
        self.next_id = max(self.next_id, int(record.id.split("_")[0]) + 1)

    def touch(self, record: JobRecord) -> None:
        """Mark a record as changed: it has to be stored."""
        self._changed[record.number] = record

    def take_changed(self) -> list[JobRecord]:
        """Return the records that have to be stored now, and unmark them."""
        changed, self._changed = list(self._changed.values()), {}
        return changed

    def known(self, request: JobRequest) -> JobRecord | None:
        """The job that the same user has submitted before under the same key."""
        key = _key_of(request) if request.client_key else None
        number = None if key is None else self._by_key.get(key)
        return None if number is None else self._by_number[number]

    def __getitem__(self, number: int) -> JobRecord:
        return self._by_number[number]

    def __contains__(self, name: str) -> bool:
        """Whether there is a job or an array with this id."""
        return name in self._by_id or name in self._by_array

    def get(self, name: str) -> JobRecord | None:
        """A job by its id."""
        return self._by_id.get(name)

    def tasks(self, name: str) -> list[JobRecord]:
        """The job with this id, or all tasks of the array with this id."""
        found = self._by_id.get(name)
        if found is not None:
            return [found]
        return list(self._by_array.get(name, ()))

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(list(self._by_number.values()))

    def __len__(self) -> int:
        return len(self._by_number)


def _key_of(request: JobRequest) -> str | None:
    """The key that a user gave a request, made unique among all users."""
    return None if request.client_key is None else f"{request.user}\0{request.client_key}"
