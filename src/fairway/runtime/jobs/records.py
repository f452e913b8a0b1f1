"""The records of jobs, for users and across restarts: the request, the state and the attempts of each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.shared_environment import NO_VARIABLES, SharedEnvironment, shared

MOST_SPANS = 64
"""How many times in which it computed are kept of an attempt, the latest ones."""
TOGETHER_S = 0.002
"""Spans of an attempt with less time between them are one."""


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
    """One start of a job's processes. Times are dates by the scheduler's clock.

    `ran_s` is how long it has run, as far as that is counted; None if an earlier version started it. `start_s` is the
    time from its launch to its first report of a step, `stop_s` from the request to stop to its end. Each is None if it
    was not seen. `nodes` are the names of its machines, in the order of its ranks; empty if an earlier version started
    it. `spans` has the latest times in which it computed, as [from, to], or [from, to, GPUs, host] where these were
    others than now; None if an earlier version started it. `host` is the job whose GPUs it shares.
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
    ran_s: float | None = None
    nodes: list[str] = field(default_factory=list)
    spans: list[list[Any]] | None = None
    host: str | None = None

    def shown(self, shift_s: float) -> dict[str, Any]:
        """As every user may see it: without the token that marks its processes, and with dates by the time of day,
        which are `shift_s` later."""
        out = {name: value for name, value in vars(self).items() if name not in _INSIDE}
        return out | {name: later(out[name], shift_s) for name in ("launched_s", "started_s", "ended_s")}

    def take(self, gpus: list[int], host: str | None) -> None:
        """It computes on these GPUs from now on, with this host. Earlier spans keep theirs."""
        if (gpus, host) != (self.gpus, self.host):
            for span in self.spans or ():
                if len(span) == 2:
                    span += [self.gpus, self.host]
            self.gpus, self.host = gpus, host

    def add_span(self, since_s: float | None, passed_s: float) -> None:
        """It has computed for so long, since a date if that was seen. Less than nothing: too much was added before.

        Where its end is known, no span goes beyond it: a start that was seen late was earlier.
        """
        if self.spans is None:
            return
        if passed_s <= 0:
            self._shorten(-passed_s)
            return
        from_s = self.launched_s if since_s is None else since_s
        to_s = from_s + passed_s
        if self.ended_s is not None and (since_s is None or to_s > self.ended_s):
            to_s = self.ended_s
            from_s = max(to_s - passed_s, self.spans[-1][1] if self.spans else self.launched_s)
        from_s, to_s = round(from_s, 3), round(to_s, 3)
        last = self.spans[-1] if self.spans else None
        if last is not None and len(last) == 2 and from_s - last[1] <= TOGETHER_S:
            last[1] = max(to_s, last[1])
        elif to_s > from_s:
            self.spans.append([from_s, to_s])
        lacking_s = passed_s - (to_s - from_s)
        if lacking_s > TOGETHER_S and 0 < len(self.spans) < MOST_SPANS:
            # Its very start was seen late. Nobody else had its GPUs since it was launched.
            self.spans[0][0] = round(max(self.spans[0][0] - lacking_s, self.launched_s), 3)
        del self.spans[:-MOST_SPANS]

    def _shorten(self, by_s: float) -> None:
        """Take seconds off the end of the latest spans."""
        while self.spans and by_s > 0:
            last = self.spans[-1]
            off_s = min(by_s, last[1] - last[0])
            last[1], by_s = round(last[1] - off_s, 3), by_s - off_s
            if last[1] > last[0]:
                return
            self.spans.pop()


