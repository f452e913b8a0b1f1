"""The live scheduler on GPUs of several types: it learns how fast jobs are on each, and policies decide by that.

The site is simulated. Jobs of the kind "keen" are five times as fast on a fast GPU as on a slow one, and jobs of the
kind "calm" 1.1 times. The catalogue says three times for all, so only what jobs report can tell them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairway.core import columns
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.testing.simulated_site import Behaviour, SimulatedTime
from fairway.testing.training_site import TrainingSite

SPEEDS = {
    "keen": {"fast": 5.0, "middle": 2.0, "slow": 1.0},
    "calm": {"fast": 1.1, "middle": 1.05, "slow": 1.0},
}
ASSUMED = {"fast": 1.0, "middle": 0.6, "slow": 1 / 3}
LONG = 1e6


class MixedSite:
    """A scheduler on nodes of two GPUs, each of another type, and what it has done so far."""

    def __init__(self, folder: Path, policy: str, types: tuple[str, ...] = ("fast", "slow"), **options: Any) -> None:
        self.folder, self.policy, self.options = folder, policy, options
        self.time = SimulatedTime()
        kinds = [GpuType(name, 0, 0.0, ASSUMED[name]) for name in types]
        self.cluster = Cluster.of([Node(f"node of {name}", name, 2) for name in types], kinds)
        self.site = TrainingSite(self.time, self.cluster)
        self.used: Counter[tuple[str, str]] = Counter()
        self.scheduler = self.made()

    def made(self) -> Scheduler:
        devices = [f"gpu-{number}" for number in range(self.cluster.gpu_count)]
        about = {"devices": devices, "site": self.site, "time": self.time, "policy_text": self.policy, **self.options}
        scheduler = Scheduler(self.folder, self.cluster, make_policy(self.policy), placement("packed"), **about)
        scheduler.begin()
        return scheduler

    def restart(self) -> None:
        """Kill the scheduler; another one goes on."""
        self.scheduler.archive.close()
        self.scheduler.journal.close()
        self.scheduler = self.made()

    def submit(self, kind: str, steps: float = LONG, **about: Any) -> JobRecord:
        """A user of each kind submits a job of that kind."""
        command = Behaviour(steps, speeds=SPEEDS[kind]).command()
        asked = {"user": kind, "model": kind, "cwd": "/", "expected_s": 1e5, "preempt": "checkpoint"} | about
        answer = self.scheduler.submission([JobRequest(command, **asked)])
        while not answer.done():
            self.scheduler.loop.step()
        return answer.result()[0]

    def go_on(self, seconds: float) -> None:
        """Let time pass, and count for how long jobs of each kind compute on each type."""
        self.used.clear()
        until_s = self.time.monotonic() + seconds
        while (before_s := self.time.monotonic()) < until_s:
            live = [one for one in self.scheduler.engine.attempts.live.values() if one.status == "running"]
            places = [(self.scheduler.store[one.job].request.model, self.site.type_of(one.handle)) for one in live]  # type: ignore[arg-type]
            self.scheduler.loop.step()
            assert not self.scheduler.guard.problem
            for place in places:
                self.used[place] += self.time.monotonic() - before_s  # type: ignore[assignment]

    def part(self, kind: str, gpu_type: str) -> float:
        """The part of the time on GPUs of a type that jobs of a kind have had."""
        return self.used[kind, gpu_type] / sum(used for (_, where), used in self.used.items() if where == gpu_type)

    def speeds(self, record: JobRecord) -> tuple[float, ...]:
        """What policies see of a job's speeds, relative to the first type."""
        table = self.scheduler.state.table
        first, *others = table.f[columns.SPEEDS :, table.position(record.number)].tolist()
        return tuple(speed / first for speed in others)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    sites: list[MixedSite] = []

    def make(policy: str, *types: str, **options: Any) -> MixedSite:
        sites.append(MixedSite(tmp_path, policy, types or ("fast", "slow"), **options))
        return sites[-1]

    yield make
    for site in sites:
        site.scheduler.stop()


def assert_all_measured_speeds_are_true(site: MixedSite) -> None:
    """What was measured of a job in a place is what its site knows, however often the job was moved."""
    for record in site.scheduler.store:
        for place, speed in record.progress.speeds.items():
            true = SPEEDS[record.request.user][place.partition(" ")[2]]
            assert speed == pytest.approx(true, rel=0.03), f"job {record.id} on {place}"


