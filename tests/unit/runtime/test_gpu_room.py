"""Room on GPUs is made by the cheapest way that frees enough, and never takes more host memory than it may."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fairway.core.batch import Split
from fairway.runtime.journal.job_folders import RECORD
from fairway.runtime.processes.attempts import Attempts, AttemptTarget, BlockedGpus, LaunchOrder, NoRoom
from fairway.runtime.processes.gpu_room import READY_EVERY_S
from fairway.testing.seeds import some
from fairway.testing.simulated_site import Behaviour, SimulatedAttempt, SimulatedSite, SimulatedTime

GB = 1 << 30


class Turns:
    """GPUs of 16 GB, on which jobs take turns as a test says. Jobs are suspended in place."""

    def __init__(self, jobs: dict[int, Behaviour], host_bytes: int = 1 << 60) -> None:
        self.time = SimulatedTime()
        self.site = SimulatedSite(self.time, lambda name: None)
        self.site.gpu_bytes = 16 * GB
        self.says = dict.fromkeys(jobs, True)
        self.targets: dict[int, AttemptTarget] = {}
        self._jobs = jobs
        self.attempts = Attempts(self.site, self, BlockedGpus(), anywhere=False, host_bytes=lambda: host_bytes)

    def wanted(self) -> list[int]:
        return list(self.targets)

    def target(self, job: int) -> AttemptTarget | None:
        return self.targets.get(job)

    def adjusted(self) -> dict[int, tuple[float, Split | None]]:
        return {}

    def stays(self, job: int) -> bool:
        return True

    def needs_bytes(self, job: int) -> int:
        return self._jobs[job].memory_bytes if self.says[job] else 0

    def saves(self, job: int) -> bool:
        return False

    def share_a_process(self, job: int, other: int) -> bool:
        return False

    def begin(self, job: int, gpus: tuple[int, ...]) -> LaunchOrder:
        record = {"id": str(job), "attempts": [{"gpus": gpus}], "request": {"memory_bytes": self.needs_bytes(job)}}
        about = {"ranks": [{"argv": self._jobs[job].command()}], "grace_s": 60.0, "limit_s": None}
        return LaunchOrder(Path(f"/{job}"), "", {RECORD: record, **about})

    def turn(self, *jobs: int, gpus: tuple[int, ...] = (0,)) -> None:
        """Give a GPU to each of these jobs in turn, or wait until it is known that it has no room."""
        for job in jobs:
            off = [other for other, target in self.targets.items() if set(target.gpus) & set(gpus) and other != job]
            self.targets = {other: target for other, target in self.targets.items() if other not in off}
            self.targets[job] = AttemptTarget(gpus)
            self.attempts.aim(off, [job])
            for _ in range(1000):
                for notice in self.attempts.wait(0.1):
                    if isinstance(notice, NoRoom):
                        self.targets.pop(notice.job, None)
                self.attempts.settle()
                if self.runs(job) or job not in self.attempts.room.why:
                    break
            else:
                raise AssertionError(f"job {job} waits for ever")

    def runs(self, job: int) -> bool:
        return job in self.attempts.live and self.attempts.live[job].status == "running"

    def attempt(self, job: int) -> SimulatedAttempt:
        return self.site.attempts[Path(f"/{job}")]

    def ways(self, job: int) -> tuple[str, ...]:
        """How a job has left; () if it has not."""
        found = [one.memory for one in self.site.alive() if one.job == str(job)]
        return found[0].ways if found and found[0].place == "host" else ()


def _job(gigabytes: float, **about: object) -> Behaviour:
    made = Behaviour(1e9, memory_bytes=int(gigabytes * GB), move_s=0.1, rest_bytes=GB)
    return made._replace(**about)  # type: ignore[arg-type]


def test_a_rest_stays_on_the_gpu_while_there_is_room_beside_it() -> None:
    world = Turns({1: _job(10), 2: _job(10)})
    world.turn(1, 2)
    assert world.runs(2)
    assert world.ways(1) == ("moved",)
    assert world.attempt(1).on_gpu_bytes() == GB


def test_the_driver_takes_a_rest_that_stands_in_the_way() -> None:
    world = Turns({1: _job(10), 2: _job(15)})
    world.turn(1, 2)
    assert world.runs(2)
    assert world.ways(1) == ("moved", "driver")
    assert not world.site.crowded
    world.turn(1)
    assert world.runs(1)
    assert world.ways(2) == ("moved",)


def test_only_as_many_rests_are_taken_as_stand_in_the_way() -> None:
    jobs = {number: _job(14) for number in range(1, 5)}
    world = Turns({**jobs, 5: _job(12.4)})
    world.turn(1)
    # Each rest is a gigabyte. When the fifth comes, there are four of them.
    for job in (2, 3):
        world.turn(job)
    world.attempts.note_plan({1: 0})
    world.turn(5)
    assert world.runs(5)
    assert not world.site.crowded
    assert sum("driver" in world.ways(job) for job in (1, 2, 3)) < 3
    # The next in the plan keeps its rest.
    assert world.ways(1) == ("moved",)


def test_a_rest_that_cannot_be_taken_is_asked_for_once() -> None:
    world = Turns({1: _job(10, rest_stays=True), 2: _job(15)})
    asked: list[str] = []
    world.site.point = asked.append
    world.turn(1, 2)
    assert asked.count("move out") == 2
    # It is not known to be too little: what a job needs includes its context.
    assert world.runs(2)


def test_a_rest_stays_if_nobody_knows_what_is_needed() -> None:
    world = Turns({1: _job(10), 2: _job(10)})
    world.says[2] = False
    world.turn(1, 2)
    assert world.runs(2)
    assert world.ways(1) == ("moved",)


def _host_bytes(world: Turns) -> int:
    return sum(one.ready_bytes for one in world.site.alive())


@pytest.mark.parametrize("known", [True, False])
def test_jobs_that_leave_at_the_same_time_share_the_host(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 5 GB leave for one of 15, and the host takes two of them."""
    world = Turns({**{job: _job(5, rest_bytes=0) for job in (1, 2, 3)}, 4: _job(15, rest_bytes=0)}, 11 * GB)
    monkeypatch.setattr(world.attempts.room, "held_bytes", lambda one, live: 5 * GB if known else 0)
    world.turn(1, 2, 3, 4)
    assert _host_bytes(world) <= 11 * GB
    assert [bool(world.ways(job)) for job in (1, 2, 3)].count(True) == 2
    assert [world.attempts.live[job].stuck for job in (1, 2, 3)].count(True) == 1


