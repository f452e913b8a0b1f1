"""Simulated jobs whose batch size a policy may choose: what they report, and what another batch does to them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fairway import Workload, simulate
from fairway.core.batch import BatchLimits, Split, Tuning
from fairway.core.decision import Decision, Reason
from fairway.core.errors import InputError
from fairway.core.job import JobSpec, job_to_dict
from fairway.core.snapshot import Snapshot
from fairway.models.goodput import goodput
from fairway.models.step_time import StepModel, gradient_s, step_s
from fairway.policies import make_policy
from fairway.policies.priorities import by_priority
from fairway.runtime.journal.entries import spec_from_plain
from fairway.simulator.faults import Faults
from fairway.simulator.result import Result
from fairway.testing import cluster
from fairway.testing.harness import run_policy, unfinished
from fairway.traces import pollux_like, read_trace, write_trace

STEP = (0.02, 0.0007, 0.015, 0.012, 0.082, 0.0007, 1.24)
TUNING = Tuning(128, 4096, 32, 1024, STEP, ((0.5, 500.0), (1.0, 20000.0)))


def tuned(name: str = "a", gpus: int = 1, duration_s: float = 1000.0, **more: Any) -> JobSpec:
    return JobSpec(name, 0.0, gpus, duration_s=duration_s, adaptation="tuned", **{"tuning": TUNING, **more})


@dataclass
class Scripted:
    """A policy that gives its one job GPUs and splits by time, and notes what it sees."""

    script: dict[float, tuple[int, Split | None]]
    seen: list[tuple[float, Any]] = field(default_factory=list)

    name: ClassVar[str] = "scripted"
    knows: ClassVar[frozenset[str]] = frozenset({"goodput"})
    round_s: ClassVar[float] = 50.0

    def decide(self, snapshot: Snapshot) -> Decision:
        gpus, split = self.script[max(time_s for time_s in self.script if time_s <= snapshot.now_s)]
        self.seen.append((snapshot.now_s, snapshot.facts(0)))
        grants = np.array([gpus], dtype=np.int64)
        reasons = np.array([0 if gpus else int(Reason.OTHER)], dtype=np.int8)
        return Decision(grants, reasons, batches={} if split is None else {0: split})


def run(policy: Any, *jobs: JobSpec, where: str = "t4:2x4", **more: Any) -> Result:
    return simulate(Workload.of(list(jobs)), cluster=where, policy=policy, **more)


def worth(noise: float, nodes: int, gpus: int, split: Split) -> float:
    """Goodput by the model of the job."""
    return float(goodput(StepModel(*STEP), noise, 128, nodes, gpus, *split))


def test_a_job_with_its_own_batch_lasts_as_long_as_it_says() -> None:
    for policy in ("fifo", "pollux:p=1"):
        rigid = run(policy, tuned(tuning=None))
        assert rigid.jct_s.tolist() == [1000.0]
    assert run("fifo", tuned()).jct_s.tolist() == [1000.0]
    assert run(Scripted({0.0: (1, None)}), tuned()).jct_s.tolist() == [1000.0]


def test_goodput_says_how_much_faster_another_batch_is() -> None:
    split, own = Split(128, 1), Split(128)
    result = run(Scripted({0.0: (4, split)}), tuned())
    factors = [worth(noise, 1, 4, split) / worth(noise, 1, 1, own) for _, noise in TUNING.noise]
    assert result.jct_s[0] == pytest.approx(500.0 / factors[0] + 500.0 / factors[1], abs=1e-5)
    assert result.ledger.batches == [(0, 0.0, 1024)]


def test_another_batch_alone_costs_nothing() -> None:
    small, large = Split(64), Split(128)
    result = run(Scripted({0.0: (2, small), 100.0: (2, large)}), tuned())
    done = 100.0 * worth(500.0, 1, 2, small) / worth(500.0, 1, 1, Split(128))
    later = [worth(noise, 1, 2, large) / worth(noise, 1, 1, Split(128)) for _, noise in TUNING.noise]
    assert result.jct_s[0] == pytest.approx(100.0 + (500.0 - done) / later[0] + 500.0 / later[1], abs=1e-5)
    assert result.ledger.starts.tolist() == [1]
    assert result.ledger.batches == [(0, 0.0, 128), (0, 100.0, 256)]


def test_a_job_reports_its_limits_at_once_and_its_timings_after_a_step() -> None:
    policy = Scripted({0.0: (2, Split(64)), 100.0: (2, Split(128))})
    run(policy, tuned(), restart_cost_s=0.0)
    seen = dict(policy.seen)
    assert seen[0.0].adaptive.limits == BatchLimits(128, 4096, 32, 1024, True)
    assert seen[0.0].adaptive.timings == ()
    assert math.isnan(seen[0.0].noise_scale)
    (first,) = seen[50.0].adaptive.timings
    assert first[:4] == (1, 2, 64, 0)
    assert first.step_s == pytest.approx(float(step_s(StepModel(*STEP), 1, 2, 64)))
    assert first.gradient_s == pytest.approx(float(gradient_s(StepModel(*STEP), 64)))
    assert seen[50.0].noise_scale == 500.0
    assert seen[100.0].adaptive.reports == 1
    assert [timing.local for timing in seen[150.0].adaptive.timings] == [64, 128]
    assert policy.seen[-1][1].noise_scale == 20000.0


def test_a_job_in_its_restart_has_nothing_to_report_yet() -> None:
    policy = Scripted({0.0: (1, Split(128)), 100.0: (2, Split(64))})
    run(policy, tuned(), restart_cost_s=70.0)
    seen = dict(policy.seen)
    assert seen[150.0].adaptive.reports == 1
    assert seen[200.0].adaptive.reports == 2


def test_nobody_is_told_about_goodput_who_does_not_ask() -> None:
    class Deaf(Scripted):
        knows: ClassVar[frozenset[str]] = frozenset()

    policy = Deaf({0.0: (1, None)})
    run(policy, tuned())
    assert all(facts.adaptive is None for _, facts in policy.seen)


def test_a_job_that_may_be_adapted_may_have_as_many_gpus_as_its_batch_can_feed() -> None:
    result = run(Scripted({0.0: (8, Split(512))}), tuned())
    assert result.finished == 1
    assert result.ledger.segments[0][3] == tuple(range(8))


def test_pollux_is_ahead_of_policies_that_cannot_adapt() -> None:
    jobs = [job for job in pollux_like(24, seed=3, span_h=0.5, rigid=0.1).jobs if (job.duration_s or 0) < 7200]
    means = {name: run(name, *jobs, where="t4:4x4").mean_jct_s or 0.0 for name in ("pollux", "tiresias", "las")}
    assert means["pollux"] < 0.8 * min(means["tiresias"], means["las"])


def small_jobs() -> list[JobSpec]:
    """Generated jobs that are short and fit into four GPUs."""
    drawn = pollux_like(30, seed=2, span_h=0.5).jobs
    return [job for job in drawn if job.gpus <= 4 and (job.duration_s or 0.0) < 3600.0]


ADAPTING = pytest.mark.parametrize(
    ("policy", "where"), [("pollux", "t4:4x4"), ("sia", "t4:4x4"), ("sia", "t4:2x4,v100:2x4")]
)
"""Policies that choose batches, on clusters of 4 nodes."""


@ADAPTING
def test_all_jobs_end_although_nodes_fail(policy: str, where: str) -> None:
    jobs = small_jobs()
    ended = run_policy(make_policy(policy), jobs, cluster(where), faults=Faults(mtbf_s=10_000.0, seed=1))
    assert unfinished(ended, jobs) == []


@ADAPTING
def test_priorities_keep_the_batches(policy: str, where: str) -> None:
    ranked = [replace(job, priority=at % 3) for at, job in enumerate(small_jobs())]
    layered = run_policy(by_priority(make_policy(policy)), ranked, cluster(where))
    assert unfinished(layered, ranked) == []


@pytest.mark.parametrize("policy", ["pollux", "sia"])
def test_tenants_keep_the_batches(tmp_path: Path, policy: str) -> None:
    (tmp_path / "tenants.toml").write_text('[tenants.a]\ncells = ["2x4"]\n[tenants.b]\ncells = ["1x4"]\n')
    queued = [replace(job, queue="ab"[at % 2]) for at, job in enumerate(small_jobs())]
    result = run(policy, *queued, where="t4:4x4", tenants=str(tmp_path / "tenants.toml"))
    assert result.finished == len(queued)
    assert {job for job, _, _ in result.ledger.batches} == {
        at for at, job in enumerate(result.specs) if job.tuning is not None
    }


def test_under_other_rules_such_jobs_are_rigid() -> None:
    for rules in ("tiresias", "gavel"):
        result = run("pollux", tuned(gpus=2, duration_s=900.0), rules=rules)
        assert result.ledger.batches == []
        assert result.finished == 1


def test_a_tuning_survives_the_trace_and_the_journal(tmp_path: Any) -> None:
    workload = pollux_like(12, seed=1)
    write_trace(workload, tmp_path / "jobs.jsonl")
    assert read_trace(str(tmp_path / "jobs.jsonl")).jobs == workload.jobs
    assert [spec_from_plain(job_to_dict(job)) for job in workload.jobs] == list(workload.jobs)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"largest_batch": 64}, "the largest batch 64 is below the first batch 128"),
        ({"step_times": STEP[:6]}, "are not the seven parameters"),
        ({"step_times": (math.nan, *STEP[1:])}, "are not the seven parameters"),
        ({"step_times": (0.0, *STEP[1:])}, "a pass takes more than 0 s"),
        ({"noise": ((0.5, 1.0),)}, "the last noise scale must hold until 1"),
        ({"noise": ((1.0, -1.0),)}, "noise scales are not negative"),
    ],
)
def test_a_tuning_that_makes_no_sense_is_one_line(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=f"job 'a': tuning: .*{why}"):
        tuned(tuning=TUNING._replace(**changed))


def test_a_tuning_needs_the_adaptation_tuned() -> None:
    with pytest.raises(InputError, match="tuning is for jobs of the adaptation 'tuned'"):
        replace(tuned(), adaptation="none")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("1", "is not an object with the keys"),
        ('{"first_batch": 1}', "is not an object with the keys"),
        (json.dumps(TUNING.plain() | {"first_batch": "x"}), "tuning: first_batch 'x' is not a whole number"),
        (json.dumps(TUNING.plain() | {"step_times": 3}), "step_times is a list of numbers"),
        (json.dumps(TUNING.plain() | {"noise": [[1.0, "x"]]}), "tuning 'x' is not a number"),
    ],
)
def test_a_tuning_in_a_trace_is_read_strictly(tmp_path: Any, value: str, why: str) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text(f'{{"id": "a", "submitted_s": 0, "duration_s": 5, "adaptation": "tuned", "tuning": {value}}}\n')
    with pytest.raises(InputError, match=why):
        read_trace(str(path))