@dataclass
class Progress:
    """What a job has reported of its training, or what was read off its log. Dates are by the scheduler's clock.

    `read_bytes` of its reports have been read. `source` is "" if it has reported itself, else from where its progress
    is known, as "log (tqdm)". Then its steps are counted in `unit`.
    """

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
    batch_limits: list[int] | None = None
    timing: list[float] | None = None
    epoch_speeds: dict[str, float] = field(default_factory=dict)
    save_s: float | None = None
    speeds: dict[str, float] = field(default_factory=dict)
    read_bytes: int = 0
    source: str = ""
    unit: str = "step"

    @property
    def is_own(self) -> bool:
        """Whether the job itself has told its progress."""
        steps = self.step > 0 or self.reported_step > 0
        return not self.source and (steps or self.reported_s is not None or self.steps_per_s is not None)

    def complete(self, steps: float | None) -> None:
        """The job has done its work: all of it, whatever it reported last. `steps`: how many its owner announced."""
        self.step = max(self.step, self.steps or steps or 0.0)

    def fall_back(self) -> None:
        """The job starts again from its last checkpoint, or from the beginning."""
        self.step = self.checkpoint_step

    def shown(self, shift_s: float) -> dict[str, Any]:
        """As users see it, with dates by the time of day, which are `shift_s` later."""
        dates = {"checkpoint_s": self.checkpoint_s, "reported_s": self.reported_s}
        return asdict(self) | {name: later(date_s, shift_s) for name, date_s in dates.items()}


@dataclass
class Promise:
    """A start or finish that was told to somebody. Times are dates by the scheduler's clock.

    It was forecast at `point_s`, and `sure` to lie between `low_s` and `high_s`. `basis` is what the run time was known
    from, and `scored_as` the class of promises that gave the interval. A `rough` promise was told without its interval.
    `decided_s` is when it was known what happened, or that the promise is void, and `actual_s` what happened.
    """

    kind: str
    channel: str
    told_s: float
    point_s: float
    low_s: float
    high_s: float
    policy: str
    basis: str = ""
    scored_as: str = ""
    sure: float = 0.8
    rough: bool = False
    decided_s: float | None = None
    actual_s: float | None = None


def later(date_s: float | None, by_s: float) -> float | None:
    """A date that is later by some seconds, if there is one."""
    return None if date_s is None else date_s + by_s


