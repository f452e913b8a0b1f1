"""What becomes of a job when its attempt is over, without any processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.core.event import Event, JobEvicted, JobFailed, JobFinished, RateChanged
from fairway.core.state import State
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.machine import virtual_machine
from fairway.runtime.daemon.timers import Timers
from fairway.runtime.jobs.attempt_ends import BACK_OFF_S, MOST_LOST, AttemptEnds
from fairway.runtime.jobs.estimates import submitted
from fairway.runtime.jobs.observations import Observations
from fairway.runtime.jobs.records import Attempt, JobRecord, JobState, JobStore
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.attempts import LOST, Outcome
from fairway.runtime.processes.local import LocalProcesses, Target

CLUSTER = virtual_machine(2).cluster
TARGET = Target((0,))


class Site:
    """One job, its attempts, and those who are told when it loses its GPUs."""

    def __init__(self, folder: Path, retries: int = 0) -> None:
        self.folder = folder
        self.store, self.clock, self.timers = JobStore(), Clock(0.0), Timers()
        self.seen = Observations(self.store, CLUSTER, lambda record: folder, lambda record, now_s: record.ran_s)
        self.seen.state = State(CLUSTER)
        self.processes = LocalProcesses(lambda job, gpus: (folder, "", {}), lambda job: False, anywhere=True)
        self.ends = AttemptEnds(self.store, self.clock, self.seen, self.processes, self.timers)
        self.off: list[JobState] = []
        self.ends.on_off = lambda record: self.off.append(record.state)
        self.job = JobRecord(0, "1", JobRequest(command=("true",), retries=retries), 0.0)
        self.store.add(self.job)
        self.seen.state.apply(submitted(self.job, CLUSTER, 100.0, 0.0, self.seen.restarts.unknown_s))

    def end(self, outcome: Outcome, now_s: float = 30.0) -> list[Event]:
        """The job has run from 10 s on, and its attempt is over."""
        self.job.attempts.append(Attempt(len(self.job.attempts) + 1, [0, 1], "token", 10.0, started_s=10.0))
        self.job.state, self.job.since_s = JobState.RUNNING, 10.0
        self.processes.targets[0] = TARGET
        return self.ends.over(self.job, outcome, self.folder, now_s)


def test_whoever_has_done_its_work_is_completed_and_charged_until_it_ended(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.end(Outcome((0, 0), ended_s=25.0))[0] == JobFinished(30.0, 0)
    assert (site.job.state, site.job.exit_code, site.job.ran_s, site.job.gpu_s) == (JobState.COMPLETED, 0, 15.0, 30.0)
    assert site.off == [JobState.COMPLETED]
    assert not site.processes.targets
    assert site.store.take_changed() == [site.job]


def test_whoever_was_stopped_to_go_on_elsewhere_keeps_its_target(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert isinstance(site.end(Outcome((143,), "request"))[0], RateChanged)
    assert site.processes.targets == {0: TARGET}
    assert (site.job.state, site.off) == (JobState.PREEMPTED, [])


def test_but_not_where_its_gpus_are_to_be_left_alone(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.processes.blocked = {0: "somebody else computes there"}
    assert isinstance(site.end(Outcome((143,), "request"))[0], JobEvicted)
    assert not site.processes.targets


def test_whoever_stopped_by_itself_waits_outside_with_what_it_did_as_the_reason(tmp_path: Path) -> None:
    site, reasons = Site(tmp_path), list[str]()
    site.ends.on_off = lambda record: reasons.append(record.reason)
    assert isinstance(site.end(Outcome((75,)))[0], JobEvicted)
    assert reasons == [site.job.reason]
    assert reasons[0]


def test_failures_are_tried_again_after_longer_and_longer_waits(tmp_path: Path) -> None:
    site = Site(tmp_path, retries=2)
    for wait_s in (BACK_OFF_S, 2 * BACK_OFF_S):
        assert isinstance(site.end(Outcome((9,)))[0], JobEvicted)
        assert (site.job.state, site.job.not_before_s) == (JobState.PENDING, 30.0 + wait_s)
        assert site.timers.next_s == 30.0 + wait_s
        assert site.timers.rang(30.0 + wait_s)
    assert isinstance(site.end(Outcome((9,)))[0], JobFailed)
    assert (site.job.state, site.job.exit_code, site.job.failures) == (JobState.FAILED, 9, 3)
    assert site.off == [JobState.PENDING, JobState.PENDING, JobState.FAILED]


def test_a_machine_that_loses_a_job_is_not_its_fault_but_not_for_ever(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.end(LOST)
    assert site.job.not_before_s == 30.0
    for _ in range(MOST_LOST - 1):
        site.end(LOST)
    assert (site.job.state, site.job.failures) == (JobState.PENDING, 0)
    site.end(LOST)
    assert site.job.state is JobState.NODE_FAIL


def test_whoever_was_cancelled_stays_so(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.end(Outcome((9,), "request"))
    site.job.state, site.job.since_s = JobState.CANCELLED, None
    assert site.ends.over(site.job, Outcome((0,), ended_s=28.0), tmp_path, 30.0) == []
    assert (site.job.state, site.job.ended_s) == (JobState.CANCELLED, 28.0)


@pytest.mark.parametrize(("preempt", "state"), [("suspend", "SUSPENDED"), ("checkpoint", "PREEMPTED")])
def test_whoever_is_preempted_is_charged_if_it_ran(tmp_path: Path, preempt: str, state: str) -> None:
    site = Site(tmp_path)
    job = JobRecord(1, "2", JobRequest(command=("true",), preempt=preempt), 0.0)  # type: ignore[arg-type]
    site.ends.preempted(job, 5.0)
    assert (job.state, job.preemptions, site.off) == (JobState.PENDING, 0, [JobState.PENDING])
    job.attempts.append(Attempt(1, [0], "token", 2.0))
    job.state, job.since_s = JobState.RUNNING, 2.0
    site.processes.live[1] = None  # type: ignore[assignment]
    site.ends.preempted(job, 5.0)
    assert (job.state, job.preemptions, job.ran_s, job.since_s) == (JobState(state), 1, 3.0, None)