def test_max_min_fairness_tries_all_on_both_types_and_then_gives_the_fast_one_to_those_that_gain(opened: Any) -> None:
    site = opened("max_min_fairness", round_s=60.0)
    jobs = [site.submit(kind) for _ in range(4) for kind in ("calm", "keen")]
    assert {site.speeds(job) for job in jobs} == {(1 / 3,)}, "nothing is known but the catalogue"
    site.go_on(1200.0)
    assert {kind.gpu_type for kind in site.scheduler.measured.profile.speeds} == {"fast", "slow"}
    assert len(site.scheduler.measured.profile.speeds) == 4, "each kind was tried on each type"
    site.go_on(3600.0)
    # By the plan for the true speeds, they have 74 % of the fast GPUs; by the catalogue, half.
    assert 0.6 < site.part("keen", "fast") < 0.85
    assert site.part("keen", "slow") < 0.1
    for job in jobs:
        assert site.speeds(job)[0] == pytest.approx(1 / 5 if job.request.model == "keen" else 1 / 1.1, rel=0.1)
    assert_all_measured_speeds_are_true(site)


def test_users_trade_by_what_was_measured_under_gandiva_fair(opened: Any) -> None:
    site = opened("gandiva_fair")
    for _ in range(4):
        site.submit("calm")
        site.submit("keen")
    site.go_on(600.0)
    assert len(site.scheduler.measured.profile.speeds) == 4, "in the first turns, each kind was on each type"
    site.go_on(3600.0)
    assert site.part("keen", "fast") > 0.6
    assert site.part("keen", "slow") < 0.1
    assert_all_measured_speeds_are_true(site)


def test_allox_sends_jobs_where_those_of_their_kind_were_fast(opened: Any) -> None:
    site = opened("allox:alpha=1")
    first = [site.submit(kind, 2000.0) for _ in range(4) for kind in ("calm", "keen")]
    while not all(job.state.ended for job in first):
        site.go_on(60.0)
    for kind in ("keen", "keen", *12 * ("calm", "keen")):
        site.submit(kind, 2000.0)
    site.go_on(1500.0)
    assert site.part("keen", "fast") > 0.9
    assert site.part("calm", "slow") > 0.9
    assert_all_measured_speeds_are_true(site)


@pytest.mark.parametrize("policy", ["sia", "max_throughput"])
def test_policies_that_add_up_work_give_the_fast_gpus_to_those_that_gain(policy: str, opened: Any) -> None:
    site = opened(policy)
    for _ in range(2):
        site.submit("calm")
        site.submit("keen")
    site.go_on(1800.0)
    site.go_on(900.0)
    assert site.part("keen", "fast") > 0.9
    assert_all_measured_speeds_are_true(site)


def test_what_was_learnt_outlives_the_scheduler_and_counts_for_new_jobs_of_the_same_kind(opened: Any) -> None:
    site = opened("max_min_fairness", round_s=60.0)
    jobs = [site.submit(kind) for _ in range(4) for kind in ("calm", "keen")]
    site.go_on(900.0)
    before = [site.speeds(job) for job in jobs]
    site.restart()
    assert [site.speeds(job) for job in jobs] == before
    assert site.speeds(site.submit("keen"))[0] == pytest.approx(1 / 5, rel=0.05)
    assert site.speeds(site.submit("calm"))[0] == pytest.approx(1 / 1.1, rel=0.05)
    assert site.speeds(site.submit("keen", model="another"))[0] == pytest.approx(1 / 3)
    site.go_on(600.0)
    assert_all_measured_speeds_are_true(site)


def test_a_job_that_waits_is_told_what_was_measured_of_its_kind(opened: Any) -> None:
    site = opened("fifo", "fast", "middle", "slow")
    for gpu_type in ("fast", "fast", "slow", "slow", "middle", "middle"):
        site.submit("keen", gpu_types=(gpu_type,))
    waits = site.submit("keen", gpus=2)
    assert site.speeds(waits) == pytest.approx((0.6, 1 / 3))
    site.go_on(60.0)
    assert site.speeds(waits) == pytest.approx((2 / 5, 1 / 5), rel=0.05)


def test_a_job_that_asks_for_a_type_gets_no_other_however_fast_that_is(opened: Any) -> None:
    site = opened("max_min_fairness", round_s=60.0)
    bound = site.submit("keen", gpu_types=("slow",))
    free = [site.submit("keen") for _ in range(3)]
    site.go_on(3600.0)
    assert set(bound.progress.speeds) == {"1 slow"}
    assert {place for job in free for place in job.progress.speeds} == {"1 slow", "1 fast"}
