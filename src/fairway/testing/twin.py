"""The same workload twice: live, with real processes, and simulated from the trace that the live run left.

The differences between the two worlds are measured in the live run and given to the simulator: for how long each job
held GPUs, and how much of that went by before its processes trained. Everything else must come out equal.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fairway.core.action import Action, Adjustment, Suspend
from fairway.core.cluster import Cluster, Node
from fairway.core.decision import Decision
from fairway.core.event import Event, JobFinished
from fairway.core.job import JobSpec, Workload
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest, Preempt
from fairway.runtime.processes.machine import virtual_machine
from fairway.runtime.processes.site import Site
from fairway.simulator.result import Result
from fairway.simulator.rules import Rules
from fairway.simulator.run import simulate

SLEEPER = Path(__file__).with_name("sleeper.py")
PATIENCE_S = 600.0
RESTART_S = 0.2
"""The assumed cost of a restart before any was seen; with a higher one a policy would not stop jobs of a few seconds.
"""
VARIES = 0.005
"""The relative variation of such a job's run time from one time to the next."""
CLOCKS_S = 0.05
"""How much two clocks may disagree about the order of a grant and the launch that follows it."""
STEP_COST = 1.01
"""How long a step takes beyond its sleep."""


class SleepingJob(NamedTuple):
    """A job of `steps` steps, submitted `at_s` seconds after the first."""

    name: str
    user: str
    at_s: float
    gpus: int
    steps: int
    step_s: float
    preempt: Preempt


