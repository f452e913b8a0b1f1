"""Early feedback and the work done: when the first 100 mini-batches were done, and how much all jobs got done."""

from __future__ import annotations

import math

import pytest

from fairway import Workload, simulate
from fairway.report.table import metrics
from fairway.simulator.rules import Rules
from fairway.testing import job

FREE = Rules("free")


def test_feedback_counts_from_submission_to_the_hundredth_mini_batch() -> None:
    jobs = [job("a", 4, 100.0), job("b", 4, 500.0, 10.0)]
    result = simulate(Workload.of(jobs), cluster="v100:4", policy="fifo", rules=FREE)
    assert result.feedback_s.tolist() == pytest.approx([60.0, 150.0])
    assert result.figures()["feedback_s"]["mean"] == pytest.approx(105.0)
    assert [row["feedback_s"] for row in result.per_job()] == pytest.approx([60.0, 150.0])


def test_a_job_shorter_than_a_hundred_mini_batches_gives_its_feedback_when_it_ends() -> None:
    result = simulate(Workload.of([job("a", 1, 12.0)]), cluster="v100:1", policy="fifo", rules=FREE)
    assert result.feedback_s.tolist() == pytest.approx([12.0])


def test_interruptions_count_in_feedback() -> None:
    jobs = [job("long", 1, 300.0), job("short", 1, 10.0, 30.0)]
    result = simulate(Workload.of(jobs), cluster="v100:1", policy="srtf", rules=FREE)
    assert result.feedback_s.tolist() == pytest.approx([70.0, 10.0])


def test_steps_on_every_gpu_of_a_gang_are_mini_batches() -> None:
    jobs = [job("a", 2, steps=10_000.0, model="ResNet-50")]
    result = simulate(Workload.of(jobs), cluster="v100:2", policy="fifo", rules=FREE)
    rate = 10_000.0 / float(result.jct_s[0])
    assert result.feedback_s[0] == pytest.approx(200.0 / rate, rel=1e-6)


def test_throughput_is_what_finished_jobs_take_alone_over_what_there_was() -> None:
    jobs = [job("a", 4, 100.0), job("b", 2, 100.0)]
    result = simulate(Workload.of(jobs), cluster="v100:4", policy="fifo", rules=FREE)
    assert result.throughput == pytest.approx((400.0 + 200.0) / (4 * 200.0))
    figures = result.figures()
    assert metrics(figures)["throughput"] == figures["throughput"]
    assert metrics(figures)["feedback_mean_s"] == pytest.approx((60.0 + 160.0) / 2)


def test_jobs_that_share_make_more_than_the_gpus_alone() -> None:
    jobs = [job(f"j{n}", 1, steps=50_000.0, model="Recommendation") for n in range(4)]
    result = simulate(Workload.of(jobs), cluster="v100:1", policy="gandiva")
    assert result.throughput is not None
    assert 1.3 < result.throughput < 1.6
    assert result.utilisation == pytest.approx(1.0)


def test_without_jobs_that_got_there_the_figures_are_empty() -> None:
    assert metrics({})["feedback_mean_s"] is None
    result = simulate(Workload.of([job("a", 1, 0.0)]), cluster="v100:1", policy="fifo", rules=FREE)
    assert result.throughput is None
    assert not math.isnan(float(result.feedback_s[0]))
