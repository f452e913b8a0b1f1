"""How long a policy decides is measured, whatever rhythm its long decisions have. These tests count their clock."""

from __future__ import annotations

import time

import pytest

from fairway import Workload, simulate
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.policies import make_policy
from fairway.testing import job

ROUNDS = 3000
SHORT_S, LONG_S = 0.001, 1.0


class Periodic:
    """Asks to be woken every second, and plans in every so-many-th decision, which takes long."""

    name, knows, round_s = "periodic", frozenset[str](), 0.0

    def __init__(self, every: int, first: int) -> None:
        self.every, self.first = every, first
        self.decisions = 0
        self.clock_s = 0.0
        self.inner = make_policy("fifo")

    def decide(self, snapshot: Snapshot) -> Decision:
        self.clock_s += LONG_S if self.decisions % self.every == self.first else SHORT_S
        self.decisions += 1
        return self.inner.decide(snapshot).waking(snapshot.now_s + 1.0)


@pytest.mark.parametrize(("every", "first"), [(64, 63), (64, 0), (64, 40), (10, 3), (1, 0)])
def test_long_decisions_count_once_each_in_any_rhythm(monkeypatch: pytest.MonkeyPatch, every: int, first: int) -> None:
    policy = Periodic(every, first)
    with monkeypatch.context() as patched:
        patched.setattr(time, "process_time", lambda: policy.clock_s)
        result = simulate(Workload.of([job("a", 1, float(ROUNDS))]), cluster="v100:1", policy=policy)
    assert policy.decisions >= ROUNDS
    assert result.figures()["decide_cpu_s"] == pytest.approx(policy.clock_s)
