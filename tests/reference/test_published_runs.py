"""Whole runs of the Gavel family held against the published simulators of Gavel (OSDI'20) and Shockwave (NSDI'23).

The figures are read from the tables beside the repository (`../shared/data/gavel`), which are not part of it. The rule
sets choose the published behaviour of each policy by themselves. Where an optimum is not unique the solver decides: so
figures are met within per cents, and to the last digit only where the solution is the same.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairway import simulate
from fairway.core.cluster import Cluster
from fairway.core.job import Workload
from fairway.models.profile import Profile, load_profile
from fairway.policies import make_policy
from fairway.simulator.result import Result
from fairway.simulator.rules import rules_named
from fairway.testing.seeds import some
from fairway.traces import read_cluster, read_trace

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gavel"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the published traces are not here")

NAMES = {
    "max_min_fairness": "max_min_fairness:heterogeneity=agnostic",
    "max_min_fairness_perf": "max_min_fairness",
    "max_min_fairness_packed": "max_min_fairness:packing=on",
    "max_min_fairness_water_filling": "water_filling:heterogeneity=agnostic",
    "max_min_fairness_water_filling_perf": "water_filling",
    "min_total_duration": "min_makespan:heterogeneity=agnostic",
    "min_total_duration_perf": "min_makespan",
    "finish_time_fairness": "finish_time_fairness:heterogeneity=agnostic",
    "finish_time_fairness_perf": "finish_time_fairness",
    "max_sum_throughput_perf": "max_throughput",
    "max_sum_throughput_normalized_by_cost_perf": "min_cost",
    "fifo": "gavel_fifo:heterogeneity=agnostic",
    "fifo_perf": "gavel_fifo",
    "allox": "allox",
    "isolated": "isolated",
    "gandiva_fair": "gandiva_fair",
}
"""The published names of policies, and how to ask Fairway for the same."""


def _rows(name: str) -> list[dict[str, str]]:
    if not DATA.exists():
        return []
    with (DATA / name).open() as file:
        return list(csv.DictReader(file))


@cache
def _trace(name: str) -> Workload:
    return read_trace(str(DATA / "traces" / f"{name}.trace"))


@cache
def _profile(name: str) -> Profile:
    return load_profile(str(DATA / name))


def _error(got: float | None, wanted: float) -> float:
    """By what part of it a figure is missed."""
    assert got is not None
    return got / wanted - 1.0


@cache
def _shockwave(policy: str, replan_interval_s: float | None = None) -> Result:
    return simulate(
        _trace("shockwave_tacc_120jobs"),
        cluster="v100:32x1",
        policy=policy,
        profile=_profile("tacc_throughputs.json"),
        rules="shockwave",
        replan_interval_s=replan_interval_s,
    )


@cache
def _published() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / "shockwave_published_per_job.json").read_text())
    return data


# policy: published name, how far makespan and mean JCT may be off, how many of 120 JCTs are met at least
SHOCKWAVE = {
    "max_min_fairness:heterogeneity=agnostic": ("max_min_fairness", 0.001, 118),
    "min_makespan:heterogeneity=agnostic": ("min_total_duration", 0.001, 118),
    "max_throughput": ("max_sum_throughput_perf", 0.02, 105),
    "gandiva_fair": ("gandiva_fair", 1e-6, 120),
    # 32 equal GPUs make many equal matchings; the published run broke these ties in another way.
    "allox": ("allox", 0.04, 55),
    # Published with another solver (a barrier method) on a program with many optima.
    "finish_time_fairness": ("finish_time_fairness", 0.04, 0),
}


@pytest.mark.parametrize("policy", SHOCKWAVE)
def test_the_published_runs_of_shockwaves_rivals(policy: str) -> None:
    name, off, _ = SHOCKWAVE[policy]
    known, result = _published()[f"tacc_32gpus/{name}_simulation"], _shockwave(policy)
    assert result.finished == 120
    assert abs(_error(result.makespan_s, known["makespan"])) <= off
    assert abs(_error(result.mean_jct_s, known["avg_jct"])) <= off
    rho, theirs = result.rho["static"], np.array(known["ftf"])
    assert rho.max() == pytest.approx(theirs.max(), rel=0.15)
    assert (rho > 1.05).mean() == pytest.approx((theirs > 1.05).mean(), abs=0.02)


@pytest.mark.parametrize("policy", SHOCKWAVE)
def test_jobs_end_when_they_ended_in_the_published_run(policy: str) -> None:
    name, _, least = SHOCKWAVE[policy]
    known = _published()[f"tacc_32gpus/{name}_simulation"]["jct"]
    met = np.abs(_shockwave(policy).jct_s - np.array(known)) < 1.0
    assert met.sum() >= least, f"{met.sum()} of 120 completion times are met"


RERUNS = [row for row in _rows("shockwave_rerun_results.csv") if row["run"] in ("out_sw", "out_sw_reset0")]
RERUN_OFF = {"allox": 0.04, "fifo": 0.02}
"""How far a figure may be off: 2 % unless said otherwise."""
ONLY_THERE = {
    "isolated_plus": "Fairway has no such variant of the isolated policy",
    "shockwave": "a mixed-integer program with a limit on wall-clock time is not repeatable",
}


@pytest.mark.parametrize("row", RERUNS, ids=[f"{row['run']}-{row['policy']}" for row in RERUNS])
def test_the_runs_with_and_without_an_interval_between_plans(row: dict[str, str]) -> None:
    """The same simulator as published, and (`reset0`) with a plan in every round in which the jobs have changed."""
    if row["policy"] in ONLY_THERE:
        pytest.skip(ONLY_THERE[row["policy"]])
    # On one GPU type the aware and the agnostic forms of this policy are the same problem.
    policy = NAMES[row["policy"]]
    result = _shockwave(policy, 0.0 if row["run"] == "out_sw_reset0" else None)
    off = RERUN_OFF.get(row["policy"], 0.02)
    assert abs(_error(result.makespan_s, float(row["makespan"]))) <= off
    assert abs(_error(result.mean_jct_s, float(row["avg_jct"]))) <= off
    assert result.rho["static"].max() == pytest.approx(float(row["worst_ftf"]), rel=0.1)
    assert 100 * (result.rho["static"] > 1.05).mean() == pytest.approx(float(row["unfair_pct_gt_1_05"]), abs=2.0)


def test_planning_at_every_change_explains_the_published_gap_in_completion_times() -> None:
    """Max-min fairness that need not wait 1,000 s between plans ends jobs sooner than published Shockwave does."""
    at_once = _shockwave(NAMES["max_min_fairness"], 0.0)
    shockwave = _published()["tacc_32gpus/shockwave_simulation"]
    assert at_once.mean_jct_s is not None
    assert at_once.mean_jct_s < shockwave["avg_jct"] < _shockwave(NAMES["max_min_fairness"]).jct_s.mean()


def _without_prices(cluster: Cluster) -> Cluster:
    """The published runs over a trace knew no prices, so that every type cost the same."""
    return replace(cluster, types=tuple(replace(kind, price_per_h=0.0) for kind in cluster.types))


@cache
def _gavel(trace: str, counts: str, policy: str) -> Result:
    spec = ",".join(f"{kind}:{count}x1" for kind, count in zip(("v100", "p100", "k80"), counts.split(":"), strict=True))
    machines, profile = read_cluster(spec), _profile("simulation_throughputs.json")
    return simulate(_trace(trace), cluster=_without_prices(machines), policy=policy, profile=profile, rules="gavel")


GAVEL = _rows("gavel_simulation_results.csv")
GAVEL_OFF = 0.03
EXCEPTIONS = {
    # The published FIFO draws a type at random but uses another one (a slip of its code), so which jobs sit on slow
    # GPUs for good differs: makespan and mean JCT are off by these parts.
    ("gavel_multi_200j_lam300_s42", "fifo"): (-0.064, -0.075),
    ("gavel_single_120j_lam540_s42", "fifo"): (-0.251, -0.065),
}
"""Runs that are further off than `GAVEL_OFF`, with the error that was measured (makespan, mean JCT)."""


LONG = ("finish_time_fairness", "finish_time_fairness_perf", "isolated")
SLOW = {
    *((trace, policy) for trace in ("gavel_single_200j_lam180_s42", "gavel_multi_200j_lam300_s42") for policy in LONG),
    ("gavel_multi_200j_lam300_s42", "min_total_duration"),
    ("gavel_multi_200j_lam300_s42", "min_total_duration_perf"),
}
"""The runs that take longest, and those that another file checks to the last digit."""


def _param(trace: str, policy: str, *values: Any) -> Any:
    marks = [pytest.mark.slow] if (trace, policy) in SLOW else []
    return pytest.param(*values, marks=marks, id=f"{trace}-{policy}")


@pytest.mark.parametrize("row", [_param(row["trace"], row["policy"], row) for row in some(GAVEL, 3)])
def test_the_runs_of_gavels_simulator(row: dict[str, str]) -> None:
    result = _gavel(row["trace"], row["cluster"], NAMES[row["policy"]])
    assert result.finished == len(_trace(row["trace"]).jobs)
    makespan, jct = _error(result.makespan_s, float(row["makespan_s"])), _error(result.mean_jct_s, _jct(row))
    if (row["trace"], row["policy"]) in EXCEPTIONS:
        assert (makespan, jct) == pytest.approx(EXCEPTIONS[row["trace"], row["policy"]], abs=0.002)
        return
    assert abs(makespan) <= GAVEL_OFF
    assert abs(jct) <= GAVEL_OFF


def _jct(row: dict[str, str]) -> float:
    return float(row["avg_jct_s"])


PAIRS = [
    ("gavel_single_200j_lam180_s42", "max_min_fairness"),
    ("gavel_single_200j_lam180_s42", "min_total_duration"),
    ("gavel_single_200j_lam180_s42", "finish_time_fairness"),
    ("gavel_multi_200j_lam300_s42", "max_min_fairness"),
    ("gavel_multi_200j_lam300_s42", "min_total_duration"),
    ("gavel_single_120j_lam540_s42", "max_min_fairness"),
    ("gavel_single_120j_lam540_s42", "max_min_fairness_water_filling"),
]


@pytest.mark.parametrize(("trace", "policy"), [_param(*pair, *pair) for pair in some(PAIRS, 1)])
def test_awareness_of_gpu_types_gains_what_it_gained_there(trace: str, policy: str) -> None:
    rows = {row["policy"]: row for row in GAVEL if row["trace"] == trace}
    counts = rows[policy]["cluster"]
    means = [_gavel(trace, counts, NAMES[name]).jct_s.mean() for name in (policy, f"{policy}_perf")]
    wanted = _jct(rows[policy]) / _jct(rows[f"{policy}_perf"])
    assert means[0] / means[1] == pytest.approx(wanted, rel=0.03)


def test_packing_gains_what_it_gained_there() -> None:
    trace = "gavel_single_120j_lam540_s42"
    rows = {row["policy"]: row for row in GAVEL if row["trace"] == trace}
    means = [
        _gavel(trace, "12:12:12", policy).jct_s.mean() for policy in ("max_min_fairness", "max_min_fairness:packing=on")
    ]
    wanted = _jct(rows["max_min_fairness_perf"]) / _jct(rows["max_min_fairness_packed"])
    assert means[0] / means[1] == pytest.approx(wanted, rel=0.03)


PLANNERS = sorted({text.partition(":")[0] for text in NAMES.values()} | {"hierarchical", "min_cost_slo", "gavel_sjf"})


@pytest.mark.parametrize("rules", ["gavel", "shockwave"])
@pytest.mark.parametrize("policy", some(PLANNERS, 2))
def test_these_rules_ask_for_the_published_behaviour(rules: str, policy: str) -> None:
    if (rules, policy) == ("gavel", "gandiva_fair"):
        pytest.skip("Gavel's simulator has no such policy")
    knobs = rules_named(rules).knobs
    assert vars(make_policy(policy, knobs))["published"] is True
    assert vars(make_policy(f"{policy}:published=off", knobs))["published"] is False
    assert vars(make_policy(policy, rules_named("native").knobs))["published"] is False
