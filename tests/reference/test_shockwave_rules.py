"""The Shockwave artifact (NSDI'23) met with `--rules shockwave`: 120 jobs that adapt their batch sizes, on 32 GPUs.

Needs the published traces and figures beside the repository (`../shared/data/gavel`); they are not part of it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairway import simulate
from fairway.core.job import JobSpec
from fairway.models.adaptation import DOUBLINGS, AdaptationCourse, course_of
from fairway.models.profile import load_profile
from fairway.simulator.rates import Rates
from fairway.simulator.result import Result
from fairway.testing import cluster
from fairway.traces import read_trace

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gavel"
TRACE = DATA / "traces" / "shockwave_tacc_120jobs.trace"
THROUGHPUTS = str(DATA / "tacc_throughputs.json")
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the published traces are not here")


def _json(name: str) -> Any:
    return json.loads((DATA / name).read_text())


@cache
def _jobs() -> tuple[JobSpec, ...]:
    return read_trace(str(TRACE)).jobs


@cache
def _run(policy: str) -> Result:
    return simulate(TRACE, cluster="v100:32x1", policy=policy, profile=THROUGHPUTS, rules="shockwave")


def _course(job: JobSpec) -> AdaptationCourse:
    course = course_of(job)
    assert course is not None, job.id
    return course


def test_the_profile_of_every_job_is_the_published_one() -> None:
    published = _json("shockwave_tacc120_profiles.json")
    assert len(published) == len(_jobs()) == 120
    for job, known in zip(_jobs(), published, strict=True):
        course = _course(job)
        epochs: dict[int, int] = {}
        for batch_size, many in known["bs_runs"]:
            epochs[batch_size] = epochs.get(batch_size, 0) + many
        assert course.samples == known["samples_per_epoch"]
        assert course.epochs(job.steps or 0) == known["num_epochs"]
        assert dict(course.profile(job.steps or 0)) == epochs, job.id


def test_the_exclusive_run_time_of_every_job_is_the_published_one() -> None:
    profile = load_profile(THROUGHPUTS)
    rates = Rates(cluster("v100:32x1"), profile, spread_matters=False, adapts="requests")
    for job, known in zip(_jobs(), _json("shockwave_tacc120_profiles.json"), strict=True):
        for batch_size, epoch_s in known["epoch_seconds_by_bs"].items():
            speed = profile.rate(job.model, int(batch_size), "v100", job.gpus)
            assert _course(job).samples / int(batch_size) / speed == pytest.approx(epoch_s, abs=1e-6)
        assert rates.alone_s(job) == pytest.approx(known["exclusive_runtime_s"], abs=1e-6)
    total = sum(job.gpus * rates.alone_s(job) for job in _jobs())
    assert total == pytest.approx(635_794.8, abs=0.1)


def test_the_table_of_doublings_is_the_published_one() -> None:
    for entry in _json("shockwave_gns_schedule.json"):
        # An entry at 759 is left over from the last epoch of the longest run from which the table was made.
        starts = [epoch for epoch, _ in entry["from_epoch_bs"][1:] if epoch != 759]
        batches = [batch for epoch, batch in entry["from_epoch_bs"] if epoch != 759]
        known = DOUBLINGS.get(entry["model"], {}).get(entry["bs"], {}).get(entry["scale"], ())
        assert list(known) == starts, entry
        assert batches == [entry["bs"] << turn for turn in range(len(batches))]


def test_all_completion_times_of_gandiva_fair_are_met() -> None:
    published = _json("shockwave_published_per_job.json")["tacc_32gpus/gandiva_fair_simulation"]
    result = _run("gandiva_fair")
    np.testing.assert_allclose(result.jct_s, published["jct"], rtol=0, atol=1e-3)
    np.testing.assert_allclose(result.rho["static"], published["ftf"], rtol=0, atol=6e-6)
    np.testing.assert_allclose(result.rho["concurrent"], published["ftf_themis"], rtol=0, atol=6e-6)
    assert result.makespan_s == pytest.approx(published["makespan"], abs=1e-6)
    assert result.mean_jct_s == pytest.approx(published["avg_jct"], abs=1e-6)
    assert result.utilisation == pytest.approx(published["cluster_util"], abs=1e-6)


# policy: makespan, mean JCT, worst rho, unfair %, utilisation, rounds
FIGURES = {
    "gandiva_fair": (32367.4, 12574.3, 1.8536, 51.67, 0.6105, 270),
    "isolated": (33207.7, 11267.9, 2.9470, 25.00, 0.5949, 277),
}


@pytest.mark.parametrize("policy", FIGURES)
def test_the_published_figures_are_met(policy: str) -> None:
    figures = _run(policy).figures()
    makespan, jct, worst, unfair, used, rounds = FIGURES[policy]
    assert figures["makespan_s"] == pytest.approx(makespan, abs=0.05)
    assert figures["jct_s"]["mean"] == pytest.approx(jct, abs=0.05)
    assert figures["ftf"]["static"]["worst"] == pytest.approx(worst, abs=5e-5)
    assert 100 * figures["ftf"]["static"]["unfair_fraction"] == pytest.approx(unfair, abs=5e-3)
    assert figures["utilisation"] == pytest.approx(used, abs=5e-5)
    assert figures["rounds"] == rounds


def test_a_run_takes_little_cpu() -> None:
    """About half a second after start-up; the limit leaves room for a machine that is busy with other things."""
    assert _run("gandiva_fair").costs.cpu_s < 3.0