@dataclass(frozen=True)
class TwinTerms:
    """How both worlds are run, on `nodes` nodes with `gpus` GPUs in all. With `report_every` > 0 live jobs report their
    steps that often. Policies then decide by measured speeds, which are never quite equal, while the simulator's are.
    """

    policy: str
    gpus: int = 8
    round_s: float = 0.0
    min_run_s: float = 0.5
    report_every: int = 0
    nodes: int = 1

    @property
    def cluster(self) -> Cluster:
        """The GPUs of both worlds."""
        if self.nodes == 1:
            return virtual_machine(self.gpus).cluster
        nodes = [Node(f"n{number}", "cpu", self.gpus // self.nodes) for number in range(self.nodes)]
        return Cluster.of(nodes, virtual_machine(1).cluster.types)


class StartCosts(NamedTuple):
    """How long it took from the grant of GPUs until a process trained, as the mean of the live run: at first, again."""

    start_s: float
    restart_s: float


class TwinForecast(NamedTuple):
    """What the simulator says: means over some runs, and their standard deviations."""

    makespan_s: float
    mean_jct_s: float
    makespan_spread_s: float
    jct_spread_s: float
    preemptions: float


class LiveRun(NamedTuple):
    """The outcome of the live run; `workload` is its trace."""

    records: list[JobRecord]
    workload: Workload
    costs: StartCosts

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        return max(_ended_s(one) for one in self.records) - min(one.submitted_s for one in self.records)

    @property
    def mean_jct_s(self) -> float:
        """The mean time from submission to end."""
        return statistics.fmean(_ended_s(one) - one.submitted_s for one in self.records)

    @property
    def preemptions(self) -> int:
        """How often GPUs were taken away."""
        return sum(one.preemptions for one in self.records)


def random_jobs(count: int, seed: int, *, mean_s: float, over_s: float, step_s: float = 0.05) -> list[SleepingJob]:
    """Jobs of several lengths and sizes that come within `over_s` seconds."""
    dice = random.Random(seed)
    jobs = []
    for at in range(count):
        length_s = min(max(dice.lognormvariate(0.0, 0.7) * 0.8 * mean_s, 0.4 * mean_s), 3.0 * mean_s)
        about = (dice.uniform(0.0, over_s) if at else 0.0, dice.choice((1, 1, 1, 2, 2, 4)), round(length_s / step_s))
        preempt: Preempt = "suspend" if dice.random() < 0.5 else "checkpoint"
        jobs.append(SleepingJob(f"job{at}", f"user{at % 3}", *about, step_s, preempt))
    return sorted(jobs, key=lambda job: job.at_s)


def run_live(
    jobs: Sequence[SleepingJob],
    terms: TwinTerms,
    folder: Path,
    watch: Callable[[Scheduler], None] | None = None,
    site: Site | None = None,
) -> LiveRun:
    """Run jobs for real and wait for the last; the scheduler has `folder` to itself. `site`: where, if not here."""
    scheduler = Scheduler(
        folder,
        terms.cluster,
        make_policy(terms.policy),
        placement("packed"),
        round_s=terms.round_s or None,
        min_run_s=terms.min_run_s,
        policy_text=terms.policy,
        restart_s=RESTART_S,
        # All of them are looked at in the end.
        recent=len(jobs),
        site=site,
        here=site is None,
    )
    holds = _Holds(scheduler)
    thread = scheduler.start()
    try:
        began_s = time.monotonic()
        for job in jobs:
            while time.monotonic() < began_s + job.at_s:
                time.sleep(min(max(began_s + job.at_s - time.monotonic(), 0.0), 0.05))
                if watch is not None:
                    watch(scheduler)
            scheduler.submit([_request(job, terms.report_every)])
        deadline_s = time.monotonic() + PATIENCE_S
        while any(not record.state.ended for record in scheduler.store):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not all jobs ended within {PATIENCE_S:g} s")
            time.sleep(0.02)
            if watch is not None:
                watch(scheduler)
    finally:
        scheduler.end_all()
        scheduler.close()
        thread.join()
    origin_s = scheduler.clock.origin_s
    records = list(scheduler.store)
    failed = [f"{record.id}: {record.reason}" for record in records if record.state is not JobState.COMPLETED]
    if failed:
        raise RuntimeError(f"jobs did not complete: {'; '.join(failed)}")
    starts_s = _starts_s(records, folder, holds, origin_s)
    start_s = statistics.fmean(times_s[0] for times_s in starts_s.values())
    again_s = [one_s for times_s in starts_s.values() for one_s in times_s[1:]]
    costs = StartCosts(start_s, statistics.fmean(again_s) if again_s else start_s)
    jobs_seen = [
        _spec(one, holds.held_s[one.number], starts_s[one.number], costs.restart_s, origin_s) for one in records
    ]
    return LiveRun(records, Workload.of(jobs_seen), costs)


def run_simulated(workload: Workload, terms: TwinTerms) -> Result:
    """The same workload in the simulator, under the same terms."""
    rules = Rules("twin", min_run_s=terms.min_run_s, spread_matters=False)
    return simulate(
        workload,
        cluster=terms.cluster,
        policy=terms.policy,
        rules=rules,
        round_s=terms.round_s,
        placement="packed",
    )


def forecast(workload: Workload, terms: TwinTerms, runs: int = 8, seed: int = 0) -> TwinForecast:
    """What the simulator expects of a workload, over runs in which jobs vary as much as processes do.

    A policy that plans may put two nearly equal jobs in either order, and everything after that follows: of two live
    runs of the same jobs neither is the right one. So this returns the mean of some simulated runs, not a single one.
    """
    results = [run_simulated(_varied(workload, random.Random(seed + run)), terms) for run in range(runs)]
    makespans_s = [_known(result.makespan_s) for result in results]
    jcts_s = [_known(result.mean_jct_s) for result in results]
    return TwinForecast(
        statistics.fmean(makespans_s),
        statistics.fmean(jcts_s),
        statistics.stdev(makespans_s),
        statistics.stdev(jcts_s),
        statistics.fmean(int(result.ledger.preemptions.sum()) for result in results),
    )


def _varied(workload: Workload, dice: random.Random) -> Workload:
    factors = [dice.uniform(1 - VARIES, 1 + VARIES) for _ in workload.jobs]
    jobs = zip(workload.jobs, factors, strict=True)
    return Workload.of([replace(job, duration_s=_known(job.duration_s) * factor) for job, factor in jobs])


def _known(seconds: float | None) -> float:
    assert seconds is not None
    return seconds


def _request(job: SleepingJob, report_every: int) -> JobRequest:
    return JobRequest(
        command=(
            sys.executable,
            "-I",
            "-S",
            str(SLEEPER),
            str(job.steps),
            str(job.step_s),
            str(report_every),
        ),
        user=job.user,
        name=job.name,
        gpus=job.gpus,
        preempt=job.preempt,
        expected_s=STEP_COST * job.steps * job.step_s + RESTART_S,
        grace_s=10.0,
    )


def _ended_s(record: JobRecord) -> float:
    assert record.ended_s is not None
    return record.ended_s


def _began_s(folder: Path, record: JobRecord) -> dict[int, float]:
    """When the attempts of a job began to train, by number; one that was stopped before that is missing."""
    text = (folder / "jobs" / record.id / "checkpoints" / "times.jsonl").read_text(encoding="utf-8")
    notes = [json.loads(line) for line in text.splitlines()]
    return {note["restart"] + 1: note["began_s"] for note in notes}


class _Holds:
    """Listens to a scheduler and notes when each job was granted GPUs, and for how long it held some in all."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._state = scheduler.state
        self._since_s: dict[int, float] = {}
        self.granted_s: dict[int, list[float]] = {}
        self.held_s: dict[int, float] = {}
        scheduler.watchers.append(self._decided)
        scheduler.listeners.append(self._happened)

    def _decided(self, decision: Decision, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Adjustment):
                continue
            self._let_go(action.job, self._state.now_s)
            if not isinstance(action, Suspend):
                self._since_s[action.job] = self._state.now_s
                self.granted_s.setdefault(action.job, []).append(self._state.now_s)

    def _happened(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, JobFinished):
                self._let_go(event.job, event.time_s)

    def _let_go(self, job: int, now_s: float) -> None:
        since_s = self._since_s.pop(job, now_s)
        self.held_s[job] = self.held_s.get(job, 0.0) + now_s - since_s


def _starts_s(records: Sequence[JobRecord], folder: Path, holds: _Holds, origin_s: float) -> dict[int, list[float]]:
    """For each job, how long each of its processes took from the grant of GPUs until it trained, or was stopped."""
    starts_s: dict[int, list[float]] = {}
    for record in records:
        granted_s = [origin_s + time_s for time_s in holds.granted_s[record.number]]
        began_s = _began_s(folder, record)
        for attempt in record.attempts:
            assert attempt.ended_s is not None
            grant_s = max(time_s for time_s in granted_s if time_s <= attempt.launched_s + CLOCKS_S)
            until_s = began_s.get(attempt.number, attempt.ended_s)
            starts_s.setdefault(record.number, []).append(until_s - grant_s)
    return starts_s


def _spec(record: JobRecord, held_s: float, starts_s: Sequence[float], mean_s: float, origin_s: float) -> JobSpec:
    """A job as the live run saw it: how long it held GPUs in all, less the time of its restarts, and their cost.

    A step that ends after the job was asked to stop belongs to neither: no job was charged for it.
    """
    request, again_s = record.request, starts_s[1:]
    return JobSpec(
        id=record.id,
        submitted_s=record.submitted_s - origin_s,
        gpus=request.gpus,
        duration_s=held_s - sum(again_s),
        user=request.user,
        name=request.name,
        checkpoint_s=0.0 if request.preempt == "suspend" else statistics.fmean(again_s or (mean_s,)),
    )
