"""Jobs of a simulation are told when they end, and that is scored."""

from __future__ import annotations

import pytest

import fairway
from fairway.core.errors import InputError
from fairway.core.job import JobSpec, Workload
from fairway.traces import generate

BUSY = {"jobs": 150, "seed": 3, "gpus": 16, "load": 1.0, "users": 4, "longest_h": 6.0}


def _told(policy: str, promises: int = 60, **about: object) -> dict[str, dict[str, float]]:
    workload = generate("philly-like", **BUSY)  # type: ignore[arg-type]
    about = {"cluster": "v100:2x8", "policy": policy, "skip_impossible": True, "promises": promises, **about}
    told = fairway.simulate(workload, **about).figures()["promises"]  # type: ignore[arg-type]
    assert isinstance(told, dict)
    return told


def test_under_fifo_nothing_that_comes_later_matters() -> None:
    told = _told("fifo", seed=5)
    assert told["finish"]["promises"] == told["start"]["promises"] == 60
    assert told["finish"]["mean_relative_error"] == pytest.approx(0.0, abs=1e-6)
    assert told["finish"]["within"] == 1.0


def test_under_policies_that_preempt_later_jobs_make_promises_wrong() -> None:
    told = _told("las", promises=150)["finish"]
    assert told["mean_relative_error"] > 0.05
    assert 0.7 < told["within"] < 0.97
    assert told == _told("las", promises=150)["finish"]


def test_one_job_that_is_pushed_back() -> None:
    jobs = [JobSpec("long", 0.0, gpus=1, duration_s=100.0), JobSpec("short", 10.0, gpus=1, duration_s=10.0)]
    result = fairway.simulate(
        Workload.of(jobs), cluster="v100:1", policy="srtf", restart_cost_s=0.0, min_run_s=0.0, promises=2
    )
    told = result.figures()["promises"]
    assert told["start"]["median_error_s"] == 0.0
    # The long one was told 100 s and takes 110, the short one ends as told.
    assert told["finish"]["median_error_s"] == pytest.approx(5.0)
    assert told["finish"]["mean_relative_error"] == pytest.approx(0.05)


def test_a_run_without_promises_is_the_same_run() -> None:
    runs = [_run(promises) for promises in (0, 40)]
    assert runs[0] == runs[1]


def _run(promises: int) -> list[float]:
    workload = generate("philly-like", **BUSY)  # type: ignore[arg-type]
    result = fairway.simulate(
        workload, cluster="v100:2x8", policy="max_min_fairness", skip_impossible=True, promises=promises
    )
    return list(result.finished_s.tolist())


def test_promises_are_made_where_a_run_can_be_rolled_forward() -> None:
    with pytest.raises(InputError, match="promises are told under native rules, not tiresias"):
        _told("fifo", rules="tiresias")
    jobs = Workload.of([JobSpec("a", 0.0, gpus=1, duration_s=100.0)])
    result = fairway.simulate(jobs, cluster="v100:1", policy="hare", promises=1)
    assert "promises" not in result.figures()
