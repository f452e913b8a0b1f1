"""The generators: deterministic, within their distributions, and clear about bad parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.core.errors import InputError
from fairway.core.job import JobSpec, Workload
from fairway.traces import (
    GENERATORS,
    describe,
    gavel_like,
    generate,
    philly_like,
    read_trace,
    shockwave_like,
    write_trace,
)
from fairway.traces.generate import BATCH_SIZES, parameters, regimes_of


@pytest.mark.parametrize("name", GENERATORS)
def test_the_seed_decides_everything(name: str) -> None:
    make = GENERATORS[name]
    assert make(jobs=50, seed=7).jobs == make(jobs=50, seed=7).jobs
    assert make(jobs=50, seed=7).jobs != make(jobs=50, seed=8).jobs


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(list(GENERATORS)), jobs=st.integers(1, 40), seed=st.integers(0, 2**40))
def test_every_seed_gives_jobs_in_order_from_zero_in_milliseconds(name: str, jobs: int, seed: int) -> None:
    workload = GENERATORS[name](jobs=jobs, seed=seed)
    times = [job.submitted_s for job in workload.jobs]
    assert len(workload) == jobs
    assert times == sorted(times)
    assert times[0] == 0
    assert all(round(job.submitted_s, 3) == job.submitted_s for job in workload.jobs)
    assert all(job.duration_s is not None and round(job.duration_s, 3) == job.duration_s for job in workload.jobs)


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_jobs_round_trip(name: str, tmp_path: Path) -> None:
    workload = GENERATORS[name](jobs=200)
    write_trace(workload, tmp_path / "t")
    assert read_trace(tmp_path / "t").jobs == workload.jobs


def durations(workload: Workload) -> np.ndarray:
    return np.array([job.duration_s for job in workload.jobs])


def share(workload: Workload, **fields: Any) -> float:
    return sum(all(getattr(job, key) == value for key, value in fields.items()) for job in workload.jobs) / len(
        workload
    )


def test_gavel_durations_are_log_uniform_in_two_ranges() -> None:
    seconds = durations(gavel_like(jobs=20_000, seed=1))
    assert seconds.min() >= 60 * 10**1.5 - 1
    assert seconds.max() <= 60 * 10**4
    assert np.mean(seconds < 60_000) == pytest.approx(0.8, abs=0.01)
    assert np.median(np.log10(seconds[seconds < 60_000] / 60)) == pytest.approx(2.25, abs=0.02)


def test_gavel_gangs_weights_and_arrivals() -> None:
    workload = gavel_like(jobs=20_000, seed=1, mean_interarrival_s=100, multi_gpu=True, priorities=True)
    for gpus, expected in ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.05)):
        assert share(workload, gpus=gpus) == pytest.approx(expected, abs=0.01)
    assert share(workload, weight=5.0) == pytest.approx(0.2, abs=0.01)
    assert workload.jobs[-1].submitted_s / 20_000 == pytest.approx(100, rel=0.03)
    assert not any(job.gpus > 1 and job.model == "Recommendation" for job in workload.jobs)
    assert all(job.batch_size in BATCH_SIZES[job.model] for job in workload.jobs)


def test_gavel_hours_are_twelve_even_values() -> None:
    assert set(durations(gavel_like(jobs=500, durations="uniform-hours"))) == {3600.0 * h for h in range(1, 13)}


def test_gavel_with_a_rate_gives_steps() -> None:
    timed = gavel_like(jobs=30, multi_gpu=True)
    stepped = gavel_like(jobs=30, multi_gpu=True, rate=lambda model, batch, gpus: 2.0 * gpus)
    for a, b in zip(timed.jobs, stepped.jobs, strict=True):
        assert b.duration_s is None
        assert b.steps == int((a.duration_s or 0) * 2 * a.gpus)


def test_a_static_workload_has_all_jobs_at_zero() -> None:
    assert {job.submitted_s for job in gavel_like(jobs=10, mean_interarrival_s=0).jobs} == {0.0}


def test_shockwave_buckets_and_modes() -> None:
    workload = shockwave_like(jobs=8000, seed=3)
    seconds = durations(workload)
    steps = np.linspace(0.2 * 3600, 5 * 3600, 100)
    assert seconds.min() >= 720
    assert seconds.max() <= 18_000
    assert np.mean(seconds < steps[20] - 1) == pytest.approx(0.72, abs=0.02)
    assert np.mean(seconds > steps[90] - 1) == pytest.approx(0.03, abs=0.01)
    assert share(workload, adaptation="gns") == pytest.approx(0.5, abs=0.02)
    assert not any(job.adaptation == "accordion" and (job.duration_s or 0) < 1000 for job in workload.jobs)
    assert {job.gpus for job in workload.jobs if job.model == "Recommendation"} == {1}


def test_shockwave_regimes_grow_the_batch_and_the_speed() -> None:
    for job in shockwave_like(jobs=300).jobs:
        sizes = [regime.batch_size for regime in job.regimes]
        speeds = [regime.speed for regime in job.regimes]
        assert sizes == sorted(sizes)
        assert speeds == sorted(speeds)
        assert not sizes or (sizes[0] == job.batch_size and speeds[0] == 1.0)
        assert job.adaptation != "none" or job.regimes == ()


def test_regimes_of_each_mode() -> None:
    assert [r.batch_size for r in regimes_of("gns", "LM", 20)] == [20, 40, 80]
    assert [(r.until, r.batch_size) for r in regimes_of("accordion", "ResNet-18", 32)] == [(0.3, 32), (1.0, 256)]
    assert regimes_of("accordion", "Transformer", 16) == regimes_of("gns", "LM", 80) == ()


def test_philly_tail_mix_and_load() -> None:
    workload = philly_like(jobs=30_000, seed=5, load=0.7, gpus=256)
    seconds = durations(workload)
    assert np.median(seconds) == pytest.approx(1100, rel=0.06)
    assert np.percentile(seconds, 99) == pytest.approx(250_000, rel=0.15)
    assert seconds.max() <= 60 * 86_400
    assert share(workload, gpus=1) == pytest.approx(0.93, abs=0.01)
    assert describe(workload)["average_offered_gpus"] == pytest.approx(0.7 * 256, rel=1e-6)


def test_philly_fits_the_cluster_and_few_users_own_most_jobs() -> None:
    workload = philly_like(jobs=5000, gpus=4, users=100)
    assert max(job.gpus for job in workload.jobs) <= 4
    counts = list(describe(workload)["users"].values())
    assert sum(counts[:10]) > 0.5 * 5000


def test_philly_days_have_a_busy_and_a_quiet_half() -> None:
    hours = np.array([job.submitted_s for job in philly_like(jobs=20_000, gpus=64).jobs]) % 86_400 / 3600
    assert np.mean(hours < 12) == pytest.approx(0.5 + 0.5 / np.pi, abs=0.03)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("gavel-like", {"jobs": 0}),
    ("gavel-like", {"jobs": -1}),
    ("gavel-like", {"jobs": 2.5}),
    ("gavel-like", {"jobs": True}),
    ("gavel-like", {"jobs": "many"}),
    ("gavel-like", {"jobs": "1,2"}),
    ("gavel-like", {"seed": -1}),
    ("gavel-like", {"mean_interarrival_s": float("nan")}),
    ("gavel-like", {"mean_interarrival_s": -1.0}),
    ("gavel-like", {"durations": "short"}),
    ("gavel-like", {"multi_gpu": "perhaps"}),
    ("gavel-like", {"durations": "uniform-hours", "min_h": 5.0, "max_h": 1.0}),
    ("gavel-like", {"colour": "red"}),
    ("shockwave-like", {"static": 0.0, "accordion": 0.0, "gns": 0.0}),
    ("shockwave-like", {"gns": -1.0}),
    ("shockwave-like", {"scale_mix": "1,2,x"}),
    ("shockwave-like", {"scale_mix": (1.0, 1.0)}),
    ("philly-like", {"load": 0.0}),
    ("philly-like", {"gpus": 0}),
    ("philly-like", {"users": 0}),
    ("nobody-like", {}),
]


@pytest.mark.parametrize(("name", "options"), BAD)
def test_bad_parameters_are_input_errors(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        generate(name, **options)
    assert "\n" not in str(caught.value)


def test_a_rate_must_be_positive() -> None:
    with pytest.raises(InputError, match="not positive"):
        gavel_like(jobs=1, rate=lambda model, batch, gpus: 0.0)


def test_options_may_be_texts() -> None:
    given_as_text = generate("gavel-like", jobs="20", seed="3", multi_gpu="yes", mean_interarrival_s="60")
    assert given_as_text.jobs == gavel_like(jobs=20, seed=3, multi_gpu=True, mean_interarrival_s=60.0).jobs
    assert len(generate("shockwave-like", jobs="5", scale_mix="1,0,0,0")) == 5


def test_parameters_tell_types_and_defaults() -> None:
    assert parameters("philly-like")["load"] == (float, 0.8)
    assert "rate" not in parameters("gavel-like")


def test_describe_counts_what_there_is() -> None:
    jobs = [
        JobSpec("a", 0.0, duration_s=7200.0, user="u", queue="q", deadline_s=9.0, gpu_share=0.5),
        JobSpec("b", 1800.0, gpus=1, gpus_max=4, duration_s=7200.0, user="u"),
        JobSpec("c", 7200.0, gpus=4, steps=10.0, model="LM", adaptation="gns"),
    ]
    out = describe(Workload.of(jobs, skipped={"no GPU": 2}))
    assert (out["jobs"], out["skipped"], out["span_s"]) == (3, {"no GPU": 2}, 7200.0)
    assert (out["gpu_hours"], out["average_offered_gpus"], out["arrivals_per_hour"]) == (3.0, 1.5, 1.5)
    assert out["gpus"] == {"1": 2, "4": 1}
    assert (out["users"], out["queues"], out["models"]) == ({"u": 2}, {"q": 1}, {"LM": 1})
    assert (out["duration_s"]["mean"], out["duration_s"]["max"]) == (7200.0, 7200.0)
    assert out["share"]["elastic"] == out["share"]["deadline"] == out["share"]["adaptation"] == pytest.approx(1 / 3)


def test_describe_without_durations_or_jobs_has_no_figures() -> None:
    out = describe(Workload.of([JobSpec("c", 0.0, steps=10.0, model="LM")]))
    assert out["gpu_hours"] is out["duration_s"] is out["average_offered_gpus"] is out["arrivals_per_hour"] is None
    assert describe(Workload(()))["jobs"] == 0
