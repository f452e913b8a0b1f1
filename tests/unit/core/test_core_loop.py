"""The loop: when rounds run, event-driven and at a fixed length, and what it tells its observer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fairway.core.action import Action, Launch
from fairway.core.admission import admit
from fairway.core.decision import Decision
from fairway.core.errors import PolicyError
from fairway.core.event import Event, JobFinished, JobStarted, Woken
from fairway.core.round import Loop
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.placement import placement
from fairway.testing import FakeEngine, Invariants, Troubles, cluster, job
from fairway.testing.builders import submitted


@dataclass
class Asked:
    """First come first served; notes when it was asked and what memory it was handed."""

    wakes: list[float] = field(default_factory=list)
    name: str = "asked"
    knows: frozenset[str] = frozenset()
    round_s: float = 0.0
    at_s: list[float] = field(default_factory=list)
    memories: list[object] = field(default_factory=list)

    def decide(self, snapshot: Snapshot) -> Decision:
        self.at_s.append(snapshot.now_s)
        self.memories.append(dict(snapshot.memory))
        decision = admit(snapshot, preempt=False).remembering({"rounds": len(self.at_s)})
        return decision.waking(self.wakes.pop(0)) if self.wakes else decision


def _loop(policy: Asked, engine: FakeEngine, round_s: float = 0.0) -> Loop:
    invariants = Invariants()
    watched = invariants.watch(engine)
    return Loop(watched, State(engine.cluster), policy, placement("packed"), round_s=round_s, observer=invariants)


def _engine(*jobs: tuple[float, float], troubles: Troubles | None = None) -> FakeEngine:
    specs = [job(f"job-{n}", 2, duration_s, at_s) for n, (at_s, duration_s) in enumerate(jobs)]
    return FakeEngine(cluster("v100:4"), specs, troubles)


def test_event_driven_rounds_run_when_something_happens() -> None:
    policy, engine = Asked(), _engine((0.0, 10.0), (5.0, 100.0))
    _loop(policy, engine).run()
    assert policy.at_s == [0.0, 5.0, 10.0]
    assert engine.finished_s == pytest.approx({"job-0": 10.0, "job-1": 105.0})


def test_no_round_runs_without_jobs() -> None:
    policy = Asked()
    _loop(policy, _engine((3.0, 1.0), (50.0, 1.0))).run()
    assert policy.at_s == [3.0, 50.0]


def test_a_policy_is_woken_when_it_asked_to_be() -> None:
    policy = Asked(wakes=[4.0, 20 / 3])
    _loop(policy, _engine((0.0, 10.0))).run()
    assert policy.at_s == pytest.approx([0.0, 4.0, 20 / 3], abs=1e-5)


def test_a_wake_up_is_forgotten_when_the_last_job_leaves() -> None:
    policy, engine = Asked(wakes=[500.0, 500.0]), _engine((0.0, 10.0), (100.0, 10.0))
    _loop(policy, engine).run()
    assert policy.at_s == [0.0, 100.0]


def test_rounds_of_fixed_length_run_at_its_multiples_only() -> None:
    policy, engine = Asked(), _engine((0.0, 25.0), (12.0, 9.0), (13.0, 5.0))
    _loop(policy, engine, round_s=10.0).run()
    assert policy.at_s == [0.0, 20.0, 30.0] or policy.at_s == [0.0, 10.0, 20.0, 30.0]
    assert engine.finished_s == pytest.approx({"job-0": 25.0, "job-1": 29.0, "job-2": 35.0})


def test_thirds_of_seconds_make_whole_rounds() -> None:
    policy, engine = Asked(), _engine((0.0, 2.0))
    _loop(policy, engine, round_s=1 / 3).run()
    assert policy.at_s == pytest.approx([k / 3 for k in range(6)], abs=1e-5)


def test_memory_is_handed_back() -> None:
    policy = Asked()
    loop = _loop(policy, _engine((0.0, 10.0), (5.0, 100.0)))
    loop.run()
    assert policy.memories == [{}, {"rounds": 1}, {"rounds": 2}]
    assert (loop.state.memory, loop.state.round) == ({"rounds": 3}, 3)


def test_a_broken_decision_is_not_carried_out() -> None:
    policy, engine = Asked(wakes=[0.0]), _engine((0.0, 10.0))
    with pytest.raises(PolicyError, match="is not after"):
        _loop(policy, engine).run()
    assert engine.enacted == []


def test_a_refused_job_is_tried_again() -> None:
    engine = _engine((0.0, 10.0), troubles=Troubles(seed=1, refuse=0.7, retry_s=3.0))
    _loop(Asked(), engine).run()
    launches = [action for action in engine.enacted if isinstance(action, Launch)]
    assert engine.finished_s["job-0"] == pytest.approx(10.0 + 3.0 * (len(launches) - 1))


class _Refuses:
    """An engine that refuses a lone launch once, at once, and has nothing to report afterwards."""

    def __init__(self) -> None:
        self.polls: list[list[Event]] = [[submitted(job("a", 2, 10.0), 0, cluster("v100:4"))]]
        self.enacted: list[Action] = []

    def poll(self, until_s: float) -> Sequence[Event]:
        if self.polls:
            return self.polls.pop(0)
        return () if math.isinf(until_s) else (Woken(until_s),)

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        from fairway.core.event import JobEvicted

        self.enacted += actions
        if len(self.enacted) == 1:
            return [JobEvicted(now_s, 0, 0.0, "refused")]
        self.polls.append([JobFinished(now_s + 10.0, 0)])
        return [JobStarted(now_s, 0, 1.0, now_s)]


def test_a_lone_refused_job_does_not_wait_for_ever() -> None:
    engine = _Refuses()
    loop = Loop(engine, State(cluster("v100:4")), Asked(), placement("packed"))
    loop.run()
    assert loop.state.active == 0


def test_an_observer_sees_what_enacting_brought() -> None:
    seen: list[Event] = []

    class Notes:
        def after_events(self, state: State, events: Sequence[Event]) -> None:
            seen.extend(events)

        def after_round(self, snapshot: Snapshot, decision: Decision, actions: Sequence[Action]) -> None: ...

    engine = _engine((0.0, 10.0))
    Loop(engine, State(engine.cluster), Asked(), placement("packed"), observer=Notes()).run()
    assert [type(event).__name__ for event in seen] == ["JobSubmitted", "JobStarted", "JobFinished"]
