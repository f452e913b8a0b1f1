"""Rolling a cluster forward from the middle: the state of an instant in, future starts and ends out.

The loop, the policy, its memory and the job numbers are those of the snapshot. Only the engine is simulated: in it,
every job does its expected work at the speeds seen so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fairway.core import columns as c
from fairway.core.action import Action, Adjustment, Launch
from fairway.core.event import Event, JobStarted, JobSubmitted, RateChanged
from fairway.core.job import JobSpec, Regime
from fairway.core.plan import Placer
from fairway.core.policy import Policy
from fairway.core.round import Loop
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.core.state_from_snapshot import resumed
from fairway.models.profile import load_profile
from fairway.simulator.engine import SimulatedEngine
from fairway.simulator.ledger import Ledger
from fairway.simulator.pairing import SimulatedPairing
from fairway.simulator.rates import Rates, elastic_factor
from fairway.simulator.rules import Rules

_ONE_REGIME = (Regime(1.0),)
_NOTHING: Mapping[int, float] = {}
Span: TypeAlias = tuple[int, float, float | None, tuple[int, ...]]


class Horizon(NamedTuple):
    """How far to look ahead: simulated seconds, steps of the loop, and seconds of waiting for the answer."""

    horizon_s: float = 30 * 86400.0
    steps: int = 200_000
    wall_s: float = 10.0


AS_FAR = Horizon()


class Outlook(NamedTuple):
    """Future starts and ends by job number, on the clock of the snapshot. A job that is missing has not come that far.

    `until_s` is where the look ahead stopped. `cut` says why, if that was not the end. `spans` has who is expected on
    which GPUs, if that was asked for: job, from, to (None if it stays longer than was looked at) and GPUs.
    """

    started_s: dict[int, float]
    finished_s: dict[int, float]
    preemptions: dict[int, int]
    until_s: float
    cut: str
    spans: Sequence[Span] = ()


class SeenRates(Rates):
    """Rates as they were seen: every job has its own work and speeds, in its own unit."""

    def __init__(self, state: State) -> None:
        super().__init__(state.cluster, load_profile(None), spread_matters=False)
        snapshot = state.snapshot()
        speeds = snapshot.speeds.copy()
        for row in snapshot.running_rows.tolist():
            # The present speed of a running job is a better estimate than the one at its submission.
            own = speeds[snapshot.gpu_type[row], row]
            now = float(snapshot.rate[row]) / elastic_factor(int(snapshot.held[row]), int(snapshot.gpus[row]))
            speeds[:, row] *= now / own if now > 0 and own > 0 and snapshot.throttle[row] == 1.0 else 1.0
        self._work, self._by_type = snapshot.floats[c.WORK].copy(), speeds
        self._row = {state.ids[job]: row for row, job in enumerate(snapshot.jobs.tolist())}

    def work(self, spec: JobSpec) -> float:
        """How much a job has to do."""
        return float(self._work[self._row[spec.id]])

    def speeds(self, spec: JobSpec, batch_size: int | None) -> tuple[float, ...]:
        """A job's rate on its own gang for each GPU type."""
        return tuple(self._by_type[:, self._row[spec.id]].tolist())

    def regimes(self, spec: JobSpec) -> tuple[Regime, ...]:
        """One regime: the job goes on as now to the end."""
        return _ONE_REGIME


class _OnDemand(dict[int, Any]):
    """Makes an entry when it is first needed: of thousands of waiting jobs, few start within the horizon."""

    def __init__(self, make: Callable[[int], object]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, at: int) -> Any:
        self._make(at)
        return self[at]


