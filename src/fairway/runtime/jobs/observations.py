"""What is observed of live jobs, as events for the state: their progress, their speed and what they report.

The work of a job is counted in seconds of run time until it reports how many steps there are, and then in steps.
Speeds are kept by GPU type and number of GPUs, so that a speed measured in one place gives an estimate for others.
These are speeds alone: what jobs do beside others is in `company`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fairway.core import columns
from fairway.core.batch import BatchLimits, Timing
from fairway.core.cluster import Cluster
from fairway.core.event import Event, JobMeasured, JobSubmitted, RateChanged, RegimeEntered, RestartMeasured
from fairway.core.facts import NO_FACTS
from fairway.core.state import State
from fairway.models.log_progress import LogProgress
from fairway.runtime.jobs.company import Company
from fairway.runtime.jobs.estimates import (
    RESTART_S,
    RestartCosts,
    announced,
    assumed,
    epochs_done,
    gang_factor,
    place_name,
    speeds_of,
)
from fairway.runtime.jobs.job_course import JobCourses
from fairway.runtime.jobs.kept_profile import KeptProfile
from fairway.runtime.jobs.records import JobRecord, JobState, Progress
from fairway.runtime.jobs.run_times import LEARNT, RunTimeEstimate, RunTimes, kinds_of
from fairway.runtime.jobs.store import JobStore
from fairway.runtime.jobs.type_speeds import TypeSpeeds, differs
from fairway.runtime.processes.site import Report

LEAST_CHANGE = 0.05
"""A step time that differs by less from the last one in the same place is no news."""
RATE_EVERY_S = 5.0
"""How often the measured speed of a job becomes an event."""
EXPECTED, EXPECTED_S = 0.02, 2.0
"""A report is no news if the speed is within this fraction of what the state has, and the progress within so many
seconds of it."""
STORE_EVERY_S = 60.0
"""How often the progress of a job is stored if it is no news. After a restart the rest is read again."""
LONGER = 1.05
"""A job that runs longer than expected is expected to run at least this many times as long as until now."""
LEAST_COST_S = 0.05
"""A measured restart cost has to differ by this much from the figure in the state before the state is told."""
MOST_PATH = 4096
MOST_APART_S = 86400.0
"""Reported times that differ from the scheduler's clock by more than this are ignored."""
_NUMBERS = ("step", "steps", "epoch", "epochs", "loss", "samples", "samples_per_s", "noise_scale", "save_s")
MOST_BATCH_SIZES = 64
_SMOOTHING = 0.3
"""The weight of the latest speed against the mean of the earlier ones."""


class Place(NamedTuple):
    """Where a job runs: the type and the number of its GPUs."""

    gpu_type: int
    gpus: int


class Told(NamedTuple):
    """What the state was told about a job that trains: its place, its batch size and how many steps it makes in all."""

    place: Place
    batch_size: int | None
    steps: float


