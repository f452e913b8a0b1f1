"""Sia on the mixed cluster of its simulator (`--rules sia`), held against a measured run.

Needs the published workloads and profiles beside the repository (`../shared/data`); they are not part of it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from fairway import Result, simulate
from fairway.models.profile import Profile, load_profile
from fairway.testing.seeds import ALL, LONG

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pollux"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the published workloads are not here")

CLUSTER = "aws:6x4,dgx-ext:2x8,rtx:3x8"
SIA_S = 2091.0
"""The mean completion time of saturn/workload-1 under Sia in the published simulator."""


@cache
def _profile() -> Profile:
    return load_profile(str(DATA / "profiles"))


@cache
def _run(policy: str, workload: str, rules: str) -> Result:
    path = DATA / "workloads" / f"{workload}.csv"
    return simulate(path, cluster=CLUSTER, policy=policy, rules=rules, profile=_profile())


def _mean_s(policy: str, workload: str, rules: str = "sia") -> float:
    result = _run(policy, workload, rules)
    assert result.finished == len(result.specs)
    return result.mean_jct_s or 0.0


def test_it_is_faster_than_the_published_simulator_of_sia() -> None:
    assert _mean_s("sia", "saturn/workload-1") <= SIA_S


@pytest.mark.skipif(not LONG, reason="takes a while")
def test_a_run_of_160_jobs_costs_less_than_20_cpu_seconds() -> None:
    assert _run("sia", "saturn/workload-1", "sia").costs.cpu_s <= 20.0


@pytest.mark.skipif(not ALL, reason="`make test-all` runs it")
def test_it_is_far_ahead_of_a_policy_that_adapts_nothing() -> None:
    assert _mean_s("sia", "saturn/workload-1") < 0.5 * _mean_s("tiresias", "saturn/workload-1")


@pytest.mark.skipif(not LONG, reason="takes minutes")
@pytest.mark.parametrize("number", range(1, 9))
def test_it_is_ahead_of_pollux_on_every_workload(number: int) -> None:
    assert _mean_s("sia", f"saturn/workload-{number}") < _mean_s("pollux", f"saturn/workload-{number}")


@pytest.mark.skipif(not LONG, reason="takes a minute")
def test_the_knobs_of_the_paper_give_about_its_figure() -> None:
    assert _mean_s("sia:p=-0.5,begin_gpus=1", "saturn/workload-1") == pytest.approx(SIA_S, rel=0.05)


@pytest.mark.skipif(not LONG, reason="takes a minute")
def test_it_runs_under_the_rules_of_pollux_too() -> None:
    assert _mean_s("sia", "saturn/workload-1", "pollux") < _mean_s("sia", "saturn/workload-1")
