"""What is read off the log of a live job counts like a report, but never against the job's own word."""

from __future__ import annotations

import math

import pytest
from test_live_jobs import World, running

from fairway.core import columns
from fairway.core.event import Event, RegimeEntered
from fairway.models.log_progress import LogProgress
from fairway.runtime.jobs.life import ReadOff, Reported
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.records import JobRecord, JobState, Progress
from fairway.runtime.processes.site import Outcome, Report

HALF = LogProgress("tqdm", "step", 500.0, 1000.0, 5.0, 0.25)


def says(world: World, job: JobRecord, found: LogProgress | None, now_s: float = 110.0) -> list[Event]:
    return world.handle(ReadOff(now_s, job.number, len(job.attempts), found))


def left_s(world: World, now_s: float) -> float:
    """How long the first job is expected to go on."""
    f = world.state.table.f[:, 0]
    done = f[columns.PROGRESS0] + f[columns.RATE] * (now_s - f[columns.READY_S])
    return float((f[columns.REGIME_END] - done) / f[columns.RATE])


def test_the_state_knows_what_is_left_by_the_log() -> None:
    world, job = running()
    assert left_s(world, 110.0) == pytest.approx(3500.0)
    says(world, job, HALF)
    assert left_s(world, 110.0) == pytest.approx(100.0)
    assert (job.progress.source, job.progress.loss) == ("log (tqdm)", 0.25)
    assert job in world.store.take_changed()
    estimate = world.observations.estimate(job, 110.0)
    assert estimate.expected_s == pytest.approx(200.0)
    assert estimate.source == "its log (tqdm), at step 500 of 1,000"
    assert JobRecord.from_plain(job.plain()).progress == job.progress
    course = world.observations.courses.of(job.number)
    assert course is not None
    assert [(point.step, point.loss) for point in course.points()] == [(500.0, 0.25)]


def test_a_job_that_reports_itself_is_not_judged_by_its_log() -> None:
    world, job = running()
    own = [{"step": 10.0 * n, "steps": 400.0, "time": 100.0 + n} for n in range(1, 4)]
    world.handle(Reported(104.0, job.number, Report(own, 1)))
    before = Progress(**vars(job.progress))
    assert says(world, job, HALF, 105.0) == []
    assert says(world, job, None, 106.0) == []
    assert job.progress == before
    assert job.progress.is_own


@pytest.mark.parametrize("steps", [400.0, None])
def test_its_first_own_report_replaces_what_was_read(steps: float | None) -> None:
    world, job = running()
    says(world, job, HALF)
    own = [{"step": 10.0 * n, "steps": steps, "time": 120.0 + n} for n in range(1, 4)]
    events = world.handle(Reported(124.0, job.number, Report(own, 1)))
    assert isinstance(events[0], RegimeEntered)
    assert (job.progress.source, job.progress.step, job.progress.steps) == ("", 30.0, steps)
    assert job.progress.steps_per_s == pytest.approx(10.0)
    assert world.observations.counts_steps(job.number) is (steps is not None)
    assert left_s(world, 124.0) == pytest.approx(37.0 if steps else 3486.0)
    assert says(world, job, HALF, 130.0) == []


def test_a_log_that_says_nothing_any_more_leaves_what_was_assumed() -> None:
    world, job = running()
    told = says(world, job, HALF) + says(world, job, None, 120.0)
    assert left_s(world, 120.0) == pytest.approx(3490.0)
    assert not world.observations.counts_steps(job.number)
    assert says(world, job, None, 121.0) == []
    # The same after a restart.
    again = Observations(world.store, world.state, 0.0)
    for event in told[:1]:
        again.recall(event)
    assert again.counts_steps(job.number)
    for event in told[1:]:
        again.recall(event)
    assert not again.counts_steps(job.number)


def test_another_count_has_another_speed() -> None:
    world, job = running()
    says(world, job, HALF)
    says(world, job, LogProgress("Keras", "epoch", 1.0, 10.0, 0.01), 120.0)
    assert left_s(world, 120.0) == pytest.approx(900.0)
    assert (job.progress.unit, [*job.progress.speeds.values()]) == ("epoch", [0.01])
    # A pace that is measured again is the old one until then.
    says(world, job, LogProgress("Keras", "epoch", 2.0, 10.0, math.nan), 130.0)
    assert job.progress.steps_per_s == 0.01


def test_a_new_attempt_begins_its_log_again() -> None:
    world, job = running()
    says(world, job, HALF)
    world.handle(Reported(111.0, job.number, Report([{"checkpoint": "/saved"}], 1)))
    says(world, job, HALF._replace(done=700.0), 150.0)
    world.end(job, Outcome((143, 143), "request"), 160.0)
    assert job.state is JobState.PREEMPTED
    old = len(job.attempts)
    world.run(job, 170.0)
    assert (job.progress.step, job.progress.source) == (500.0, "log (tqdm)")
    assert world.handle(ReadOff(171.0, job.number, old, HALF._replace(done=900.0))) == []
    says(world, job, HALF._replace(done=550.0), 180.0)
    assert job.progress.step == 550.0
    assert left_s(world, 180.0) == pytest.approx(90.0)


def test_records_of_earlier_versions_are_of_jobs_that_report_themselves() -> None:
    old = {name: value for name, value in vars(Progress(step=5.0)).items() if name not in ("source", "unit")}
    assert Progress(**old).is_own
    assert not Progress().is_own
