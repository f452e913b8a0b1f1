"""One run of a policy with every law checked: on the simulated engine, or on one that makes trouble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairway.core.action import Action
from fairway.core.arrays import frozen
from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.event import Event
from fairway.core.job import JobSpec
from fairway.core.policy import Layer, Policy
from fairway.core.round import Engine, Loop
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.profile import load_profile
from fairway.placement import placement as placement_named
from fairway.simulator.engines import engine_of, rates_of
from fairway.simulator.engines import runs_queues as can_run_queues
from fairway.simulator.faults import Faults
from fairway.simulator.job_engine import EngineOptions, JobEngine
from fairway.simulator.rules import Rules, rules_named
from fairway.testing.invariants import InvariantError, Invariants

MAX_STEPS = 20_000
"""More steps than any run of a small workload needs: beyond this, the policy goes round in circles."""

Check = Callable[[Snapshot, Decision], None]


@dataclass
class Run:
    """A run and its record: the loop with its state, the engine, and some of the snapshots on the way."""

    loop: Loop
    engine: Engine
    invariants: Invariants
    snapshots: list[Snapshot] = field(default_factory=list)
    steps: int = 0


class _Watcher:
    """Invariants, and a copy of every n-th snapshot."""

    def __init__(self, invariants: Invariants, every: int, checks: Sequence[Check]) -> None:
        self.invariants = invariants
        self.every = every
        self.checks = checks
        self.snapshots: list[Snapshot] = []
        self.rounds = 0

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        self.invariants.after_events(state, events)

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        self.invariants.after_round(snapshot, decision, actions)
        for check in self.checks:
            check(snapshot, decision)
        if self.every and self.rounds % self.every == 0:
            self.snapshots.append(snapshot.copy())
        self.rounds += 1


class Sealed(Layer):
    """A policy whose decisions cannot be edited: code that tries to change their arrays fails."""

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = self.inner.decide(snapshot)
        frozen(decision.gpus)
        frozen(decision.reasons)
        return decision


def run_engine(
    engine: Engine,
    policy: Policy,
    cluster: Cluster,
    *,
    placement: str = "packed",
    round_s: float | None = None,
    min_run_s: float = 0.0,
    seed: int = 0,
    keep_every: int = 0,
    checks: Sequence[Check] = (),
    runs_queues: bool = False,
) -> Run:
    """Drive the loop over an engine to the end, with the invariants on; then replay the journal."""
    invariants = Invariants()
    watcher = _Watcher(invariants, keep_every, checks)
    state = State(cluster, min_run_s=min_run_s, seed=seed, runs_queues=runs_queues)
    length_s = policy.round_s if round_s is None else round_s
    watched, placer = invariants.watch(engine), placement_named(placement)
    loop = Loop(watched, state, Sealed(policy), placer, round_s=length_s, observer=watcher)
    run = Run(loop, engine, invariants, watcher.snapshots)
    while loop.step():
        run.steps += 1
        if run.steps > MAX_STEPS:
            raise InvariantError(f"the run does not come to an end: {run.steps} steps, now {state.now_s} s")
    invariants.check_state(state)
    invariants.check_replay()
    return run


def run_policy(
    policy: Policy,
    jobs: Sequence[JobSpec],
    cluster: Cluster,
    *,
    rules: str | Rules = "native",
    placement: str = "packed",
    faults: Faults | None = None,
    seed: int = 0,
    keep_every: int = 0,
    checks: Sequence[Check] = (),
) -> Run:
    """Simulate jobs, sorted by submit time, under a policy with the invariants on."""
    world = rules_named(rules)
    placer = placement_named(placement)
    tasks = "tasks" in policy.knows and can_run_queues(world)
    rates = rates_of(world, cluster, load_profile(None), jobs, whole_gangs=not tasks)
    round_s = policy.round_s if world.round_s is None else world.round_s
    about: EngineOptions = {"located": placer.located, "faults": faults, "tells": policy.knows, "seed": seed}
    engine, round_s = engine_of(cluster, jobs, rates, world, **about | {"round_s": round_s})
    return run_engine(
        engine,
        policy,
        cluster,
        placement=placement,
        round_s=round_s,
        min_run_s=world.min_run_s,
        seed=seed,
        keep_every=keep_every,
        checks=checks,
        runs_queues=tasks,
    )


def unfinished(run: Run, jobs: Sequence[JobSpec]) -> list[str]:
    """The ids of jobs that a simulated run left undone."""
    if not isinstance(run.engine, JobEngine):
        raise TypeError("only a simulated run knows")
    return [jobs[row].id for row in np.isnan(run.engine.ledger.finished_s).nonzero()[0].tolist()]
