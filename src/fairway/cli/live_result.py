"""A live run as a result in the format of simulated ones, so that one report shows both."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Sequence
from typing import Any

from fairway.core.action import Action, Adjustment, Suspend
from fairway.core.decision import Decision
from fairway.core.event import (
    Event,
    JobCancelled,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobStarted,
    JobSubmitted,
)
from fairway.core.job import JobSpec
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.simulator.ledger import Ledger
from fairway.simulator.result import Result, RunCosts, RunSettings


class Tape:
    """Listens to the loop beside the scheduler, and notes who held which GPUs when.

    At most `jobs` jobs are expected; it has to be there before the first of them.
    """

    def __init__(self, scheduler: Scheduler, jobs: int) -> None:
        self.scheduler = scheduler
        self.ledger = Ledger(scheduler.cluster, jobs)
        self.specs: list[JobSpec] = []
        self.ended = 0
        self._held: dict[int, tuple[float, tuple[int, ...], int]] = {}
        scheduler.listeners.append(self._happened)
        scheduler.watchers.append(self._decided)

    def _happened(self, events: Sequence[Event]) -> None:
        """Note starts and ends."""
        for event in events:
            self._note(event)
        state = self.scheduler.state
        self.ledger.sample(state.now_s, state.busy_gpus, len(state.held_gpus), state.active)

    def _decided(self, decision: Decision, actions: Sequence[Action]) -> None:
        """Note which jobs lose GPUs and which get them."""
        now_s = self.scheduler.state.now_s
        for action in actions:
            if isinstance(action, Adjustment):
                continue
            self._let_go(action.job, now_s)
            if isinstance(action, Suspend):
                self.ledger.preemptions[action.job] += 1
            else:
                self._held[action.job] = (now_s, action.gpus, action.gpu_type)
                self.ledger.starts[action.job] += 1

    def wait(self, jobs: int, seconds: float) -> bool:
        """Wait until the ends of this many jobs are noted, a moment after their records say so."""
        deadline_s = time.monotonic() + seconds
        while self.ended < jobs:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.01)
        return True

    def result(self, policy: str, trace: str) -> Result:
        """The result, on the clock of the scheduler."""
        state, loop = self.scheduler.state, self.scheduler.loop
        usage = resource.getrusage(resource.RUSAGE_SELF)
        costs = RunCosts(state.round, 0.0, usage.ru_utime + usage.ru_stime, state.now_s, usage.ru_maxrss * 1024)
        cluster = self.scheduler.cluster
        settings = RunSettings(
            policy=policy,
            knows=tuple(sorted(self.scheduler.guard.knows)),
            trace=trace,
            cluster=cluster.text,
            rules="live",
            placement=loop.placer.name,
            profile="durations",
            round_s=loop.round_s,
            restart_cost_s=0.0,
            replan_interval_s=0.0,
            seed=state.seed,
        )
        return Result(settings, costs, cluster, self.specs, self.ledger, {})

    def _note(self, event: Any) -> None:
        if isinstance(event, JobSubmitted):
            self.specs.append(event.spec)
            self.ledger.exclusive_s[event.job] = event.work / max(event.speeds)
        elif isinstance(event, JobStarted):
            if math.isnan(self.ledger.started_s[event.job]):
                self.ledger.started_s[event.job] = event.time_s
        elif isinstance(event, JobFinished | JobFailed | JobCancelled | JobEvicted):
            self._let_go(event.job, event.time_s)
            if isinstance(event, JobFinished):
                self.ledger.finished_s[event.job] = event.time_s
            if not isinstance(event, JobEvicted):
                self.ended += 1

    def _let_go(self, job: int, now_s: float) -> None:
        held = self._held.pop(job, None)
        if held is not None:
            since_s, gpus, kind = held
            self.ledger.held(job, since_s, now_s, gpus, kind, 0.0, share=self.specs[job].gpu_share)