class Observations:
    """Everything observed of live jobs, and the expected run times of jobs that report nothing."""

    def __init__(
        self,
        store: JobStore,
        state: State,
        origin_s: float,
        restart_s: float = RESTART_S,
        measured: KeptProfile | None = None,
    ) -> None:
        self.store = store
        self.times = RunTimes()
        self.restarts = RestartCosts(restart_s)
        self.expected_s: dict[int, float] = {}
        self._state = state
        self._origin_s = origin_s
        self._rated_s: dict[int, float] = {}
        self._in_steps: set[int] = set()
        measured = measured or KeptProfile({})
        self.company = Company(store, state, measured.profile, self._in_steps)
        measured.pairing.look_in(self.company)
        self._measured_s: dict[int, float] = {}
        self._regrouped_s: dict[int, float] = {}
        self.types = TypeSpeeds(state, measured.profile)
        self._stored_s: dict[int, float] = {}
        self._told: dict[int, tuple[Told, float]] = {}
        self.courses = JobCourses(store)

    @property
    def cluster(self) -> Cluster:
        """The machines, also those that have joined since."""
        return self._state.cluster

    def counts_steps(self, job: int) -> bool:
        """Whether the work of a job is counted in steps, at the speed that was measured."""
        return job in self._in_steps

    def recall(self, event: Event) -> None:
        """Take note of an event that is applied to the state, now or in a replay."""
        if isinstance(event, JobSubmitted):
            self.expected_s[event.job] = event.work
        elif isinstance(event, RegimeEntered) and not math.isnan(event.work):
            # An event has a scaling only if its job reports how many steps there are.
            if event.scaling:
                self._in_steps.add(event.job)
            else:
                self.expected_s[event.job] = event.work
                self._in_steps.discard(event.job)

    def forget(self, record: JobRecord) -> None:
        """Drop what is expected of a job that has ended."""
        for kept in (self._rated_s, self._measured_s, self._regrouped_s, self._stored_s, self.expected_s, self._told):
            kept.pop(record.number, None)
        self._in_steps.discard(record.number)
        self.company.forget(record.number)
        self.courses.end(record)

    def progress(self, record: JobRecord) -> float:
        """Work that a job has done, in the state's unit, if its processes stay in memory or save it now."""
        return record.progress.step if record.number in self._in_steps else record.ran_s

    def saved(self, record: JobRecord) -> float:
        """Progress that a new attempt begins with, in the state's unit."""
        if record.number in self._in_steps:
            return record.progress.checkpoint_step
        return 0.0 if record.progress.checkpoint is None or record.request.preempt == "restart" else record.ran_s

    def started(self, record: JobRecord, *, resumed: bool) -> None:
        """A job computes, perhaps in another place. A speed measured in the old place does not apply there.

        The time since its last report says nothing about its speed.
        """
        self.company.begin(record.number)
        record.progress.reported_s = None
        if record.progress.source and not resumed:
            # Its log begins again.
            record.progress.step = record.progress.checkpoint_step
        place, told = self._place(record.number), self._told.get(record.number)
        # A scheduler that has just started does not know where the job reported last; where it went on, it was here.
        moved = not resumed if told is None else told[0].place != place
        if place is not None and moved:
            record.progress.steps_per_s = record.progress.speeds.get(self._name(place))

    def relative(self, record: JobRecord) -> tuple[float, ...]:
        """The relative speeds that are expected of a job on all GPU types."""
        return self.types.relative(record, self.company.key(record))

    def regrouped(self, now_s: float, about: int | None = None) -> list[Event]:
        """Jobs came to share GPUs, or share them no more: each goes on at the speed that is expected of it now.

        What was measured in the old company does not count any more. `about`: only this job has begun or ceased to
        compute, so only it and those on its GPUs are looked at.
        """
        events: list[Event] = []
        for job in self.company.changed() if about is None else self.company.changed_around(about):
            record = self.store[job]
            record.progress.steps_per_s = record.progress.reported_s = None
            self._regrouped_s[job] = self._origin_s + now_s
            self.store.touch(record)
            row = self._state.table.position(job)
            if row >= 0 and self._state.table.f[columns.RATE, row] > 0:
                done = record.progress.step if job in self._in_steps else self._ran_until_s(record, now_s)
                events.append(RateChanged(now_s, job, done, self.rate(record)))
        return events

    def rate(self, record: JobRecord) -> float:
        """Work per second that a job is expected to do where it runs now."""
        place = self._place(record.number)
        if place is None:
            return 1.0
        expected = self.company.expected(record)
        if record.number in self._in_steps:
            seen = record.progress.steps_per_s if expected is None else None
            seen = seen or self._speeds(record, [place])[0] * (1.0 if expected is None else expected)
            if seen:
                return seen
        alone = max(self.relative(record)[place.gpu_type], 1e-6) * gang_factor(place.gpus, record.request.gpus)
        return alone * (self.company.slowed(record) if expected is None else expected)

    def reported(self, record: JobRecord, report: Report, now_s: float) -> list[Event]:
        """Take in what a job reports. Its speed becomes an event every `RATE_EVERY_S`, other changes at once."""
        begun = record.attempt is not None and record.attempt.start_s is not None
        events = self.regrouped(now_s) if self.company.is_new(record.number) else []
        saved_s, size = record.progress.checkpoint_s, record.progress.batch_size
        since_s = self._regrouped_s.get(record.number, -math.inf)
        for line in report.lines:
            if record.progress.source and number(line.get("step")) is not None:
                events += self._not_by_log(record, now_s)
            if take_in(record.progress, line, self._origin_s + now_s):
                self.company.begin(record.number)
            self.restarts.reported(record)
            if (record.progress.reported_s or 0.0) < since_s:
                # It was written in another company.
                record.progress.steps_per_s = record.progress.reported_s = None
            elif "step" in line:
                self.company.heard(record.number)
            if "step" in line:
                self.courses.add(record, date_of(line, self._origin_s + now_s))
        record.progress.read_bytes = report.read_bytes
        if not begun and record.attempt is not None and record.attempt.start_s is not None:
            events += self.restart_cost(record, now_s)
        events += [*self._training(record, now_s), *self._measured(record, now_s)]
        same = (saved_s, size) == (record.progress.checkpoint_s, record.progress.batch_size)
        if events or not same or now_s >= self._stored_s.get(record.number, 0.0):
            self._stored_s[record.number] = now_s + STORE_EVERY_S
            self.store.touch(record)
        return events

    def read_off(self, record: JobRecord, found: LogProgress | None, now_s: float) -> list[Event]:
        """Take in what the log of a running job says, like a report. It counts if the job does not report itself.

        `found` is None if the log does not say any more how far the job is: its work is counted in seconds again.
        """
        progress, job = record.progress, record.number
        if progress.is_own or (found is None and not progress.source):
            return []
        if found is None:
            self.store.touch(record)
            return self._not_by_log(record, now_s)
        events = self.regrouped(now_s) if self.company.is_new(job) else []
        about = (f"log ({found.form})", found.unit)
        if (progress.source, progress.unit) != about or abs((progress.steps or 0.0) - found.total) > 0.1 * found.total:
            # Something else is counted now.
            saved = progress.checkpoint_step / progress.steps if progress.steps else 0.0
            progress.checkpoint_step = min(saved, 1.0) * found.total
            progress.speeds, progress.epoch_speeds, progress.steps_per_s = {}, {}, None
        progress.source, progress.unit = about
        progress.step, progress.steps = found.done, found.total
        progress.reported_s, progress.reported_step = self._origin_s + now_s, found.done
        loss = number(found.loss)
        progress.loss = progress.loss if loss is None else loss
        progress.steps_per_s = progress.steps_per_s if math.isnan(found.per_s) else found.per_s
        self.courses.add(record, self._origin_s + now_s)
        events += [*self._begun(record, found, now_s), *self._training(record, now_s)]
        if events or now_s >= self._stored_s.get(job, 0.0):
            self._stored_s[job] = now_s + STORE_EVERY_S
            self.store.touch(record)
        return events

    def _begun(self, record: JobRecord, found: LogProgress, now_s: float) -> list[Event]:
        """What the start of an attempt has cost, when its log tells for the first time how far it is."""
        attempt = record.attempt
        if attempt is None or attempt.start_s is not None or not found.per_s > 0:
            return []
        ran_s = (attempt.ran_s or 0.0) + self._ran_until_s(record, now_s) - record.ran_s
        self.restarts.read_off(record, ran_s, found.done / found.per_s)
        return [] if attempt.start_s is None else self.restart_cost(record, now_s)

    def measured_since_s(self, job: int) -> float:
        """The date since which a job has had its present company. Any thread may ask."""
        return self._regrouped_s.get(job, -math.inf)

    def _not_by_log(self, record: JobRecord, now_s: float) -> list[Event]:
        """Forget what was read off a job's log. If its work was counted by that, it is counted in seconds again."""
        progress, job = record.progress, record.number
        progress.source, progress.unit = "", "step"
        progress.step = progress.reported_step = progress.checkpoint_step = 0.0
        progress.steps = progress.steps_per_s = progress.reported_s = None
        progress.speeds, progress.epoch_speeds = {}, {}
        self._told.pop(job, None)
        if job not in self._in_steps:
            return []
        self._in_steps.discard(job)
        if record.state.ended:
            # It was cancelled, and its processes still write.
            return []
        runs = record.state is JobState.RUNNING and job in self._state.held_gpus
        ran_s = self._ran_until_s(record, now_s) if runs else self.saved(record)
        return [self._expects(record, self._likely_s(record, ran_s), ran_s, self.rate(record) if runs else 0.0, now_s)]

    def _training(self, record: JobRecord, now_s: float) -> list[Event]:
        """What the speed and the progress that a job has reported mean for it, and for others of its kind."""
        place, job, speed = self._place(record.number), record.number, record.progress.steps_per_s
        if place is None or record.state is not JobState.RUNNING or not speed or not self._is_at(record, place):
            return []
        about = Told(place, record.progress.batch_size, self._total(record))
        settled = self.company.measured(record, speed, self._origin_s + now_s)
        events: list[Event] = []
        if settled or now_s >= self._rated_s.get(job, 0.0) or self._is_new(job, about):
            self._rated_s[job] = now_s + RATE_EVERY_S
            event = self._trained(record, about, now_s)
            if not (isinstance(event, RateChanged) and self._is_expected(event)):
                events.append(event)
        if settled and self.types.is_news(self.cluster.types[place.gpu_type].name, self.company.key(record)):
            events += self._told_kind(record, now_s)
        return events

    def _is_new(self, job: int, about: Told) -> bool:
        return job in self._told and self._told[job][0] != about

    def _is_expected(self, event: RateChanged) -> bool:
        """Whether the state knows as much. Losses and noise are always news."""
        if not (math.isnan(event.loss) and math.isnan(event.noise_scale)):
            return False
        f, row = self._state.table.f, self._state.table.position(event.job)
        rate = float(f[columns.RATE, row])
        done = float(f[columns.PROGRESS0, row]) + rate * max(event.time_s - float(f[columns.READY_S, row]), 0.0)
        return abs(event.rate - rate) <= EXPECTED * rate and abs(event.progress - done) <= EXPECTED_S * rate

    def _told_kind(self, record: JobRecord, now_s: float) -> list[Event]:
        """A kind of job was measured on a GPU type: other speeds are expected of the other jobs of the same model."""
        events: list[Event] = []
        model, table = self.company.key(record).model, self._state.table
        for job in self.expected_s:
            other, row = self.store[job], table.position(job)
            if job == record.number or row < 0 or self.company.key(other).model != model:
                continue
            gang = [Place(kind, other.request.gpus) for kind in range(len(self.cluster.types))]
            speeds = self._speeds(other, gang) if job in self._in_steps else self.relative(other)
            if any(speeds) and any(map(differs, speeds, table.f[columns.SPEEDS :, row].tolist())):
                events.append(self._with_speeds(other, row, speeds, now_s))
        return events

    def _with_speeds(self, record: JobRecord, row: int, speeds: tuple[float, ...], now_s: float) -> Event:
        """Other speeds by GPU type are expected of a job. Everything else stays as it is."""
        f, i, job = self._state.table.f[:, row], self._state.table.i[:, row], record.number
        rate = float(f[columns.RATE])
        done = float(f[columns.PROGRESS0]) + rate * max(now_s - float(f[columns.READY_S]), 0.0)
        about = (min(done, float(f[columns.REGIME_END])), self.rate(record) if rate > 0 else 0.0)
        ends = float(f[columns.REGIME_END]), float(f[columns.TAIL_S])
        facts = self._state.facts.get(job, NO_FACTS)
        prospect = None if facts.prospect is None else facts.prospect.at(speeds, f[columns.SPEEDS :].tolist())
        scaling = facts.scaling if job in self._in_steps else ()
        entered = RegimeEntered(now_s, job, *about, int(i[columns.BATCH_SIZE]), speeds, *ends)
        return entered._replace(scaling=scaling, prospect=prospect)

    def _measured(self, record: JobRecord, now_s: float) -> list[Event]:
        """What a job whose batch size may be chosen says about itself, if that is new."""
        progress, job, gpus = record.progress, record.number, self._state.held_gpus.get(record.number, ())
        if progress.batch_limits is None or record.state is not JobState.RUNNING or not gpus:
            return []
        first, largest, least, most = progress.batch_limits
        limits, timing = BatchLimits(first, largest, least, most, accumulation=True), None
        replicas, local, accumulation, step_s = progress.timing or (0, 0, 0, 0.0)
        if replicas == len(gpus):
            nodes = len({self.cluster.node_of_gpu[gpu] for gpu in gpus})
            timing = Timing(nodes, len(gpus), int(local), int(accumulation), step_s)
        known = self._state.facts.get(job, NO_FACTS).adaptive
        before = None if known is None else known.last(timing)
        new = known is None or known.limits != limits
        if timing is not None and (before is None or abs(timing.step_s - before) > LEAST_CHANGE * abs(before)):
            new |= now_s >= self._measured_s.get(job, 0.0) or before is None
        else:
            timing = None
        if not new:
            return []
        self._measured_s[job] = now_s + RATE_EVERY_S
        noise = math.nan if progress.noise_scale is None else progress.noise_scale
        return [JobMeasured(now_s, job, limits, timing, noise)]

    def restart_cost(self, record: JobRecord, now_s: float) -> list[Event]:
        """An event with what a stop and restart of a job costs, if the state has another figure."""
        row = self._state.table.position(record.number)
        cost_s = self.restarts.expected_s(record.request, record.attempts)
        if row < 0 or record.state.ended:
            return []
        if abs(cost_s - float(self._state.table.f[columns.RESTART_S, row])) < LEAST_COST_S:
            return []
        return [RestartMeasured(now_s, record.number, cost_s)]

    def overdue(self, jobs: Iterable[int], now_s: float) -> list[Event]:
        """Jobs among these that report nothing and have run longer than expected are expected to take longer: as long
        as the longer ones of earlier runs, or as long again."""
        events: list[Event] = []
        for job in jobs:
            if job in self._in_steps or job not in self._state.held_gpus:
                continue
            record = self.store[job]
            ran_s = self._ran_until_s(record, now_s)
            if record.state is JobState.RUNNING and ran_s > self.expected_s.get(job, math.inf):
                events.append(self._expects(record, self._likely_s(record, ran_s), ran_s, self.rate(record), now_s))
        return events

    def _likely_s(self, record: JobRecord, ran_s: float) -> float:
        """How long a job that reports nothing runs in all: somewhat longer than now in any case."""
        return max(self.times.expected_s(record.request, ran_s), LONGER * ran_s)

    def estimate(self, record: JobRecord, now_s: float) -> RunTimeEstimate:
        """How long a job runs in all, how wide that is and where it comes from."""
        return self.times.of(record, self._ran_until_s(record, now_s))

    def learn(self, record: JobRecord, now_s: float) -> list[Event]:
        """A job has done its work: similar jobs that have reported nothing are expected to take as long."""
        changed, events = self.times.learn(record), list[Event]()
        for job, expected_s in list(self.expected_s.items()) if changed else ():
            other = self.store[job]
            runs = other.state is JobState.RUNNING and job in self._state.held_gpus
            own_word = other.request.expected_s is not None or job in self._in_steps
            if job == record.number or own_word or (other.attempts and not runs):
                continue
            if changed.isdisjoint(kinds_of(other.request)):
                continue
            ran_s = self._ran_until_s(other, now_s) if runs else 0.0
            likely_s = self._likely_s(other, ran_s)
            if abs(likely_s - expected_s) > LEARNT * expected_s:
                events.append(self._expects(other, likely_s, ran_s, self.rate(other) if runs else 0.0, now_s))
        return events

    def _expects(self, record: JobRecord, work_s: float, ran_s: float, rate: float, now_s: float) -> Event:
        """A job that reports nothing is expected to take `work_s` seconds in all."""
        self.expected_s[record.number] = work_s
        speeds, batch = self.relative(record), record.request.batch_size or 0
        entered = RegimeEntered(now_s, record.number, ran_s, rate, batch, speeds, work_s, 0.0)
        return entered._replace(work=work_s, prospect=assumed(record.request, speeds, work_s))

    def _trained(self, record: JobRecord, about: Told, now_s: float) -> Event:
        """A job has trained. The first time, its work changes from seconds to steps if it reports how many.

        Its speeds on all GPU types are told again when its speed alone differs from the one that was told.
        """
        progress, job, (place, batch, total) = record.progress, record.number, about
        speed, name = progress.steps_per_s or 0.0, self._name(place)
        if not self.company.of(job):
            progress.speeds[name] = speed
        seen = [math.nan if one is None else one for one in (progress.loss, progress.noise_scale)]
        done = (math.nan, epochs_done(progress, record.request), *seen)
        if not total:
            return RateChanged(now_s, job, self._ran_until_s(record, now_s), self.rate(record), *done)
        told, alone = self._told.get(job), progress.speeds.get(name, 0.0)
        if told is not None and told[0] == about and not differs(alone, told[1]):
            return RateChanged(now_s, job, progress.step, self.rate(record), *done)
        self._in_steps.add(job)
        self._told[job] = about, alone
        request = record.request
        speeds = self._speeds(record, [Place(kind, request.gpus) for kind in range(len(self.cluster.types))])
        scaling = self._speeds(record, [Place(place.gpu_type, size) for size in range(1, request.gpus_max + 1)])
        prospect = announced(progress, request.epochs, speed / total, tuple(one / speed for one in speeds))
        rate, size = self.rate(record), batch or request.batch_size or 0
        entered = RegimeEntered(now_s, job, progress.step, rate, size, speeds, total, 0.0)
        return entered._replace(work=total, scaling=scaling, prospect=prospect)

    def _speeds(self, record: JobRecord, places: Iterable[Place]) -> tuple[float, ...]:
        """Steps per second that a job is expected to do alone in places.

        A job that was measured nowhere, and none of its kind, is taken to be as fast as it is beside others.
        """
        seen, here = self.types.seen(record, self.company.key(record)), self._place(record.number)
        if not seen and here is not None and record.progress.steps_per_s:
            seen = {self._name(here): record.progress.steps_per_s}
        assumed = speeds_of(record.request, self.cluster)
        return tuple(self.types.on(seen, assumed, *place) for place in places)

    def _ran_until_s(self, record: JobRecord, now_s: float) -> float:
        return record.ran_until_s(self._origin_s + now_s)

    def _total(self, record: JobRecord) -> float:
        """The total number of steps; 0 if that is not known."""
        return record.progress.steps or record.request.steps or 0.0

    def _place(self, job: int) -> Place | None:
        gpus = self._state.held_gpus.get(job, ())
        return Place(self._type(gpus[0]), len(gpus)) if gpus else None

    def _is_at(self, record: JobRecord, place: Place) -> bool:
        """Whether the processes of a job are in a place. A job that moves has other GPUs before it has left its own."""
        gpus: Sequence[int] = () if record.attempt is None else record.attempt.gpus
        return len(gpus) == place.gpus and min(gpus) >= 0 and self._type(gpus[0]) == place.gpu_type

    def _type(self, gpu: int) -> int:
        return self.cluster.node_type[self.cluster.node_of_gpu[gpu]]

    def _name(self, place: Place) -> str:
        return place_name(self.cluster.types[place.gpu_type].name, place.gpus)


