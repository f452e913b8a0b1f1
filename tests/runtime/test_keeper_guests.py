"""Guests on the GPU of another job, live: throttled as the policy says, over restarts, until their host is gone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_scheduler import clear, cluster_of, ended, submit, until
from real_processes import python, state_of, stays, takes_turns, wait_for

from fairway.placement import placement
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.processes.local import HURRY_S
from fairway.testing.hosted import Hosted
from fairway.testing.waiting import WAIT_S

BUSY = "while True: pass"


class RestartableScheduler:
    """A scheduler of one GPU that may be left, as if it had been killed, and started again."""

    def __init__(self, folder: Path, part: float) -> None:
        self.policy = Hosted(part)
        self.folder = folder
        self.scheduler: Scheduler
        self.open()

    def open(self) -> None:
        cluster = cluster_of(1)
        self.scheduler = Scheduler(self.folder, cluster, self.policy, placement("packed"), min_run_s=0.0)
        self.thread = self.scheduler.start()

    def close(self) -> None:
        self.scheduler.close()
        self.thread.join(WAIT_S)

    def throttle(self, part: float) -> None:
        """Have a round with another throttle."""
        self.policy.part = part
        self.scheduler.ask(lambda now_s: (None, ([], None))[1])

    def told(self, job: JobRecord) -> float:
        """What the keeper of a job was told last."""
        return self.scheduler.engine.attempts.live[job.number].handle.throttled


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RestartableScheduler]:
    made = RestartableScheduler(tmp_path, 0.1)
    yield made
    for record in made.scheduler.store:
        made.scheduler.cancel(record.id)
    wait_for(lambda: not made.scheduler.engine.attempts.live)
    made.close()
    left = clear(tmp_path)
    assert not left, f"processes {left} were left behind"


def rank_of(site: RestartableScheduler, job: JobRecord) -> int:
    """The pid of the only rank of a job."""
    path = site.folder / "jobs" / job.id / "attempt-1" / "ranks.json"
    wait_for(path.exists)
    return int(json.loads(path.read_text())[0][0])


def two(site: RestartableScheduler) -> tuple[JobRecord, JobRecord]:
    """A host and its guest, which both compute."""
    host = until(submit(site.scheduler, ["sleep", "600"]), JobState.RUNNING)
    guest = until(submit(site.scheduler, python(BUSY)), JobState.RUNNING)
    return host, guest


def test_a_guest_is_throttled_from_its_start_and_as_the_policy_says_later(site: RestartableScheduler) -> None:
    _, guest = two(site)
    wait_for(lambda: site.told(guest) == 0.1)
    pid = rank_of(site, guest)
    takes_turns(pid)
    site.throttle(0.5)
    wait_for(lambda: site.told(guest) == 0.5)
    takes_turns(pid)
    site.throttle(1.0)
    wait_for(lambda: site.told(guest) == 1.0)
    stays(pid, stopped=False)


def test_a_guest_whose_host_has_left_is_not_throttled_any_more(site: RestartableScheduler) -> None:
    host, guest = two(site)
    wait_for(lambda: site.told(guest) == 0.1)
    site.scheduler.cancel(host.id)
    wait_for(lambda: site.told(guest) == 1.0, "the throttle to end")
    assert (guest.state, len(guest.attempts)) == (JobState.RUNNING, 1)


def test_guests_that_are_left_behind_share_with_one_another(site: RestartableScheduler) -> None:
    host, first = two(site)
    second = until(submit(site.scheduler, python(BUSY)), JobState.RUNNING)
    site.scheduler.cancel(host.id)

    def hosts() -> list[int]:
        targets = [site.scheduler.jobs.target(job.number) for job in (first, second)]
        return [target.host for target in targets if target is not None]

    wait_for(lambda: hosts() == [-1, first.number])
    third = until(submit(site.scheduler, python(BUSY)), JobState.RUNNING)
    wait_for(lambda: [site.told(job) for job in (first, second, third)] == [1.0, 0.1, 0.1])


def test_a_throttle_is_kept_over_a_restart_of_the_scheduler(site: RestartableScheduler) -> None:
    _, guest = two(site)
    wait_for(lambda: site.told(guest) == 0.1)
    site.close()
    pid = rank_of(site, guest)
    takes_turns(pid)
    site.open()
    guest = site.scheduler.store[1]
    assert site.told(guest) == 0.1
    takes_turns(pid)
    assert len(guest.attempts) == 1
    site.throttle(1.0)
    wait_for(lambda: site.told(guest) == 1.0)


def test_a_guest_that_was_suspended_goes_on_throttled(site: RestartableScheduler) -> None:
    _, guest = two(site)
    pid = rank_of(site, guest)
    wait_for(lambda: site.told(guest) == 0.1)
    site.scheduler.suspend(guest.id)
    wait_for(lambda: guest.state is JobState.SUSPENDED)
    stays(pid, stopped=True)
    site.scheduler.release(guest.id)
    until(guest, JobState.RUNNING)
    takes_turns(pid)


def test_a_suspended_job_that_is_cancelled_has_not_its_whole_grace_period(site: RestartableScheduler) -> None:
    ignores = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\nwhile True: pass"
    job = until(submit(site.scheduler, python(ignores), grace_s=600.0), JobState.RUNNING)
    log = site.folder / "jobs" / job.id / "attempt-1" / "rank-0.log"
    wait_for(lambda: log.exists() and "ready" in log.read_text())
    site.scheduler.suspend(job.id)
    pid = rank_of(site, job)
    wait_for(lambda: state_of(pid) == "T")
    began_s = time.monotonic()
    site.scheduler.cancel(job.id)
    ended(job)
    assert time.monotonic() - began_s >= HURRY_S