class Midway(SimulatedEngine):
    """A simulated engine that begins in the middle: all jobs are submitted, have done a part of their work, and wait.

    A job's number is its row in the state at that instant. `falls_back` gives the progress to which a job goes back
    when it is taken off its GPUs, for jobs that cannot save theirs. `limit_left_s` is how long jobs may still compute
    before their time limits end them, whatever work is left.
    """

    def __init__(
        self,
        state: State,
        *,
        restart_s: Mapping[int, float],
        falls_back: Mapping[int, float],
        limit_left_s: Mapping[int, float],
        located: bool,
        round_s: float,
    ) -> None:
        rules = Rules("live", min_run_s=state.min_run_s)
        # What the policy is told of jobs is in the state already.
        super().__init__(state.cluster, (), SeenRates(state), rules, located=located, round_s=round_s)
        snapshot = state.snapshot()
        self.numbers: list[int] = snapshot.jobs.tolist()
        self.left = len(self.numbers)
        self.ledger = Ledger(state.cluster, self.left)
        self.now_s = self._quantised(state.now_s)
        self._progress, self._specs, self._restart_s = snapshot.progress.copy(), dict(state.specs), restart_s
        self._falls_back, self._limit_left_s = falls_back, dict(limit_left_s)
        self._active = _OnDemand(self._take_up)
        self.pairing = SimulatedPairing(self.rates, self._active)

    def _take_up(self, at: int) -> None:
        job = self.numbers[at]
        spec = replace(self._specs[job], submitted_s=self.now_s, checkpoint_s=self._restart_s.get(job))
        self._submit(self.now_s, at, spec)
        self._active[at].progress = float(self._progress[at])

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        """Carry out the actions, and report the work that was lost by them."""
        events = list(super().enact(now_s, actions))
        for action in actions:
            if self._falls_back and not isinstance(action, Launch | Adjustment):
                job = self._active[action.job]
                if self.numbers[action.job] in self._falls_back:
                    events.append(RateChanged(now_s, action.job, job.progress, job.rate))
        return events

    def spans(self, until_s: float) -> list[Span]:
        """Who has had which GPUs until an instant, in order of time."""
        over: list[Span] = [
            (self.numbers[at], from_s, to_s if to_s <= until_s else None, gpus)
            for at, from_s, to_s, gpus in self.ledger.segments
            if from_s < until_s
        ]
        # A job that has no entry yet has no GPUs.
        holding = [(at, job) for at, job in self._active.items() if job.gpus and job.since_s < until_s]
        over += [(self.numbers[at], job.since_s, None, job.gpus) for at, job in holding]
        return sorted(over, key=lambda one: (one[1], one[0]))

    def _change_time_s(self, job: Any, exact_s: float) -> float:
        """When a job has done its work, or reaches its time limit."""
        left_s = self._limit_left_s.get(self.numbers[job.job], math.inf)
        return super()._change_time_s(job, max(min(exact_s, job.warm_s + left_s), job.ready_s))

    def _release(self, now_s: float, job: Any, events: list[Event]) -> None:
        left_s = self._limit_left_s.get(self.numbers[job.job])
        if left_s is not None:
            self._limit_left_s[self.numbers[job.job]] = max(left_s - max(now_s - job.warm_s, 0.0), 0.0)
        super()._release(now_s, job, events)
        kept = self._falls_back.get(self.numbers[job.job])
        if kept is not None:
            job.progress = min(job.progress, kept)


class Numbered:
    """An engine whose jobs have other numbers outside than 0, 1, 2 …"""

    def __init__(self, engine: Midway) -> None:
        self.engine = engine
        self.numbers = engine.numbers
        self._inside = {number: at for at, number in enumerate(self.numbers)}

    def poll(self, until_s: float) -> Sequence[Event]:
        """The engine's events, with the numbers used outside."""
        return [self._told(event) for event in self.engine.poll(until_s)]

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        """Carry out actions, with the engine's own numbers."""
        return [self._told(event) for event in self.engine.enact(now_s, [self._meant(action) for action in actions])]

    def _told(self, event: Any) -> Event:
        told: Event = event._replace(job=self.numbers[event.job]) if hasattr(event, "job") else event
        return told

    def _meant(self, action: Any) -> Action:
        changed = {"job": self._inside[action.job]}
        if getattr(action, "host", -1) >= 0:
            changed["host"] = self._inside[action.host]
        meant: Action = action._replace(**changed)
        return meant