def take_in(progress: Progress, report: Mapping[str, Any], now_s: float) -> bool:
    """Bring a job's progress up to date. Returns whether its batch size has changed."""
    time_s = date_of(report, now_s)
    if report.get("started") is True:
        # A new attempt: the time between its first report and the last one before was waiting, not training.
        progress.reported_s = None
    before_s, before = progress.reported_s, progress.reported_step
    for name in _NUMBERS:
        value = number(report.get(name))
        if value is not None:
            setattr(progress, name, value)
    if before_s is not None and time_s > before_s and progress.step > before:
        speed = (progress.step - before) / (time_s - before_s)
        known = progress.steps_per_s
        progress.steps_per_s = speed if known is None else known + _SMOOTHING * (speed - known)
    # Reports without a time all get the instant at which they are read; the first of them counts.
    if number(report.get("step")) is not None and time_s != before_s:
        progress.reported_s, progress.reported_step = time_s, progress.step
    if _is_path(report.get("checkpoint")):
        progress.checkpoint, progress.checkpoint_step = report["checkpoint"], progress.step
        progress.checkpoint_s = time_s
    sizes = report.get("batch_sizes")
    if isinstance(sizes, list) and 0 < len(sizes) <= MOST_BATCH_SIZES and all(_is_count(size) for size in sizes):
        progress.batch_sizes = sizes
    progress.batch_limits = _limits(report.get("batch_limits")) or progress.batch_limits
    if report.get("started") is True or "timing" in report:
        progress.timing = _timing(report.get("timing"))
    batch = report.get("batch_size")
    changed = _is_count(batch) and batch != progress.batch_size
    if changed:
        changed = progress.batch_size is not None
        progress.batch_size = batch
        if changed:
            # A step is something else now.
            progress.steps_per_s, progress.speeds = None, {}
    return changed


