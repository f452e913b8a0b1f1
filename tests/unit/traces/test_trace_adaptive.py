"""Adaptive jobs in traces: schedules in Fairway's own format, and the generator after Shockwave's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairway import Workload, simulate
from fairway.core.errors import InputError
from fairway.core.job import JobSpec, Regime
from fairway.models.builtin import BuiltinProfile
from fairway.simulator.rates import Rates
from fairway.testing import cluster
from fairway.traces import generate, read_trace, shockwave_like, write_trace
from fairway.traces.generate import BATCH_SIZES, NOT_IN_SHOCKWAVE

PROFILE = BuiltinProfile()


def on_v100(model: str, batch_size: int, gpus: int) -> float:
    return PROFILE.rate(model, batch_size, "v100", gpus)


def written(tmp_path: Path, **job: Any) -> str:
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps({"id": "a", "submitted_s": 0.0, "duration_s": 100.0, **job}) + "\n")
    return str(path)


def test_a_schedule_is_read_as_it_stands_and_survives_writing(tmp_path: Path) -> None:
    parts = [{"until": 0.25, "batch_size": 32}, {"until": 1, "batch_size": 128, "speed": 1.5}]
    workload = read_trace(written(tmp_path, adaptation="schedule", regimes=parts))
    assert workload.jobs[0].regimes == (Regime(0.25, 32), Regime(1.0, 128, 1.5))
    write_trace(workload, tmp_path / "again.jsonl")
    assert read_trace(str(tmp_path / "again.jsonl")).jobs == workload.jobs
    assert simulate(workload, cluster="v100:1", policy="fifo").jct_s.tolist() == pytest.approx([25 + 75 / 1.5])


BAD: dict[str, tuple[Any, str]] = {
    "until 0": ([{"until": 0, "batch_size": 8}, {"until": 1}], "rising fractions"),
    "until falls": ([{"until": 0.5}, {"until": 0.5}, {"until": 1}], "rising fractions"),
    "until above 1": ([{"until": 1.5}], "rising fractions"),
    "until below 1": ([{"until": 0.9}], "the last regime must end at 1"),
    "until is a text": ([{"until": "1"}], "until '1' is not a number"),
    "no until": ([{"batch_size": 8}], "the key 'until'"),
    "batch 0": ([{"until": 1, "batch_size": 0}], "batch size 0 is not at least 1"),
    "batch negative": ([{"until": 1, "batch_size": -8}], "batch size -8 is not at least 1"),
    "batch is half": ([{"until": 1, "batch_size": 1.5}], "batch_size 1.5 is not a whole number"),
    "speed 0": ([{"until": 1, "speed": 0}], "speed 0.0 is not a positive number"),
    "speed negative": ([{"until": 1, "speed": -2}], "speed -2.0 is not a positive number"),
    "unknown key": ([{"until": 1, "batch": 8}], "unknown key 'batch'"),
    "not a list": ({"until": 1}, "is not a list of objects"),
    "nothing": ([], "the adaptation 'schedule' needs regimes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_senseless_schedule_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    regimes, problem = BAD[name]
    with pytest.raises(InputError, match=problem) as caught:
        read_trace(written(tmp_path, adaptation="schedule", regimes=regimes))
    assert str(caught.value).startswith(f"{tmp_path / 'jobs.jsonl'}:1: ")


def test_a_regime_that_fits_nowhere_is_an_impossible_job(tmp_path: Path) -> None:
    regimes = (Regime(0.5, 8), Regime(1.0, 4096))
    job = JobSpec("a", 0.0, steps=100, model="BERT", batch_size=8, adaptation="schedule", regimes=regimes)
    with pytest.raises(InputError, match="can never run"):
        simulate(Workload.of([job]), cluster="v100:1", policy="fifo")


def test_generated_models_are_those_of_shockwave_alike() -> None:
    counts = Counter((job.model, job.batch_size) for job in shockwave_like(jobs=21_000, seed=1).jobs)
    table = {(model, batch) for model, batches in BATCH_SIZES.items() for batch in batches}
    assert counts.keys() == table - NOT_IN_SHOCKWAVE
    assert len(counts) == 21
    assert min(counts.values()) > 880
    assert max(counts.values()) < 1120


def test_generated_gangs_modes_and_steps_follow_the_published_facts() -> None:
    jobs = shockwave_like(jobs=8000, seed=2, static=0.2, accordion=0.4, gns=0.4, rate=on_v100).jobs
    timed = shockwave_like(jobs=8000, seed=2, static=0.2, accordion=0.4, gns=0.4).jobs
    for one, other in zip(jobs, timed, strict=True):
        seconds = other.duration_s or 0.0
        assert one.steps == int(seconds * on_v100(one.model, one.batch_size or 0, one.gpus))
        assert one.regimes == ()
    gangs = Counter(job.gpus for job in jobs if job.model != "Recommendation")
    parts = [gangs[gpus] / gangs.total() for gpus in (1, 2, 4, 8)]
    assert parts == pytest.approx([0.6, 0.3, 0.09, 0.01], abs=0.02)
    assert {job.gpus for job in jobs if job.model == "Recommendation"} == {1}
    modes = Counter(job.adaptation for job in timed)
    short = np.mean([(job.duration_s or 0) < 1000 for job in timed])
    assert modes["gns"] / 8000 == pytest.approx(0.4, abs=0.02)
    assert modes["accordion"] / 8000 == pytest.approx(0.4 * (1 - short), abs=0.02)
    gaps = np.diff([job.submitted_s for job in jobs])
    assert gaps.mean() == pytest.approx(40.0, rel=0.05)
    assert gaps.std() == pytest.approx(40.0, rel=0.05)


def test_generated_steps_have_regimes_of_their_model_and_take_less_than_their_duration() -> None:
    stepped = shockwave_like(jobs=60, seed=4, rate=on_v100)
    rates = Rates(cluster("v100:8x8"), PROFILE, spread_matters=True, adapts="regimes")
    changing = [job for job in stepped.jobs if len(rates.regimes(job)) > 1]
    assert len(changing) > 15
    for job in changing:
        at_first_batch_s = (job.steps or 0.0) / on_v100(job.model, job.batch_size or 0, job.gpus)
        assert 0 < rates.alone_s(job) < at_first_batch_s


def test_generators_by_name_take_a_rate_where_they_have_models() -> None:
    assert generate("shockwave-like", jobs="5", rate=on_v100).jobs == shockwave_like(jobs=5, rate=on_v100).jobs
    assert all(job.steps for job in generate("gavel-like", jobs=5, rate=on_v100).jobs)
    with pytest.raises(InputError, match="takes no profile"):
        generate("philly-like", rate=on_v100)
    with pytest.raises(InputError, match="has a speed"):
        shockwave_like(rate=lambda model, batch, gpus: 0.0)
