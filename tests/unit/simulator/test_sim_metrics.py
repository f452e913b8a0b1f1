"""Figures by hand: completion times, fairness in three definitions, utilisation, cost."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from fairway import InputError, Workload, simulate
from fairway.simulator import metrics
from fairway.simulator.result import Result
from fairway.simulator.rules import RULES, Rules, rules_named
from fairway.testing import job

FREE = Rules("free")


def _two_in_turn() -> Result:
    """Two gangs of four on four GPUs: one runs 0-100 s, the other 100-150 s."""
    jobs = [job("a", 4, 100.0, user="ann", deadline_s=90.0), job("b", 4, 50.0, user="bob", deadline_s=150.0)]
    return simulate(Workload.of(jobs), cluster="v100:4", policy="fifo", rules=FREE)


def test_completion_queueing_makespan_and_utilisation() -> None:
    result = _two_in_turn()
    figures = result.figures()
    assert result.jct_s.tolist() == [100.0, 150.0]
    assert result.queue_s.tolist() == [0.0, 100.0]
    assert figures["jct_s"] == {"mean": 125.0, "p50": 125.0, "p95": 147.5, "p99": 149.5, "max": 150.0}
    assert (figures["makespan_s"], figures["utilisation"]) == (150.0, 1.0)
    assert (figures["jobs"], figures["finished"], figures["skipped"]) == (2, 2, 0)


def test_a_deadline_is_missed_only_when_it_has_passed() -> None:
    assert _two_in_turn().deadline_misses == 1


def test_cost_is_gpu_hours_at_the_price_of_the_type() -> None:
    result = simulate(Workload.of([job("a", 2, 3600.0)]), cluster="k80:1x4", policy="fifo", rules=FREE)
    assert result.figures()["cost"] == pytest.approx(2 * 0.45)


def test_makespan_counts_from_the_first_submission_and_utilisation_within_it() -> None:
    jobs = [job("a", 2, 100.0, submitted_s=50.0), job("b", 4, 100.0, submitted_s=200.0)]
    result = simulate(Workload.of(jobs), cluster="v100:4", policy="fifo", rules=FREE)
    assert result.makespan_s == 250.0
    assert result.utilisation == pytest.approx((200.0 + 400.0) / (4 * 250.0))


def test_static_fairness_divides_by_the_jobs_of_the_trace_per_gpu() -> None:
    jobs = [job(f"job-{n}", 1, 100.0) for n in range(4)]
    result = simulate(Workload.of(jobs), cluster="v100:2", policy="fifo", rules=FREE)
    assert result.rho["static"].tolist() == pytest.approx([100 / 200, 100 / 200, 200 / 200, 200 / 200])


def test_static_fairness_expects_no_speed_up_on_an_empty_cluster() -> None:
    assert _two_in_turn().rho["static"].tolist() == pytest.approx([1.0, 3.0])


def test_concurrent_fairness_averages_the_jobs_that_were_there() -> None:
    jobs = [job(f"job-{n}", 1, 100.0) for n in range(4)]
    result = simulate(Workload.of(jobs), cluster="v100:2", policy="fifo", rules=FREE)
    # The first two see 4 jobs on 2 GPUs; the last two see 4 for a while and then 2: 3 on average.
    assert result.rho["concurrent"].tolist() == pytest.approx([0.5, 0.5, 200 / 150, 200 / 150])


def test_isolated_fairness_time_slices_a_rigid_gang_on_its_share() -> None:
    result = _two_in_turn()
    # Two jobs, four GPUs: a share of 2 GPUs takes twice as long for a; b shares with one for 100 of its 150 s.
    present = (2 * 100 + 1 * 50) / 150
    assert result.rho["isolated"].tolist() == pytest.approx([100 / 200, 150 / (50 * 4 / (4 / present))])


def test_isolated_fairness_lets_an_elastic_job_shrink() -> None:
    jobs = [job("a", 4, 100.0, gpus_min=1, gpus_max=4), job("b", 4, 50.0)]
    result = simulate(Workload.of(jobs), cluster="v100:4", policy="fifo", rules=FREE)
    assert result.rho["isolated"][0] == pytest.approx(100 / (100 * 2**0.9))


def test_unfair_is_more_than_five_percent_late() -> None:
    summary = metrics.summary_of_rho(np.array([0.5, 1.05, 1.06, 2.0, np.nan]))
    assert summary["worst"] == 2.0
    assert summary["unfair_fraction"] == 0.5
    assert metrics.summary_of_rho(np.array([np.nan]))["mean"] is None


@pytest.mark.parametrize(("values", "index"), [([1.0] * 5, 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([1.0, 3.0], 0.8)])
def test_jain(values: list[float], index: float) -> None:
    assert metrics.jain_index(np.array(values)) == pytest.approx(index)


def test_jain_of_nothing() -> None:
    assert metrics.jain_index(np.array([])) is None
    assert metrics.jain_index(np.zeros(3)) is None


def test_percentiles_interpolate() -> None:
    spread = metrics.spread_of(np.arange(101.0))
    assert spread == {"mean": 50.0, "p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert metrics.spread_of(np.array([]))["p95"] is None


def test_figures_per_user() -> None:
    groups = _two_in_turn().figures()["per_user"]
    assert groups["ann"] == {"jobs": 1, "finished": 1, "gpu_h": 400 / 3600, "jct_mean_s": 100.0, "queue_mean_s": 0.0}
    assert groups["bob"]["queue_mean_s"] == 100.0


def test_the_document_is_strict_json_and_complete() -> None:
    jobs = [job("a", 4, 100.0), job("b", 4, 0.0)]
    result = simulate(Workload.of(jobs), cluster="v100:4", policy="srtf")
    text = json.dumps(result.to_dict(), allow_nan=False)
    document = json.loads(text)
    assert document["schema"] == "fairway.result/1"
    assert [record["id"] for record in document["per_job"]] == ["a", "b"]
    assert document["knows"] == ["duration"]


def test_every_gpu_second_is_in_a_segment() -> None:
    jobs = [job(f"job-{n}", 1 + n % 3, 100 / 3 + n, submitted_s=7.0 * n) for n in range(20)]
    result = simulate(Workload.of(jobs), cluster="v100:2x2", policy="srtf")
    held = np.zeros(20)
    for number, start_s, end_s, gpus in result.ledger.segments:
        assert start_s <= end_s
        held[number] += (end_s - start_s) * len(gpus)
    assert held.tolist() == pytest.approx(result.ledger.held_gpu_s.tolist())
    work = np.array([spec.gpus * (spec.duration_s or 0.0) for spec in result.specs])
    assert held.tolist() == pytest.approx((work + result.ledger.lost_gpu_s).tolist(), abs=1e-3)


def test_no_two_segments_overlap_on_a_gpu() -> None:
    jobs = [job(f"job-{n}", 1 + n % 3, 50.0 + n / 3, submitted_s=5.0 * n) for n in range(30)]
    result = simulate(Workload.of(jobs), cluster="v100:2x2", policy="las:levels=30/90", rules=FREE)
    by_gpu: dict[int, list[tuple[float, float]]] = {}
    for _, start_s, end_s, gpus in result.ledger.segments:
        for gpu in gpus:
            by_gpu.setdefault(gpu, []).append((start_s, end_s))
    for spans in by_gpu.values():
        spans.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


def test_rules_are_frozen_values() -> None:
    with pytest.raises(FrozenInstanceError):
        RULES["native"].restart_cost_s = 1.0  # type: ignore[misc]
    assert list(RULES) == ["native", "gavel", "shockwave", "tiresias", "pollux", "sia"]
    native, tiresias = RULES["native"], RULES["tiresias"]
    assert (native.restart_cost_s, native.min_run_s, native.charge, native.round_s) == (30.0, 60.0, "restart", None)
    assert (tiresias.restart_cost_s, tiresias.min_run_s, tiresias.time_quantum_s) == (0.0, 0.0, 1.0)
    assert [RULES[name].round_s for name in ("gavel", "shockwave", "pollux")] == [360.0, 120.0, 60.0]


def test_rules_can_be_changed_one_by_one() -> None:
    changed = rules_named("native", restart_cost_s=5.0, round_s=None)
    assert (changed.restart_cost_s, changed.min_run_s, changed.round_s) == (5.0, 60.0, None)
    assert rules_named(changed) == changed
    with pytest.raises(InputError, match="unknown rules 'x'; known: native"):
        rules_named("x")


def test_mean_active_weighs_by_time() -> None:
    series = np.array([[0.0, 0, 0, 2], [10.0, 0, 0, 4], [20.0, 0, 0, 0]])
    mean = metrics.mean_active(series, np.array([0.0, 5.0, 3.0]), np.array([20.0, 10.0, 3.0]))
    assert mean.tolist() == [3.0, 2.0, 1.0]
    assert not math.isnan(mean.sum())