def date_of(report: Mapping[str, Any], now_s: float) -> float:
    """When a report was written, by the scheduler's clock; now, if it does not say so or cannot be believed."""
    time_s = number(report.get("time")) or now_s
    return time_s if abs(time_s - now_s) < MOST_APART_S else now_s


def _limits(value: Any) -> list[int] | None:
    """The first and the largest batch size of a job, and the fewest and most samples per GPU, if they make sense."""
    if not isinstance(value, list) or len(value) != 4 or not all(_is_count(one) or one == 0 for one in value):
        return None
    first, largest, least, most = value
    return list(value) if 0 < first <= largest and 0 < least <= (most or least) else None


def _timing(value: Any) -> list[float] | None:
    """GPUs, samples per GPU and pass, passes before the last one, and seconds per step, if they are numbers."""
    if not isinstance(value, list) or len(value) != 4:
        return None
    *counts, step_s = value
    if not all(_is_count(one) or one == 0 for one in counts) or not min(counts[:2]):
        return None
    # A time that cannot be is told as such, so that the owner learns why the job is not adapted.
    return [*counts, max(number(step_s) or -1.0, -1.0)]


def _is_path(value: Any) -> bool:
    """Whether a value can be the name of a file. Some JSON texts cannot."""
    try:
        return isinstance(value, str) and 0 < len(value) <= MOST_PATH and b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40


def number(value: Any) -> float | None:
    """What a job reports as a number; None if it is none that makes sense."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared before it is converted: a whole number may be too large for a float.
    return float(value) if -1e15 < value < 1e15 else None
