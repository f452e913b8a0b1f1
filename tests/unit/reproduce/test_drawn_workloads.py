"""The jobs that cases draw: by strata, the same at every load, and more of them begin with fewer."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.models.profile import load_profile
from fairway.reproduce.systems.gavel import load
from fairway.reproduce.systems.hare.workload import TaskRun, cluster_of, drawn


def test_every_hundred_jobs_have_the_durations_of_the_distribution() -> None:
    _, length_s = load._stream(load_profile(None), 4.0, 3000)
    hours = length_s.reshape(-1, 100) / 3600
    assert hours.mean() == pytest.approx(load._mean_duration_h(), rel=0.01)
    assert (np.abs(hours.mean(axis=1) / hours.mean() - 1) < 0.02).all()
    assert ((hours > 1000 / 60).sum(axis=1) == 20).all()


def test_another_load_has_the_same_jobs_at_other_times() -> None:
    few, many = (load._stream(load_profile(None), each, 50)[0].jobs for each in (4.0, 5.0))
    assert [(job.model, job.steps) for job in few] == [(job.model, job.steps) for job in many]
    assert few[-1].submitted_s == pytest.approx(1.25 * many[-1].submitted_s)


def test_no_policy_that_is_blind_to_types_bears_more_than_one_that_sees_them() -> None:
    aware, agnostic = load._bounds(load_profile(None))
    assert 0 < agnostic <= aware


def test_more_jobs_begin_with_the_fewer_ones_and_types_alternate() -> None:
    few, many = (drawn(TaskRun("hare", jobs, 16, 3)).jobs for jobs in (10, 20))
    assert many[:10] == few
    assert cluster_of(TaskRun("hare", 1, 16, 1)) == ",".join(["v100:1x2,t4:1x2,m60:1x2,k80:1x2"] * 2)
    assert cluster_of(TaskRun("hare", 1, 16, 1, patterned=False)) == "v100:2x2,t4:2x2,m60:2x2,k80:2x2"
