"""The simulated engine: a virtual clock that jumps from event to event, with progress in closed form between them.

Every running job has one entry in the event queue: its next change (the end of a batch-size regime or of its work).
Entries carry the version of the allocation that they belong to. A job that was stopped leaves a stale entry behind,
which is skipped. Times are rounded up to a grid, so that instants closer than a microsecond are one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Unpack

from fairway.core.action import Action, Launch, Move, Resize, Start, Suspend
from fairway.core.cluster import Cluster
from fairway.core.event import (
    Event,
    JobEvicted,
    JobFinished,
    JobMeasured,
    NodeLost,
    NodeRestored,
    RateChanged,
    RegimeEntered,
    Woken,
)
from fairway.core.job import JobSpec, Regime
from fairway.core.queues import Queues
from fairway.models.regimes import regime_at
from fairway.simulator.faults import Outage
from fairway.simulator.job_engine import FEEDBACK_BATCHES, EngineJob, EngineOptions, JobEngine
from fairway.simulator.rates import Rates
from fairway.simulator.rules import Rules
from fairway.simulator.suspending import Suspends
from fairway.simulator.tasks import TaskFloor

_CHANGE, _REPAIR, _TASK, _SYNC = 0, 1, 2, 3


class _SimulatedJob(EngineJob):
    """The truth about an active job. `progress` is the progress at `ready_s`; from then on it grows by `rate`.

    `since_s`, `warm_s` and `marks` belong to the present allocation: its start, the end of its restart, and the (time,
    progress, rate) at each change of speed. If nothing happens before, the present regime's work is done at `done_s`;
    what counts as its end is `finish_s`. `left_gpus` are the GPUs on which it was suspended warm, at `left_s`. `timed`
    are the allocations and batches of which it has reported a timing.
    """

    __slots__ = (
        "done_s",
        "finish_s",
        "left_gpus",
        "left_s",
        "marks",
        "progress",
        "ready_s",
        "timed",
        "version",
        "warm_s",
    )

    progress: float

    def __init__(self, job: int, spec: JobSpec, work: float, regime: Regime) -> None:
        super().__init__(job, spec, work, regime)
        self.progress = 0.0
        self.ready_s = 0.0
        self.warm_s = 0.0
        self.marks: list[tuple[float, float, float]] = []
        self.done_s = math.nan
        self.finish_s = math.nan
        self.left_gpus: tuple[int, ...] = ()
        self.left_s = 0.0
        self.timed: set[tuple[float, ...]] = set()
        self.version = 0

    def done_at(self, now_s: float) -> float:
        """Progress at an instant of the present allocation. A regime that counts in whole seconds may be over."""
        most = self.work if self.regime.until >= 1.0 else self.regime.until * self.work
        return min(self.progress + self.rate * max(now_s - self.ready_s, 0.0), most)


class SimulatedEngine(JobEngine[_SimulatedJob]):
    """Jumps from event to event."""

    def __init__(
        self, cluster: Cluster, jobs: Sequence[JobSpec], rates: Rates, rules: Rules, **about: Unpack[EngineOptions]
    ) -> None:
        self._grid = 1.0 / rules.time_quantum_s
        self._queue: list[tuple[float, int, int, int]] = []
        # Jobs that have something to say about themselves, in order.
        self._unmeasured: dict[int, None] = {}
        super().__init__(cluster, jobs, rates, rules, **about)
        self._tasks = TaskFloor(
            *(cluster, rates, self.ledger, self._active),
            switch_s=self._switch_s,
            clock=self._quantised,
            alarm=self._alarm,
        )
        self._task_jobs = 0
        self._cut = False

    def poll(self, until_s: float) -> Sequence[Event]:
        """The events of the next instant, or `Woken` if `until_s` comes first, or nothing when all is done."""
        if not self.left:
            return ()
        if until_s < math.inf:
            # A wake-up that rounds to the present instant must still move the clock, or it would repeat forever.
            until_s = max(self._quantised(until_s), self.now_s + self.rules.time_quantum_s)
        next_s = self._next_instant_s(until_s)
        if until_s < next_s:
            self.now_s = until_s
            if not self._may_go_on(next_s):
                return ()
            return (*self._measured(until_s), Woken(until_s)) if self._unmeasured else (Woken(until_s),)
        if next_s == math.inf:
            return ()
        self.now_s = now_s = next_s
        self._idle_wakes = 0
        events: list[Event] = []
        self._pop_changes(now_s, events)
        while self._outage is not None and self._quantised(self._outage.start_s) <= now_s:
            self._fail(now_s, self._outage, events)
            self._outage = next(self._outages, None)
        if self._arrivals.next_s <= now_s:
            events.extend(self._submit(now_s, number, spec) for number, spec in self._arrivals.due(now_s))
        if self._unmeasured:
            events += self._measured(now_s)
        events += self._begun_and_ended(now_s)
        return events or (Woken(now_s),)

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        """As for other engines; tasks that begin now are reported as well."""
        events = list(super().enact(now_s, actions))
        if self._cut:
            # Jobs that have left their queues make room for others, once all actions are carried out.
            self._tasks.begin_idle(now_s)
            self._cut = False
        return events + self._begun_and_ended(now_s)

    def _begun_and_ended(self, now_s: float) -> list[Event]:
        """What tasks have begun and ended since this was asked last."""
        self.running += self._tasks.running - self._task_jobs
        self._task_jobs = self._tasks.running
        return self._tasks.changes(now_s)

    def _set_queues(self, now_s: float, queues: Queues, events: list[Event]) -> None:
        self._tasks.set_queues(now_s, queues)

    def _switch_s(self, gpu: int, job: EngineJob) -> float:
        """What it costs a GPU to begin a task of a job."""
        return 0.0 if self.switches is None else self.switches.next_s(gpu, job.spec)

    def _alarm(self, time_s: float, gpu: int, number: int) -> None:
        """Note that a task ends on a GPU, or that the tasks of a job are synchronised."""
        heapq.heappush(self._queue, (time_s, _TASK, gpu, number) if gpu >= 0 else (time_s, _SYNC, number, 0))

    def _end_round(self, now_s: float, job: _SimulatedJob, events: list[Event]) -> None:
        """All tasks of a job's round are synchronised: it goes on with the next, in another regime, or has finished."""
        job.progress = self._tasks.round_over(job.job)
        target = self.rates.first_batches(job.spec, FEEDBACK_BATCHES, job.work)
        if job.progress >= target and math.isnan(self.ledger.feedback_s[job.job]):
            self.ledger.feedback_s[job.job] = now_s
        if job.progress >= job.work:
            events += self._tasks.changes(now_s)
            self._tasks.drop(now_s, job.job)
            self.ledger.finished_s[job.job] = now_s
            events.append(JobFinished(now_s, job.job))
            self._forget(job)
            return
        regime = regime_at(self.rates.regimes(job.spec), job.progress / job.work)
        if regime is not job.regime:
            job.regime = regime
            events.append(self._regime_entered(now_s, job))
        self._tasks.go_on(now_s, job.job)

    def _on_clock(self, time_s: float) -> float:
        return self._quantised(time_s)

    def _stop(self, now_s: float, job: _SimulatedJob, stop: Suspend | Resize | Move, events: list[Event]) -> None:
        if self._tasks.has(job.job):
            self._tasks.drop(now_s, job.job)
            self._cut = True
            events.append(JobEvicted(now_s, job.job, job.progress, "its round was cut short"))
            return
        stays = stop.warm or isinstance(self.switches, Suspends)
        job.left_gpus, job.left_s = (job.gpus if stays else ()), now_s
        self._release(now_s, job, events)

    def _quantised(self, time_s: float) -> float:
        if time_s == math.inf:
            return time_s
        return math.ceil(time_s * self._grid - 1e-3) / self._grid

    def _next_instant_s(self, until_s: float) -> float:
        queue = self._queue
        while queue and queue[0][1] == _CHANGE and not self._is_current(queue[0]):
            heapq.heappop(queue)
        next_s = self._arrivals.next_s
        if queue and queue[0][0] < next_s:
            next_s = queue[0][0]
        if self._outage is not None and (next_s < math.inf or until_s < math.inf or self.running):
            next_s = min(next_s, self._quantised(self._outage.start_s))
        return next_s if next_s > self.now_s else self.now_s

    def _is_current(self, entry: tuple[float, int, int, int]) -> bool:
        job = self._active.get(entry[2])
        return job is not None and job.version == entry[3]

    def _pop_changes(self, now_s: float, events: list[Event]) -> None:
        """Completions, ends of regimes and repairs that are due."""
        queue = self._queue
        while queue and queue[0][0] <= now_s:
            entry = heapq.heappop(queue)
            if entry[1] == _REPAIR:
                if self._down_until_s.get(entry[2], math.inf) <= now_s:
                    del self._down_until_s[entry[2]]
                    events.append(NodeRestored(now_s, entry[2]))
            elif entry[1] == _TASK:
                self._tasks.task_over(now_s, entry[2], entry[3])
            elif entry[1] == _SYNC:
                if self._tasks.is_over(entry[2]):
                    self._end_round(now_s, self._active[entry[2]], events)
            elif self._is_current(entry):
                job = self._active[entry[2]]
                if job.regime.until < 1.0:
                    self._change_regime(now_s, job, events)
                else:
                    self._finish(now_s, job, events)

    def _submit(self, now_s: float, number: int, spec: JobSpec) -> Event:
        event = self._announcer.submitted(now_s, number, spec)
        self._active[number] = _SimulatedJob(number, spec, event.work, self.rates.regimes(spec)[0])
        self.ledger.exclusive_s[number] = self.rates.alone_s(spec)
        if self._announcer.limits(spec) is not None:
            self._unmeasured[number] = None
        return event

    def _measured(self, now_s: float) -> list[Event]:
        """What jobs that may be adapted have to say since they last did: limits, a new timing, another noise scale.

        A job says it when something else happens, or at the next round, and not before it has done a step.
        """
        events: list[Event] = []
        for number in list(self._unmeasured):
            job = self._active.get(number)
            if job is not None and not job.gpus and not job.timed:
                limits, local_limits = self._announcer.limits(job.spec), self.rates.local_limits(job.spec)
                events.append(JobMeasured(now_s, number, limits=limits, local_limits=local_limits))
            elif job is not None and job.gpus and job.split is not None:
                timing, noise = self.rates.measured(job.spec, job.regime, job.kind, job.gpus, self.located, job.split)
                if now_s < job.warm_s + timing.step_s:
                    continue
                key = (job.kind, *timing[:4])
                events.append(JobMeasured(now_s, number, None, None if key in job.timed else timing, noise))
                job.timed.add(key)
            del self._unmeasured[number]
        return events

    def _begin(self, now_s: float, job: _SimulatedJob, action: Start, rate: float) -> float:
        job.ready_s = job.warm_s = now_s + self._start_delay_s(now_s, job, action)
        job.marks = []
        job.left_gpus = ()
        self._set_rate(job, rate)
        return job.ready_s

    def _refuse(self, now_s: float, job: _SimulatedJob, why: str, events: list[Event]) -> None:
        self._part(now_s, job, {job.job}, events)
        super()._refuse(now_s, job, why, events)

    def _change_factor(self, now_s: float, job: _SimulatedJob, events: list[Event]) -> None:
        """A mate came, left or was throttled: the job goes on at another speed, unless it has done its work."""
        if self._is_done(now_s, job):
            return
        job.progress = job.done_at(now_s)
        job.ready_s = max(now_s, job.ready_s)
        job.factor = self._sharing.factor(job)
        self._set_rate(job, self._rate(job))
        events.append(RateChanged(now_s, job.job, job.progress, job.rate))

    def _start_delay_s(self, now_s: float, job: _SimulatedJob, action: Start) -> float:
        if self.switches is not None:
            return self.switches.start_s(job.spec, action.gpus, [mate.spec for mate in job.mates.values()])
        cost_s = self._restart_cost_s(job, isinstance(action, Launch) and now_s > 0)
        if cost_s and job.left_gpus:
            in_place = job.left_gpus == action.gpus
            cost_s = min(cost_s, self.rules.suspend_cost_s if in_place else self.rules.migrate_cost_s)
        return cost_s

    def _set_rate(self, job: _SimulatedJob, rate: float) -> None:
        """Let the job go on at a rate and queue its next change."""
        job.rate = rate
        job.marks.append((job.ready_s, job.progress, job.rate))
        job.version += 1
        if job.split is not None:
            self._unmeasured[job.job] = None
        until = job.work if job.regime.until >= 1.0 else job.regime.until * job.work
        change_s = job.ready_s + (until - job.progress) / job.rate
        heapq.heappush(self._queue, (self._change_time_s(job, change_s), _CHANGE, job.job, job.version))

    def _change_time_s(self, job: _SimulatedJob, exact_s: float) -> float:
        counted_s = self.rates.counted_s(job.regime, job.ready_s, exact_s)
        time_s = job.finish_s = self._quantised(counted_s)
        if exact_s > counted_s:
            time_s = self._quantised(exact_s)
        job.done_s = time_s
        if self.rules.frees_gpus == "at_round_end" and self.round_s > 0 and job.regime.until >= 1.0:
            return self._quantised(math.ceil(time_s / self.round_s - 1e-9) * self.round_s)
        return time_s

    def _release(self, now_s: float, job: _SimulatedJob, events: list[Event]) -> None:
        """The job gives up its GPUs and keeps its progress."""
        lost_s = min(now_s, job.warm_s) - job.since_s
        end_s = job.finish_s if self._is_done(now_s, job) else now_s
        self.ledger.held(job.job, job.since_s, end_s, job.gpus, job.kind, lost_s, share=job.spec.gpu_share)
        job.progress = job.done_at(now_s)
        if math.isnan(self.ledger.feedback_s[job.job]):
            self._note_feedback(job)
        job.rate, job.factor, job.gpus = 0.0, 1.0, ()
        job.version += 1
        self.running -= 1
        if job.mates:
            self._part(now_s, job, {job.job}, events)

    def _note_feedback(self, job: _SimulatedJob) -> None:
        """Note when the job had done its first mini-batches, if that was in the allocation that ends now."""
        target = self.rates.first_batches(job.spec, FEEDBACK_BATCHES, job.work)
        if job.progress < target:
            return
        ends = [since_s for since_s, _, _ in job.marks[1:]] + [math.inf]
        for (since_s, progress, rate), until_s in zip(job.marks, ends, strict=True):
            reached_s = since_s + max(target - progress, 0.0) / rate
            if reached_s <= until_s:
                self.ledger.feedback_s[job.job] = reached_s
                return

    def _is_done(self, now_s: float, job: _SimulatedJob) -> bool:
        """Whether a job has done its work and only waits for the round to end."""
        return job.regime.until >= 1.0 and job.done_s <= now_s

    def _finish(self, now_s: float, job: _SimulatedJob, events: list[Event]) -> None:
        self.ledger.finished_s[job.job] = job.finish_s
        events.append(JobFinished(now_s, job.job))
        self._release(now_s, job, events)
        self._forget(job)

    def _forget(self, job: _SimulatedJob) -> None:
        """The job has ended."""
        del self._active[job.job]
        self.left -= 1
        if self.switches is not None:
            self.switches.ended(job.spec)

    def _change_regime(self, now_s: float, job: _SimulatedJob, events: list[Event]) -> None:
        job.progress = job.regime.until * job.work
        job.regime = regime_at(self.rates.regimes(job.spec), job.regime.until)
        job.ready_s = job.finish_s
        # Only the old regime is done. The work of the new one is not, even if it is the last.
        job.done_s = math.inf
        if job.mates:
            self._refit(now_s, job, events)
        rate = self._rate(job) if job.gpus else 0.0
        if rate > 0:
            self._set_rate(job, rate)
        elif job.gpus:
            job.rate = 0.0
            self._release(now_s, job, events)
            events.append(JobEvicted(now_s, job.job, job.progress, "outgrew its GPUs"))
        events.append(self._regime_entered(now_s, job))

    def _refit(self, now_s: float, job: _SimulatedJob, events: list[Event]) -> None:
        """A job with mates has a new batch size. Mates that no longer fit have to go, or the job itself if a guest."""
        losers = self._sharing.losers(job)
        leaving = {job.job, *(loser.job for loser in losers)}
        for loser in losers:
            self._part(now_s, loser, leaving, events)
        for loser in losers:
            if self._is_done(now_s, loser):
                self._finish(now_s, loser, events)
                continue
            self._release(now_s, loser, events)
            events.append(JobEvicted(now_s, loser.job, loser.progress, "no longer fits beside its partner"))
        job.factor = self._sharing.factor(job)
        for mate in job.mates.values():
            self._change_factor(now_s, mate, events)

    def _regime_entered(self, now_s: float, job: _SimulatedJob) -> Event:
        spec, regime, batch = job.spec, job.regime, job.batch_size or 0
        speeds, tail_s = self._announcer.speeds(spec, regime), self.rates.tail_s(spec, regime, job.work)
        done, end, left = job.done_at(now_s), regime.until * job.work, self.rates.steps_left(spec, regime)
        about = (batch, speeds, end, tail_s, left, math.nan, self._announcer.scaling(spec, regime))
        return RegimeEntered(now_s, job.job, done, job.rate, *about)

    def _fail(self, now_s: float, outage: Outage, events: list[Event]) -> None:
        """A node fails: its jobs go back to their last checkpoint and wait."""
        node, until_s = outage.node, self._quantised(outage.start_s + outage.down_s)
        known_until_s = self._down_until_s.get(node)
        if known_until_s is None or known_until_s < until_s:
            self._down_until_s[node] = until_s
            if until_s < math.inf:
                heapq.heappush(self._queue, (until_s, _REPAIR, node, 0))
        if known_until_s is not None:
            return
        events.append(NodeLost(now_s, node))
        saved = self.switches.saved() if isinstance(self.switches, Suspends) else frozenset()
        if self.switches is not None:
            first = self.cluster.first_gpu[node]
            for gpu in range(first, first + self.cluster.nodes[node].gpus):
                self.switches.forget(gpu)
        node_of_gpu = self.cluster.node_of_gpu
        events += self._tasks.lose(now_s, [gpu for gpu, at in enumerate(node_of_gpu) if at == node])
        for job in list(self._active.values()):
            if any(node_of_gpu[gpu] == node for gpu in job.gpus):
                lose = self._finish if self._is_done(now_s, job) else self._evict
                lose(now_s, job, events)
            elif job.spec.id not in saved and any(node_of_gpu[gpu] == node for gpu in job.left_gpus):
                self._fall_back(now_s, job, job.left_s, len(job.left_gpus), job.regime, events)
                job.left_gpus = ()

    def _evict(self, now_s: float, job: _SimulatedJob, events: list[Event]) -> None:
        gpus, regime = len(job.gpus), job.regime
        self._release(now_s, job, events)
        self._fall_back(now_s, job, now_s, gpus, regime, events)

    def _fall_back(
        self, now_s: float, job: _SimulatedJob, stopped_s: float, gpus: int, regime: Regime, events: list[Event]
    ) -> None:
        """A job that ran until `stopped_s` has lost its state and goes on from its last checkpoint."""
        if self.switches is not None:
            self.switches.lose(job.spec)
        every_s = job.spec.checkpoint_every_s
        every_s = self.rules.checkpoint_every_s if every_s is None else every_s
        ran_s = max(stopped_s - job.warm_s, 0.0)
        lost_s = math.fmod(ran_s, every_s) if every_s > 0 else 0.0
        saved_s = job.warm_s + ran_s - lost_s
        since_s, progress, rate = next((mark for mark in reversed(job.marks) if mark[0] <= saved_s), job.marks[0])
        job.progress = min(progress + rate * max(saved_s - since_s, 0.0), job.progress)
        self.ledger.lost_gpu_s[job.job] += lost_s * gpus
        self._count_eviction(job)
        events.append(JobEvicted(now_s, job.job, job.progress, "its node failed"))
        regimes = self.rates.regimes(job.spec)
        if len(regimes) > 1 and job.work > 0:
            job.regime = regime_at(regimes, job.progress / job.work)
            if job.regime is not regime:
                events.append(self._regime_entered(now_s, job))
