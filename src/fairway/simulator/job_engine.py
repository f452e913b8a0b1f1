"""What the engines of simulated jobs have in common: which job holds which GPUs, starts, stops, guests and throttles.

`engine.SimulatedEngine` jumps from event to event. `fairway.published.rounds.RoundEngine` goes round by round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, TypedDict, TypeVar

from fairway.core.action import Action, Adjustment, Launch, Move, Resize, SetBatch, SetQueues, Start, Suspend, Throttle
from fairway.core.batch import Split
from fairway.core.cluster import Cluster
from fairway.core.errors import FairwayError
from fairway.core.event import Event, JobEvicted, JobStarted
from fairway.core.job import JobSpec, Regime
from fairway.core.queues import Queues
from fairway.simulator.arrivals import Announcer, Arrivals
from fairway.simulator.faults import Faults, Outage
from fairway.simulator.ledger import Ledger
from fairway.simulator.pairing import SimulatedPairing
from fairway.simulator.rates import Rates
from fairway.simulator.rules import Rules
from fairway.simulator.sharing import SeatedJob, Sharing
from fairway.simulator.suspending import Suspends
from fairway.simulator.switching import switches_of

MOST_EVICTIONS = 10_000
"""A job that loses its node more often than this never ends: nodes fail faster than it reaches a checkpoint."""
MOST_IDLE_WAKES = 1_000
FEEDBACK_BATCHES = 100
"""The number of mini-batches that tell the owner whether a job is worth continuing (Gandiva's early feedback)."""


class EngineJob(SeatedJob):
    """The truth about an active job: its total `work`, its `regime`, its `rate` now, and since when it has its GPUs.

    `split` is how it works through its batch, if a scheduler has chosen that.
    """

    __slots__ = ("rate", "regime", "since_s", "split", "work")

    def __init__(self, job: int, spec: JobSpec, work: float, regime: Regime) -> None:
        super().__init__(job, spec)
        self.work = work
        self.regime = regime
        self.rate = 0.0
        self.since_s = 0.0
        self.split: Split | None = None

    @property
    def progress(self) -> float:
        """Work done, as the engine last settled it."""
        raise NotImplementedError

    @property
    def batch_size(self) -> int | None:
        return self.regime.batch_size or self.spec.batch_size


class EngineOptions(TypedDict, total=False):
    """Further options of an engine.

    `located` says whether jobs hold concrete GPUs. `tells` is what the policy is told beyond what every policy sees:
    "scaling", "loss".
    """

    located: bool
    round_s: float
    faults: Faults | None
    tells: frozenset[str]
    seed: int


J = TypeVar("J", bound=EngineJob)


class JobEngine(Generic[J]):
    """Runs a list of jobs, sorted by submit time, on a cluster that exists only here."""

    def __init__(
        self,
        cluster: Cluster,
        jobs: Sequence[JobSpec],
        rates: Rates,
        rules: Rules,
        *,
        located: bool = True,
        round_s: float = 0.0,
        faults: Faults | None = None,
        tells: frozenset[str] = frozenset(),
        seed: int = 0,
    ) -> None:
        self.cluster = cluster
        self.rates = rates
        self.rules = rules
        self.located = located
        self.round_s = round_s
        self.ledger = Ledger(cluster, len(jobs))
        self.switches = switches_of(cluster, rules.switching)
        self.now_s = 0.0
        self.running = 0
        self.left = len(jobs)
        self._active: dict[int, J] = {}
        self.pairing = SimulatedPairing(rates, self._active)
        self._sharing = Sharing(cluster, rates)
        self._arrivals = Arrivals(jobs, self._on_clock)
        self._announcer = Announcer(rates, rules, tells, seed)
        self._outages = (faults or Faults()).outages(cluster)
        self._outage: Outage | None = next(self._outages, None)
        self._down_until_s: dict[int, float] = {}
        self._idle_wakes = 0

    @property
    def resume_s(self) -> Callable[[int], float] | None:
        """What it costs a suspended job to go on where it was; None if that does not depend on where its memory is."""
        switches = self.switches
        return (lambda job: switches.resume_s(self._active[job].spec)) if isinstance(switches, Suspends) else None

    def poll(self, until_s: float) -> Sequence[Event]:
        """The events of the next instant, `until_s` at the latest; empty when all jobs are done."""
        raise NotImplementedError

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        """Carry out the actions of one round: first jobs give up GPUs, then others start."""
        events: list[Event] = []
        leaving = [action for action in actions if not isinstance(action, Launch | Adjustment)]
        gone = {stop.job for stop in leaving}
        for stop in leaving:
            job = self._active[stop.job]
            if job.mates:
                self._part(now_s, job, gone, events)
        for stop in leaving:
            self._stop(now_s, self._active[stop.job], stop, events)
            if type(stop) is Suspend:
                self.ledger.preemptions[stop.job] += 1
        for action in actions:
            if isinstance(action, Throttle):
                self._throttle(now_s, self._active[action.job], action.throttle, events)
            elif isinstance(action, SetBatch):
                self._set_batch(now_s, self._active[action.job], action.batch, events)
            elif isinstance(action, SetQueues):
                self._set_queues(now_s, action.queues, events)
            elif not isinstance(action, Suspend):
                self._start(now_s, action, events)
        return events

    def _on_clock(self, time_s: float) -> float:
        """An instant as the engine's clock shows it."""
        return time_s

    def _set_queues(self, now_s: float, queues: Queues, events: list[Event]) -> None:
        """GPUs run these tasks in order from now on."""
        raise NotImplementedError

    def _stop(self, now_s: float, job: J, stop: Suspend | Resize | Move, events: list[Event]) -> None:
        """A job gives up its GPUs."""
        raise NotImplementedError

    def _begin(self, now_s: float, job: J, action: Start, rate: float) -> float:
        """A job has its GPUs; returns when it begins to compute."""
        raise NotImplementedError

    def _change_factor(self, now_s: float, job: J, events: list[Event]) -> None:
        """A mate came, left or was throttled: the job goes on at another speed."""
        raise NotImplementedError

    def _may_go_on(self, next_s: float) -> bool:
        """False if a policy wakes again and again although nothing runs and nothing can happen any more."""
        self._idle_wakes = self._idle_wakes + 1 if next_s == math.inf and not self.running else 0
        return self._idle_wakes < MOST_IDLE_WAKES

    def _start(self, now_s: float, action: Start, events: list[Event]) -> None:
        job = self._active[action.job]
        job.gpus, job.kind, job.throttle, job.host = action.gpus, action.gpu_type, action.throttle, action.host
        if action.host >= 0 and not self._sharing.seat(job, self._active[action.host]):
            self._refuse(now_s, job, "does not fit beside its partner", events)
            return
        job.split = action.batch
        rate = self._rate(job)
        if not rate > 0:
            self._refuse(now_s, job, "cannot run on these GPUs", events)
            return
        for mate in job.mates.values():
            self._change_factor(now_s, mate, events)
        job.since_s = now_s
        ready_s = self._begin(now_s, job, action, rate)
        self.running += 1
        if math.isnan(self.ledger.started_s[job.job]):
            self.ledger.started_s[job.job] = now_s
        self.ledger.starts[job.job] += 1
        if job.split is not None:
            self.ledger.batches.append((job.job, now_s, job.split.batch(len(job.gpus))))
        events.append(JobStarted(now_s, job.job, job.rate, ready_s))

    def _refuse(self, now_s: float, job: J, why: str, events: list[Event]) -> None:
        """A job cannot run where it should start. It waits as before."""
        self._sharing.part(job)
        job.gpus, job.rate, job.factor, job.throttle = (), 0.0, 1.0, 1.0
        events.append(JobEvicted(now_s, job.job, job.progress, why))

    def _restart_cost_s(self, job: J, absent: bool) -> float:
        """What a start costs. `absent`: the job did not run directly before."""
        charge = self.rules.charge
        pays = absent if charge == "absence" else charge == "start" or self.ledger.starts[job.job] > 0
        return self.rules.restart_s(job.spec) if pays else 0.0

    def _rate(self, job: J) -> float:
        """Work per second on the job's GPUs, in its regime and beside its mates."""
        if job.split is not None:
            where = (job.spec, job.regime, job.kind, job.gpus, self.located)
            return self.rates.rate_split(*where, job.split) * job.factor
        return self.rates.rate_in(job.spec, job.regime, job.kind, job.gpus, self.located) * job.factor

    def _throttle(self, now_s: float, job: J, throttle: float, events: list[Event]) -> None:
        """A guest gets another throttle. It and its mates change their speed."""
        job.throttle = throttle
        for one in (job, *job.mates.values()):
            self._change_factor(now_s, one, events)

    def _set_batch(self, now_s: float, job: J, split: Split, events: list[Event]) -> None:
        """A running job works through another batch. It changes its speed."""
        job.split = split
        self.ledger.batches.append((job.job, now_s, split.batch(len(job.gpus))))
        self._change_factor(now_s, job, events)

    def _part(self, now_s: float, job: J, leaving: set[int], events: list[Event]) -> None:
        """A job leaves the GPUs that it shares. The mates that stay change their speed."""
        for mate in self._sharing.part(job):
            if mate.job not in leaving:
                self._change_factor(now_s, mate, events)

    def _count_eviction(self, job: J) -> None:
        self.ledger.evictions[job.job] += 1
        if self.ledger.evictions[job.job] > MOST_EVICTIONS:
            raise FairwayError(
                f"job {job.spec.id!r} lost its GPUs to node failures {MOST_EVICTIONS} times; it cannot end"
            )
