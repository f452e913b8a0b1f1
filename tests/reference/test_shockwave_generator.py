"""The generator after Shockwave's against the published trace of its artifact (NSDI'23).

Needs the published traces and figures beside the repository (`../shared/data/gavel`); they are not part of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairway.models.profile import load_profile
from fairway.traces import read_trace, shockwave_like
from fairway.traces.generate import BATCH_SIZES, NOT_IN_SHOCKWAVE

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gavel"
TRACE = DATA / "traces" / "shockwave_tacc_120jobs.trace"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the published traces are not here")


def test_the_published_jobs_are_of_the_generated_kinds() -> None:
    table = {(model, batch) for model, batches in BATCH_SIZES.items() for batch in batches}
    assert {(job.model, job.batch_size) for job in read_trace(str(TRACE)).jobs} == table - NOT_IN_SHOCKWAVE


def test_published_steps_are_the_nominal_duration_at_the_profile_speed() -> None:
    profile = load_profile(str(DATA / "tacc_throughputs.json"))
    rows = [line.split("\t") for line in TRACE.read_text().splitlines()]
    for job, row in zip(read_trace(str(TRACE)).jobs, rows, strict=True):
        seconds = float(row[10])
        assert job.steps == int(seconds * profile.rate(job.model, job.batch_size, "v100", job.gpus))
        assert job.adaptation != "accordion" or seconds >= 1000


def test_published_durations_and_gangs_are_likely_draws() -> None:
    """Means of the published 120 jobs lie within the middle 99 % of those of generated traces."""
    rows = [line.split("\t") for line in TRACE.read_text().splitlines()]
    published = _figures(np.array([float(row[10]) for row in rows]), np.array([int(row[6]) for row in rows]))
    drawn = np.array(
        [
            _figures(np.array([job.duration_s for job in one.jobs]), np.array([job.gpus for job in one.jobs]))
            for one in (shockwave_like(jobs=120, seed=seed) for seed in range(200))
        ]
    )
    low, high = np.percentile(drawn, (0.5, 99.5), axis=0)
    assert (low <= published).all()
    assert (published <= high).all()


def _figures(seconds: np.ndarray, gpus: np.ndarray) -> np.ndarray:
    return np.array([seconds.mean(), (seconds < 4000).mean(), (gpus == 1).mean(), gpus.mean()])