@pytest.mark.parametrize("seed", some(range(60), 20))
def test_host_memory_for_all_jobs_stays_within_its_bound(seed: int) -> None:
    """Jobs pin ahead, leave, come back, keep or drop their buffers, and end, in any order."""
    draw = random.Random(seed)
    limit = draw.choice((0, 4, 12, 30, 60)) * GB
    jobs = {number: _job(draw.uniform(1, 15), rest_bytes=draw.choice((0, GB))) for number in range(12)}
    homes = {number: draw.choice(((0,), (1,), (2,), (0, 1), (1, 2))) for number in jobs}
    world = Turns(jobs, limit)
    most, moved = 0, 0
    for _ in range(100):
        job = draw.randrange(12)
        world.says[job] = draw.random() < 0.7
        world.turn(job, gpus=homes[job])
        if draw.random() < 0.5:
            world.time.go_by(READY_EVERY_S)
            world.attempts.tell(world.time.monotonic())
        if draw.random() < 0.1:
            world = _restarted(world, limit)
        if draw.random() < 0.3:
            # Nobody knows what those that are suspended from now on have.
            world.attempts.room.held_bytes = lambda one, live: 0  # type: ignore[method-assign]
        most = max(most, _host_bytes(world))
        moved += any(world.ways(one) for one in jobs)
        assert _host_bytes(world) <= limit
    assert limit < 15 * GB or (most > 0 and moved > 0)


def _restarted(world: Turns, limit: int) -> Turns:
    """The same place with another scheduler."""
    live = world.attempts.live
    world.attempts = Attempts(world.site, world, BlockedGpus(), anywhere=False, host_bytes=lambda: limit)
    for job, one in live.items():
        world.attempts.adopt(job, one.gpus, one.handle, paused=one.status == "paused")
    world.attempts.settle()
    return world