def look_onward(
    snapshot: Snapshot,
    specs: Mapping[int, JobSpec],
    policy: Policy,
    placer: Placer,
    *,
    round_s: float,
    min_run_s: float,
    restarts_spared: float = 0.0,
    restart_s: Mapping[int, float],
    falls_back: Mapping[int, float] = _NOTHING,
    limit_left_s: Mapping[int, float] = _NOTHING,
    newcomers: Sequence[JobSubmitted] = (),
    limits: Horizon = AS_FAR,
    wanted: Collection[int] = (),
    observer: Any = None,
    spans: bool = False,
) -> Outlook:
    """Roll a snapshot (a copy) forward under a policy, until all jobs (or those `wanted`) are done or a limit is met.

    `restart_s` is what a stop and restart of each job costs. Jobs in `falls_back` go back to the progress given there
    when they are stopped; those in `limit_left_s` end once they have computed for so long. `newcomers` are submitted
    at the instant of the snapshot. `observer` observes the loop. With `spans` the answer tells who is expected on which
    GPUs.
    """
    deadline_s = time.monotonic() + limits.wall_s
    state = resumed(snapshot, specs, min_run_s=min_run_s, restarts_spared=restarts_spared)
    for event in newcomers:
        state.apply(event)
    engine = Midway(
        state,
        restart_s=restart_s,
        falls_back=falls_back,
        limit_left_s=limit_left_s,
        located=placer.located,
        round_s=round_s,
    )
    world, numbers = Numbered(engine), engine.numbers
    _set_up(state, engine, world)
    loop = Loop(world, state, policy, placer, round_s=round_s, observer=observer)
    cut = _roll(loop, engine, [at for at, number in enumerate(numbers) if number in wanted], limits, deadline_s)
    # The last step may end far beyond the horizon.
    ledger, far_s = engine.ledger, snapshot.now_s + limits.horizon_s
    return Outlook(
        _known(numbers, ledger.started_s.tolist(), far_s),
        _known(numbers, ledger.finished_s.tolist(), far_s),
        {numbers[at]: int(ledger.preemptions[at]) for at in ledger.preemptions.nonzero()[0].tolist()},
        min(state.now_s, far_s),
        cut,
        engine.spans(min(state.now_s, far_s)) if spans else (),
    )


def _set_up(state: State, engine: Midway, world: Numbered) -> None:
    """Give jobs in the engine the GPUs that they hold in the state. The state knows the events of that already."""
    state.now_s = engine.now_s
    snapshot = state.snapshot()
    host, kinds, throttle = snapshot.host, snapshot.gpu_type, snapshot.throttle
    rows = sorted(snapshot.running_rows.tolist(), key=lambda row: host[row] >= 0)
    progress = {int(snapshot.jobs[row]): float(snapshot.progress[row]) for row in rows}
    launches = [
        Launch(int(snapshot.jobs[row]), snapshot.gpus_held(row), int(kinds[row]), int(host[row]), float(throttle[row]))
        for row in rows
    ]
    for event in world.enact(state.now_s, launches):
        if isinstance(event, JobStarted | RateChanged):
            state.apply(RateChanged(event.time_s, event.job, progress[event.job], event.rate))
    # From now on, a start is a restart for jobs that have run before.
    engine.ledger.starts[:] = snapshot.launches


def _roll(loop: Loop, engine: SimulatedEngine, wanted: list[int], limits: Horizon, deadline_s: float) -> str:
    """Step until there is nothing left to find out. Returns what stopped it before that, or ""."""
    state, began_s = loop.state, loop.state.now_s
    if loop.round_s == 0 and state.active:
        loop.run_round()
    left = engine.left
    for _ in range(limits.steps):
        if not loop.step():
            return ""
        if engine.left != left:
            left = engine.left
            if wanted and not np.isnan(engine.ledger.finished_s[wanted]).any():
                return ""
        if state.now_s - began_s > limits.horizon_s:
            return f"nothing was looked at beyond {_span(limits.horizon_s)}"
        if time.monotonic() > deadline_s:
            return f"looking ahead was stopped after {limits.wall_s:g} s, at {_span(state.now_s - began_s)} from now"
    if not limits.steps:
        return ""
    return f"looking ahead was stopped after {limits.steps} steps, at {_span(state.now_s - began_s)} from now"


def _span(seconds: float) -> str:
    """A length of time in words."""
    for name, unit_s in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.3g} {name}"
    return f"{seconds:.3g} s"


def _known(numbers: Sequence[int], times_s: Sequence[float], far_s: float) -> dict[int, float]:
    return {number: time_s for number, time_s in zip(numbers, times_s, strict=True) if time_s <= far_s}