class JobNote(NamedTuple):
    """Something that happened to a job at a date by the scheduler's clock, in a word and as a sentence."""

    job: int
    date_s: float
    what: str
    text: str


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

    Times are dates by the scheduler's clock: they do not change when the time of day is set. `ran_s` and `gpu_s` count
    up to `since_s`. For a running job that is the date since which it has run without a break. `vain_saves` counts how
    often in a row it has ended by itself to run again, without having got any further than `saved_step`. Only `life`
    changes its state.
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
    vain_saves: int = 0
    saved_step: float = 0.0
    not_before_s: float | None = None
    ran_s: float = 0.0
    gpu_s: float = 0.0
    since_s: float | None = None
    attempts: list[Attempt] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    promises: list[Promise] = field(default_factory=list)

    @property
    def state(self) -> JobState:
        """Where it is in its life."""
        return self._state

    @property
    def attempt(self) -> Attempt | None:
        """The latest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def open_attempt(self) -> Attempt | None:
        """The latest attempt, if its processes may still run."""
        attempt = self.attempt
        return attempt if attempt is not None and attempt.ended_s is None else None

    @property
    def settled(self) -> bool:
        """Whether it has ended and its processes are gone: it never changes again."""
        return self.state.ended and self.open_attempt is None

    @property
    def saves_when_asked(self) -> bool:
        """Whether it is asked to save its state when it is taken off its GPUs, and is trusted to do so."""
        return self.request.preempt == "checkpoint"

    @property
    def loses_its_work(self) -> bool:
        """Whether it starts from the beginning if it is stopped now."""
        running = self.state is JobState.RUNNING
        return running and not self.saves_when_asked and self.progress.checkpoint is None

    @property
    def stays(self) -> bool:
        """Whether it is suspended in place, rather than stopped, when it is taken off its GPUs."""
        return self.request.preempt == "suspend" and not self.state.ended

    def ranks_of(self, attempt: Attempt) -> int:
        """How many processes with a log of their own an attempt has. A Slurm job has one, its script, which starts the
        others."""
        per_node = 1 if self.request.slurm_env else max(len(attempt.nodes), 1)
        return per_node if self.request.processes == "one" else len(attempt.gpus)

    def ran_until_s(self, date_s: float) -> float:
        """How long it has run by a date, in seconds."""
        return self.ran_s + (0.0 if self.since_s is None else max(date_s - self.since_s, 0.0))

    def count_until(self, date_s: float) -> None:
        """Add the time since `since_s`. At this date the job stops running, or starts a new stretch."""
        if self.since_s is not None and self.attempt is not None:
            self._count(self.attempt, max(date_s - self.since_s, 0.0))

    def count_attempt(self, ran_s: float) -> None:
        """Its latest attempt has ended and ran this long in all, as its keeper says: count what is missing or too much.

        Nothing is missing if it did not count as running any more: the time that it took to stop is not counted. A
        scheduler that was killed may not know of its start. Too much is counted if the machine slept meanwhile.
        """
        attempt = self.attempt
        if attempt is None or attempt.ran_s is None:
            return
        missing_s = ran_s - attempt.ran_s
        ran_to_the_end = self.since_s is not None or attempt.started_s is None
        self._count(attempt, missing_s if ran_to_the_end else min(missing_s, 0.0))

    def _count(self, attempt: Attempt, passed_s: float) -> None:
        attempt.add_span(self.since_s, passed_s)
        self.ran_s += passed_s
        self.gpu_s += passed_s * len(attempt.gpus) * self.request.gpu_share
        self.since_s = None
        if attempt.ran_s is not None:
            attempt.ran_s += passed_s

    def plain(self) -> dict[str, Any]:
        """The record as JSON values."""
        out = {name: value for name, value in vars(self).items() if name not in _NESTED}
        out["state"] = self._state
        out["request"] = self.request.plain()
        # Not `asdict`, which copies every value: this runs for every change of every job.
        out["attempts"] = [dict(vars(attempt)) for attempt in self.attempts]
        out["progress"] = dict(vars(self.progress))
        if self.promises:
            out["promises"] = [dict(vars(promise)) for promise in self.promises]
        return out

    def stored(self) -> StoredJob:
        """The record as the journal keeps it."""
        return StoredJob(self.number, self.id, key_of(self.request), self.state.ended, self.plain())

    @staticmethod
    def from_plain(values: dict[str, Any]) -> JobRecord:
        """Read what `plain` gave."""
        known = dict(values)
        asked = dict(known["request"])
        env = asked.get("env", NO_VARIABLES)
        if isinstance(env, SharedEnvironment):
            # It was checked when it was first read, and stays one object for all jobs that have it.
            asked.pop("env", None)
        request = known["request"] = JobRequest.from_plain(asked)
        # Nobody else has this request yet. To make another one would take as long as to check it.
        object.__setattr__(request, "env", env if isinstance(env, SharedEnvironment) else shared(request.env))
        known["_state"] = JobState(known.pop("state"))
        # Journals of earlier versions have this field, which follows from the state.
        known.pop("cancelled", None)
        known["attempts"] = [Attempt(**attempt) for attempt in known["attempts"]]
        known["progress"] = Progress(**known["progress"])
        known["promises"] = [Promise(**promise) for promise in known.get("promises", ())]
        return JobRecord(**known)


_INSIDE = frozenset(("token", "spans", "host"))
_NESTED = frozenset(("request", "attempts", "progress", "promises", "_state"))


def key_of(request: JobRequest) -> str | None:
    """The key that a user gave a request, made unique among all users."""
    return None if request.client_key is None else f"{request.user}\0{request.client_key}"


def family_of(name: str) -> int:
    """The number in the id of a job. All tasks of an array have the same."""
    return int(name.partition("_")[0])


def is_array(name: str) -> bool:
    """Whether an id can be that of an array."""
    return name.isascii() and name.isdecimal()
