"""The policy `shockwave` on the 120 jobs of Shockwave's artifact (NSDI'23): the published figures, and the comparison.

Needs the published trace and throughputs beside the repository (`../shared/data/gavel`); they are not part of it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairway import simulate
from fairway.core.decision import Decision
from fairway.core.job import Workload
from fairway.core.snapshot import Snapshot
from fairway.models.profile import load_profile
from fairway.simulator.result import Result
from fairway.traces import read_trace
from fairway.traces.generate import shockwave_like

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gavel"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the published traces are not here")

GAVEL = "max_min_fairness:heterogeneity=agnostic"
FAIR = (GAVEL, "finish_time_fairness", "themis", "allox")
"""Gavel, Themis as a linear program and by auctions, and AlloX."""


class Watch:
    """Notes the gaps of all plans, and in how many rounds GPUs idled beside a job that fits."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.idle_rounds = 0

    def after_events(self, state: Any, events: Any) -> None: ...

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: Any) -> None:
        calendar = decision.memory.get("shockwave", {})
        if calendar.get("at") == 1:
            self.gaps.append(float(calendar["gap"]))
        waiting = snapshot.gpus[decision.gpus == 0]
        free = int(snapshot.capacity.sum() - decision.gpus.sum())
        self.idle_rounds += bool(len(waiting) and waiting.min() <= free)


@cache
def _profile() -> Any:
    return load_profile(str(DATA / "tacc_throughputs.json"))


@cache
def _trace() -> Workload:
    return read_trace(str(DATA / "traces" / "shockwave_tacc_120jobs.trace"))


@cache
def _generated(jobs: int, interarrival_s: float, seed: int) -> Workload:
    profile = _profile()
    return shockwave_like(
        jobs=jobs,
        seed=seed,
        mean_interarrival_s=interarrival_s,
        rate=lambda model, batch, gpus: profile.rate(model, batch, "v100", gpus),
    )


def _on(workload: Workload, gpus: int, policy: str, **options: Any) -> Result:
    return simulate(workload, cluster=f"v100:{gpus}x1", policy=policy, profile=_profile(), rules="shockwave", **options)


@cache
def _published(policy: str) -> Result:
    return _on(_trace(), 32, policy)


@cache
def _at_64(policy: str) -> Result:
    return _on(_generated(220, 25.0, 1), 64, policy)


def _unfair(result: Result) -> float:
    return float(result.figures()["ftf"]["static"]["unfair_fraction"])


def _makespan(result: Result) -> float:
    assert result.makespan_s is not None
    return result.makespan_s


def test_all_four_published_figures_are_met_at_once() -> None:
    result = _published("shockwave")
    static = result.figures()["ftf"]["static"]
    assert result.finished == 120
    assert _makespan(result) <= 24_200
    assert result.mean_jct_s is not None
    assert result.mean_jct_s <= 10_000
    assert static["worst"] <= 1.78
    assert static["unfair_fraction"] <= 0.05


@pytest.mark.parametrize("other", FAIR)
def test_all_jobs_end_earlier_and_fewer_unfairly_than_under_fair_policies(other: str) -> None:
    ours, theirs = _published("shockwave"), _published(other)
    assert _makespan(theirs) / _makespan(ours) >= 1.3
    assert _unfair(ours) <= 0.5 * _unfair(theirs)


@pytest.mark.parametrize("other", [GAVEL, "finish_time_fairness", "allox"])
def test_the_advantage_is_not_that_the_others_plan_seldom(other: str) -> None:
    ours, theirs = _published("shockwave"), _on(_trace(), 32, other, replan_interval_s=0.0)
    assert _makespan(theirs) / _makespan(ours) >= 1.3
    assert _unfair(ours) <= 0.5 * _unfair(theirs)


def test_the_makespan_is_not_above_that_of_the_policy_for_makespan_alone() -> None:
    assert _makespan(_published("shockwave")) <= _makespan(_published("min_makespan:heterogeneity=agnostic"))


def test_the_forecast_brings_an_earlier_end_than_reacting() -> None:
    assert _makespan(_published("shockwave")) < _makespan(_published("shockwave:forecast=reactive"))
    assert _makespan(_published("shockwave")) < _makespan(_published("shockwave:forecast=agnostic"))


@pytest.mark.parametrize("other", [*FAIR, "max_throughput", "gandiva_fair"])
def test_the_order_is_the_same_on_64_gpus_with_the_same_parameters(other: str) -> None:
    ours, theirs = _at_64("shockwave"), _at_64(other)
    assert _makespan(ours) < _makespan(theirs)
    assert _unfair(ours) <= 0.5 * _unfair(theirs)
    assert ours.mean_jct_s is not None
    assert theirs.mean_jct_s is not None
    assert ours.mean_jct_s < theirs.mean_jct_s


def test_every_plan_is_within_one_per_cent_of_its_bound_and_no_gpu_idles_beside_a_job_that_fits() -> None:
    watch = Watch()
    _on(_trace(), 32, "shockwave", observer=watch)
    assert len(watch.gaps) > 100
    assert max(watch.gaps) <= 0.01
    assert watch.idle_rounds == 0


def test_a_run_takes_seconds() -> None:
    # With a mixed-integer program for each plan it would be minutes.
    assert _on(_trace(), 32, "shockwave").costs.cpu_s < 30


def test_the_published_program_is_about_as_good_as_published() -> None:
    result = _published("shockwave:program=published,makespan_weight=1e-3,ftf_power=12,forecast=bayes")
    assert _makespan(result) == pytest.approx(24_197, rel=0.05)
    assert result.mean_jct_s == pytest.approx(9_958, rel=0.10)
    assert np.median(result.rho["static"]) < 1.0
