"""The event-driven engine agrees with a brute-force simulator that steps through time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from stepped_reference import fifo, run_stepped, srtf

from fairway import JobSpec, Workload, simulate
from fairway.policies import make_policy
from fairway.simulator.rules import Rules
from fairway.testing import FakeEngine, random_workload
from fairway.testing.builders import cluster
from fairway.testing.harness import run_engine


def _workload(seed: int, unit: float) -> Workload:
    random = np.random.default_rng(seed)
    jobs = [
        JobSpec(
            f"job-{n}",
            submitted_s=int(random.integers(0, 12)) * unit,
            gpus=int(random.choice([1, 2, 3, 4])),
            duration_s=int(random.integers(0, 15)) * unit,
        )
        for n in range(int(random.integers(1, 9)))
    ]
    return Workload.of(jobs)


@pytest.mark.parametrize("unit", [1.0, 1 / 3])
@pytest.mark.parametrize("seed", range(25))
def test_fifo_and_backfill_agree_with_stepping(seed: int, unit: float) -> None:
    workload, step = _workload(seed, unit), Fraction(unit).limit_denominator(10)
    for policy, strict in (("fifo", True), ("backfill", False)):
        result = simulate(workload, cluster="v100:4", policy=policy, rules="native")
        wanted = run_stepped(workload.jobs, 4, fifo, step=step, restart=Fraction(0), preempt=False, strict=strict)
        assert result.finished_s.tolist() == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("restart", [0, 2])
@pytest.mark.parametrize("seed", range(25))
def test_srtf_agrees_with_stepping(seed: int, restart: int) -> None:
    workload = _workload(seed + 100, 1.0)
    rules = Rules("test", restart_cost_s=float(restart))
    result = simulate(workload, cluster="v100:4", policy="srtf", rules=rules)
    step, cost = Fraction(1), Fraction(restart)
    wanted = run_stepped(workload.jobs, 4, srtf, step=step, restart=cost, preempt=True, strict=False)
    assert result.finished_s.tolist() == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "srsf", "las:levels=100/1000", "smallest"])
@pytest.mark.parametrize("seed", range(5))
def test_two_engines_that_share_no_code_agree(seed: int, policy: str) -> None:
    """With no troubles the fake engine is another simulator; restarts are free in both."""
    drawn = random_workload(seed, "v100:2x4", elastic=False).jobs
    jobs = tuple(replace(spec, checkpoint_s=0.0) for spec in drawn)
    result = simulate(Workload(jobs), cluster="v100:2x4", policy=policy, rules=Rules("test"))
    engine = FakeEngine(cluster("v100:2x4"), jobs)
    run_engine(engine, make_policy(policy), engine.cluster)
    theirs = [engine.finished_s[job.id] for job in jobs]
    assert result.finished_s.tolist() == pytest.approx(theirs, abs=1e-3)
