"""How simulated GPUs work through their queues of tasks (see `core.queues`).

A GPU begins its next task when it is free and the task's round may begin, and computes it without interruption. The
task is synchronised a little later; by then its GPU may do something else. New queues replace what has not begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fairway.core.cluster import Cluster
from fairway.core.event import Event, JobEvicted, TasksChanged
from fairway.core.job import JobSpec
from fairway.core.queues import OpenRound, Queues, RunningTask, Task
from fairway.simulator.job_engine import EngineJob
from fairway.simulator.ledger import Ledger
from fairway.simulator.rates import Rates

Alarm = Callable[[float, int, int], None]
"""Asks to be told at an instant: of a task that ends (GPU, its turn), or of a round that is synchronised (-1, job)."""


class _Run(NamedTuple):
    """A task that a GPU has begun; `switch_s` of its time is lost. `exact_s` is `synced_s` before it was rounded."""

    started_s: float
    switch_s: float
    ends_s: float
    synced_s: float
    exact_s: float

    def part(self, now_s: float) -> float:
        """How much of the task is done."""
        length_s = self.ends_s - self.started_s
        return min((now_s - self.started_s) / length_s, 1.0) if length_s > 0 else 1.0


class _Round:
    """An open round. It takes the job's work from `since` to `end`, which may be before `until`.

    `synced_s` is when the tasks that have ended are synchronised, `exact_s` the same before it was rounded.
    """

    __slots__ = ("begun", "end", "ended", "exact_s", "running", "since", "synced_s", "until")

    def __init__(self, job: EngineJob, until: float) -> None:
        self.since = job.progress
        self.until = until
        self.end = min(until, job.work)
        self.begun = 0
        self.ended = 0
        self.synced_s = self.exact_s = 0.0
        self.running: dict[int, _Run] = {}

    def seen(self) -> OpenRound:
        running = tuple(RunningTask(gpu, run.ends_s, run.synced_s) for gpu, run in self.running.items())
        return OpenRound(self.until, self.begun, running, self.synced_s)


class TaskFloor:
    """The queues of all GPUs, what each GPU runs, and the open round of each job.

    `switch_s(gpu, job)` is what it costs a GPU to begin a task of a job. Times are those of `clock`.
    """

    def __init__(
        self,
        cluster: Cluster,
        rates: Rates,
        ledger: Ledger,
        active: Mapping[int, EngineJob],
        *,
        switch_s: Callable[[int, EngineJob], float],
        clock: Callable[[float], float],
        alarm: Alarm,
    ) -> None:
        self._cluster, self._rates, self._ledger, self._active = cluster, rates, ledger, active
        self._switch_s, self._clock, self._alarm = switch_s, clock, alarm
        self._kind = [cluster.node_type[node] for node in cluster.node_of_gpu]
        self._pending: dict[int, deque[Task]] = {}
        self._runs: dict[int, int] = {}
        self._turn: dict[int, int] = {}
        self._rounds: dict[int, _Round] = {}
        self._next: dict[int, deque[float]] = {}
        self._waiting: dict[int, set[int]] = {}
        self._told: dict[int, tuple[int, ...]] = {}
        self._changed: set[int] = set()
        self._busy_since_s: dict[int, float] = {}
        self._free_s: dict[int, float] = {}
        self._ready_s: dict[int, float] = {}

    def has(self, job: int) -> bool:
        """Whether tasks of a job have run or are to run."""
        return job in self._told

    @property
    def running(self) -> int:
        """How many jobs have a task that runs."""
        return len(set(self._runs.values()))

    def set_queues(self, now_s: float, queues: Queues) -> None:
        """Replace everything that has not begun."""
        self._pending = {gpu: deque(tasks) for gpu, tasks in queues.items()}
        ends: dict[int, set[float]] = {}
        for tasks in queues.values():
            for job, until in tasks:
                ends.setdefault(job, set()).add(until)
        self._next = {job: deque(sorted(untils)) for job, untils in ends.items()}
        self._waiting = {}
        self.begin_idle(now_s)

    def task_over(self, now_s: float, gpu: int, turn: int) -> None:
        """A GPU has computed its task, if the task was not lost meanwhile. It begins the next one."""
        if self._turn.get(gpu) != turn or gpu not in self._runs:
            return
        job = self._runs[gpu]
        run, now = self._end_task(now_s, gpu), self._rounds[job]
        now.ended += 1
        now.synced_s, now.exact_s = max(now.synced_s, run.synced_s), max(now.exact_s, run.exact_s)
        if now.ended == self._active[job].spec.gpus:
            self._ready_s[job] = now.exact_s
            self._alarm(now.synced_s, -1, job)
        self._begin_on(now_s, (gpu,))

    def is_over(self, job: int) -> bool:
        """Whether a job has a round all of whose tasks have ended."""
        return job in self._rounds and self._rounds[job].ended == self._active[job].spec.gpus

    def round_over(self, job: int) -> float:
        """All tasks of a round are synchronised. Returns the work that is done then."""
        self._changed.add(job)
        return self._rounds.pop(job).end

    def go_on(self, now_s: float, job: int) -> None:
        """The next round of a job may begin where GPUs wait for it."""
        self._begin_on(now_s, sorted(self._waiting.pop(job, ())))

    def drop(self, now_s: float, job: int) -> None:
        """A job leaves its queues. Its tasks end, or are forgotten."""
        for gpu in self._gpus(job):
            self._end_task(now_s, gpu)
        if self._next.pop(job, None):
            for gpu, tasks in self._pending.items():
                self._pending[gpu] = deque(task for task in tasks if task.job != job)
        self._rounds.pop(job, None)
        self._changed.discard(job)
        for known in (self._told, self._ready_s, self._busy_since_s):
            known.pop(job, None)

    def begin_idle(self, now_s: float) -> None:
        """Let GPUs that are idle begin their next task, if it may begin."""
        self._begin_on(now_s, sorted(self._pending))

    def lose(self, now_s: float, gpus: Iterable[int]) -> list[Event]:
        """GPUs fail. What they run is lost and has to be done again; what they were to run needs other queues."""
        events: list[Event] = []
        for gpu in gpus:
            self._pending.pop(gpu, None)
            job = self._runs.get(gpu)
            if job is None:
                continue
            self._end_task(now_s, gpu)
            self._rounds[job].begun -= 1
            if not self._rounds[job].begun:
                del self._rounds[job]
            self._told[job] = ()
            events.append(JobEvicted(now_s, job, self._progress(now_s, job), "its node failed"))
        return events

    def changes(self, now_s: float) -> list[Event]:
        """What has begun and ended at this instant. GPUs are given up before others take them."""
        freed, events = list[Event](), list[Event]()
        for job in sorted(self._changed):
            told, runs = self._told.get(job, ()), self._gpus(job)
            kept = tuple(gpu for gpu in told if gpu in runs)
            if len(kept) < len(told):
                freed.append(self._change(now_s, job, kept))
            if len(kept) == len(told) or kept != runs:
                events.append(self._change(now_s, job, runs))
            self._told[job] = runs
        self._changed.clear()
        return freed + events

    def _gpus(self, job: int) -> tuple[int, ...]:
        now = self._rounds.get(job)
        return () if now is None else tuple(sorted(now.running))

    def _change(self, now_s: float, job: int, gpus: tuple[int, ...]) -> Event:
        now, work = self._rounds.get(job), self._progress(now_s, job)
        if now is None:
            return TasksChanged(now_s, job, gpus, work, 0.0, None)
        each, rate = (now.end - now.since) / self._active[job].spec.gpus, 0.0
        for run in now.running.values():
            rate += each / (run.ends_s - run.started_s) if run.ends_s > run.started_s else 0.0
        return TasksChanged(now_s, job, gpus, work, rate, now.seen())

    def _progress(self, now_s: float, job: int) -> float:
        """Work done so far; what a task has computed counts while it runs."""
        now = self._rounds.get(job)
        if now is None:
            return self._active[job].progress
        done = float(now.ended)
        for run in now.running.values():
            done += run.part(now_s)
        return now.since + (now.end - now.since) * done / self._active[job].spec.gpus

    def _begin_on(self, now_s: float, gpus: Iterable[int]) -> None:
        for gpu in gpus:
            if gpu not in self._runs:
                self._begin_next(now_s, gpu)

    def _begin_next(self, now_s: float, gpu: int) -> None:
        """Begin the next task of a GPU, or wait for its round."""
        tasks = self._pending.get(gpu)
        while tasks and tasks[0].job not in self._active:
            tasks.popleft()
        if not tasks:
            return
        job, until = tasks[0]
        now = self._rounds.get(job)
        if (now.until if now is not None else self._next[job][0]) != until:
            self._waiting.setdefault(job, set()).add(gpu)
            return
        tasks.popleft()
        if now is None:
            now = self._rounds[job] = _Round(self._active[job], until)
        if self._next[job] and self._next[job][0] == until:
            self._next[job].popleft()
        self._begin(now_s, gpu, job, now)

    def _begin(self, now_s: float, gpu: int, job: int, now: _Round) -> None:
        owner = self._active[job]
        compute_s, sync_s = task_times(self._rates, owner.spec, owner.work, (now.since, now.end), self._kind[gpu])
        switch_s = self._switch_s(gpu, owner)
        # Instants are rounded to the clock. What follows from them is not, or every round would add to the error.
        exact_s = max(self._free_s.get(gpu, 0.0), self._ready_s.get(job, 0.0))
        exact_s = (exact_s if self._clock(exact_s) == now_s else now_s) + switch_s + compute_s
        self._free_s[gpu] = exact_s
        ends_s = self._clock(exact_s)
        now.begun += 1
        if not now.running:
            self._busy_since_s[job] = now_s
        now.running[gpu] = _Run(now_s, switch_s, ends_s, self._clock(exact_s + sync_s), exact_s + sync_s)
        self._runs[gpu] = job
        self._turn[gpu] = self._turn.get(gpu, 0) + 1
        self._changed.add(job)
        self._ledger.begins_task(job, now_s)
        self._alarm(ends_s, gpu, self._turn[gpu])

    def _end_task(self, now_s: float, gpu: int) -> _Run:
        """A GPU is free again. Returns the task that it had."""
        job = self._runs.pop(gpu)
        run = self._rounds[job].running.pop(gpu)
        self._ledger.ran_task(job, run.started_s, now_s, gpu, self._kind[gpu], run.switch_s)
        if not self._rounds[job].running:
            self._ledger.held_s[job] += now_s - self._busy_since_s[job]
        self._changed.add(job)
        return run


def task_times(
    rates: Rates, spec: JobSpec, work: float, between: tuple[float, float], kind: int
) -> tuple[float, float]:
    """How long one task of a round computes on a GPU type, and how long it synchronises then.

    The round goes from one amount of work to another, maybe through several regimes. Its step times are those of the
    job's gang.
    """
    compute_s, sync_s, (since, until) = 0.0, 0.0, between
    for regime in rates.regimes(spec):
        end = min(regime.until * work, until) if regime.until < 1.0 else until
        if end > since:
            gang_s = (end - since) / rates.speeds_in(spec, regime)[kind]
            part = rates.computes(spec, regime)[kind]
            compute_s += gang_s * part
            sync_s += gang_s * (1.0 - part)
            since = end
    return compute_s, sync_s
