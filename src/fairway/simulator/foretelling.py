"""Promises in a simulation: some jobs are told at their submission when they start and end, and that is scored.

The run so far is rolled forward without the jobs that come later, which nobody knows. Run times are known, so errors
come from later jobs and from what they push aside. Intervals are made of the promises that were decided before
(`models/calibration`), as the live scheduler makes them. A forecast takes about as long as the rest of the run, so only
some jobs have one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from fairway.core.action import Action
from fairway.core.decision import Decision
from fairway.core.errors import InputError
from fairway.core.event import Event, JobFinished, JobStarted, JobSubmitted
from fairway.core.job import JobSpec
from fairway.core.plan import Placer
from fairway.core.policy import Policy
from fairway.core.round import Observer
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.calibration import WAITS, Calibration, LeadSpread, Subject
from fairway.models.promise_score import DecidedPromise, figures
from fairway.simulator.engine import SimulatedEngine
from fairway.simulator.roll_forward import AS_FAR, look_onward
from fairway.simulator.rules import Rules

_FAR = AS_FAR._replace(horizon_s=math.inf, steps=10_000_000, wall_s=math.inf)
"""A forecast goes on to the end, however long that takes, so that a run can be repeated."""


class _Open(NamedTuple):
    """A start or end that was told to a job, and is not known yet."""

    subject: Subject
    told_s: float
    lead_s: float
    spread: LeadSpread


class Foretelling:
    """An observer that tells jobs when they start and end. The jobs are drawn by the seed, `count` of them."""

    def __init__(
        self,
        count: int,
        jobs: Sequence[JobSpec],
        policy: Policy,
        placer: Placer,
        rules: Rules,
        *,
        round_s: float,
        seed: int,
        inner: Observer | None = None,
    ) -> None:
        self.decided: list[DecidedPromise] = []
        self._chosen = frozenset(random.Random(seed).sample(range(len(jobs)), min(count, len(jobs))))
        self._users = [job.user for job in jobs]
        self._policy, self._placer, self._rules, self._round_s = policy, placer, rules, round_s
        self._inner = inner
        self._calibration = Calibration()
        self._open: dict[int, list[_Open]] = {}
        self._submitted_s: dict[int, float] = {}

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        """Score what has become known, and tell new jobs what is forecast."""
        if self._inner is not None:
            self._inner.after_events(state, events)
        for event in events:
            kind = _DECIDES.get(type(event))
            if kind is not None and event.job in self._open:  # type: ignore[union-attr]
                self._decide(event.job, kind, event.time_s)  # type: ignore[union-attr]
        new = [event.job for event in events if type(event) is JobSubmitted and event.job in self._chosen]
        if new:
            self._tell(state, new)

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None:
        """Rounds are nothing to be told."""
        if self._inner is not None:
            self._inner.after_round(snapshot, decision, actions)

    def figures(self) -> dict[str, Any]:
        """How good the promises were, by what was promised."""
        kinds = {kind: [one for one in self.decided if one.kind == kind] for kind in ("start", "finish")}
        return {kind: figures(some) for kind, some in kinds.items()}

    def _tell(self, state: State, new: Sequence[int]) -> None:
        costs = {job: spec.checkpoint_s for job, spec in state.specs.items()}
        outlook = look_onward(
            state.snapshot(self._policy.knows).copy(),
            dict(state.specs),
            self._policy,
            self._placer,
            round_s=self._round_s,
            min_run_s=self._rules.min_run_s,
            restart_s={job: self._rules.restart_cost_s if own is None else own for job, own in costs.items()},
            limits=_FAR,
            wanted=frozenset(new),
        )
        for job in new:
            self._submitted_s[job] = state.now_s
            waits = outlook.started_s.get(job, state.now_s) > state.now_s
            for kind, known in (("start", outlook.started_s), ("finish", outlook.finished_s)):
                if job in known:
                    lead_s, subject = known[job] - state.now_s, Subject(self._policy.name, kind, WAITS if waits else "")
                    spread = self._calibration.interval(subject, lead_s)
                    self._open.setdefault(job, []).append(_Open(subject, state.now_s, lead_s, spread))

    def _decide(self, job: int, kind: str, now_s: float) -> None:
        for one in [one for one in self._open[job] if one.subject.kind == kind]:
            self._open[job].remove(one)
            actual_s = now_s - one.told_s
            self._calibration.learn(one.subject, one.lead_s, one.spread, actual_s)
            whole_s = one.told_s + one.lead_s - self._submitted_s[job]
            when = (one.told_s, now_s, one.lead_s, one.spread.low_s, one.spread.high_s, actual_s, whole_s)
            about = (self._policy.name, self._users[job], kind, one.subject.basis)
            self.decided.append(DecidedPromise(*about, *when, one.spread.scored_as))


_DECIDES: dict[type[Any], str] = {JobStarted: "start", JobFinished: "finish"}


def told_by(
    count: int,
    engine: object,
    jobs: Sequence[JobSpec],
    policy: Policy,
    placer: Placer,
    rules: Rules,
    **about: Any,
) -> Foretelling | None:
    """The observer that tells `count` jobs; None if there are none, or if the run cannot be rolled forward.

    `InputError` under rules for which that is not so.
    """
    if count and rules.name != "native":
        raise InputError(f"promises are told under native rules, not {rules.name}")
    able = count and type(engine) is SimulatedEngine
    return Foretelling(count, jobs, policy, placer, rules, **about) if able else None
