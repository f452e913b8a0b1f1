"""Attempts on their way to their targets: nobody starts on GPUs that others have, and virtual GPUs change numbers."""

from __future__ import annotations

from pathlib import Path

from fairway.core.batch import Split
from fairway.runtime.journal.job_folders import RECORD
from fairway.runtime.processes.attempts import Attempts, AttemptTarget, BlockedGpus, Ended, LaunchOrder, Started
from fairway.testing.simulated_site import Behaviour, SimulatedSite, SimulatedTime


class Wishes:
    """Targets as a test sets them, for stubborn jobs."""

    def __init__(self) -> None:
        self.targets: dict[int, AttemptTarget] = {}
        self._begun = 0

    def wanted(self) -> list[int]:
        return list(self.targets)

    def target(self, job: int) -> AttemptTarget | None:
        return self.targets.get(job)

    def adjusted(self) -> dict[int, tuple[float, Split | None]]:
        return {job: (target.throttle, target.batch) for job, target in self.targets.items()}

    def stays(self, job: int) -> bool:
        return False

    def needs_bytes(self, job: int) -> int:
        return 0

    def saves(self, job: int) -> bool:
        return False

    def share_a_process(self, job: int, other: int) -> bool:
        return False

    def begin(self, job: int, gpus: tuple[int, ...]) -> LaunchOrder:
        self._begun += 1
        record = {"id": str(job), "attempts": [{"gpus": gpus}]}
        ranks = [{"argv": Behaviour(1e9, on_term="ignores").command()}]
        return LaunchOrder(
            Path(f"/{self._begun}"), "", {RECORD: record, "ranks": ranks, "grace_s": 60.0, "limit_s": None}
        )


def test_no_job_starts_beside_one_that_stops_even_if_that_is_to_come_back_as_its_guest() -> None:
    time, wishes = SimulatedTime(), Wishes()
    attempts = Attempts(SimulatedSite(time, lambda name: None), wishes, BlockedGpus(), anywhere=False)
    wishes.targets = {1: AttemptTarget((0,))}
    attempts.aim([], [1])
    wishes.targets = {2: AttemptTarget((0,))}
    attempts.aim([1], [2])
    wishes.targets = {2: AttemptTarget((0,)), 1: AttemptTarget((0,), host=2, throttle=0.2)}
    attempts.aim([], [1])
    attempts.settle()
    assert {job: live.status for job, live in attempts.live.items()} == {1: "stopping"}
    time.sleep(60.0)
    attempts.noticed()
    attempts.wait(0.0)
    attempts.settle()
    assert attempts.live[2].status == "running"


def _gpus(attempts: Attempts) -> dict[int, tuple[int, ...]]:
    return {job: live.gpus for job, live in attempts.live.items()}


def test_a_guest_gets_a_virtual_gpu_of_its_own_once_the_job_that_stops_there_is_gone() -> None:
    time, wishes = SimulatedTime(), Wishes()
    attempts = Attempts(SimulatedSite(time, lambda name: None), wishes, BlockedGpus(), anywhere=True)
    wishes.targets = {1: AttemptTarget((0,)), 2: AttemptTarget((1,)), 3: AttemptTarget((1,), host=2, throttle=0.2)}
    attempts.aim([], [1, 2, 3])
    attempts.noticed()
    wishes.targets = {2: AttemptTarget((1,)), 3: AttemptTarget((0,)), 4: AttemptTarget((1,), host=2)}
    attempts.aim([1], [3, 4])
    assert _gpus(attempts) == {1: (0,), 2: (1,), 3: (1,)}
    assert attempts.noticed() == [Started(3, (1,), resumed=True)]
    time.sleep(60.0)
    attempts.wait(0.0)
    attempts.settle()
    assert _gpus(attempts) == {2: (1,), 3: (0,), 4: (1,)}
    assert attempts.noticed() == [Started(3, (0,), resumed=True), Started(4, (1,), resumed=False)]


def test_virtual_gpus_change_their_numbers_in_a_circle() -> None:
    time, wishes = SimulatedTime(), Wishes()
    attempts = Attempts(SimulatedSite(time, lambda name: None), wishes, BlockedGpus(), anywhere=True)
    wishes.targets = {job: AttemptTarget((job,)) for job in range(4)}
    attempts.aim([], list(wishes.targets))
    wishes.targets = {0: AttemptTarget((1,)), 1: AttemptTarget((0,)), 2: AttemptTarget((3,)), 4: AttemptTarget((2,))}
    attempts.aim([3], [0, 1, 2, 4])
    assert _gpus(attempts) == {0: (1,), 1: (0,), 2: (2,), 3: (3,)}
    attempts.noticed()
    time.sleep(60.0)
    attempts.wait(0.0)
    attempts.settle()
    assert _gpus(attempts) == {0: (1,), 1: (0,), 2: (3,), 4: (2,)}


def test_a_start_that_was_refused_is_not_tried_again_before_that_is_known() -> None:
    wishes = Wishes()
    site = SimulatedSite(SimulatedTime(), lambda name: None)
    attempts = Attempts(site, wishes, BlockedGpus(), anywhere=False)
    wishes.targets = {1: AttemptTarget((0,))}
    site.refuses = True
    attempts.aim([], [1])
    site.refuses = False
    attempts.settle()
    assert [type(notice) for notice in attempts.noticed()] == [Ended]
    attempts.settle()
    assert attempts.noticed() == [Started(1, (0,), resumed=False)]


def test_an_attempt_is_told_its_batch_at_its_start_and_when_that_changes() -> None:
    wishes = Wishes()
    attempts = Attempts(SimulatedSite(SimulatedTime(), lambda name: None), wishes, BlockedGpus(), anywhere=True)
    wishes.targets = {1: AttemptTarget((0, 1), batch=Split(32)), 2: AttemptTarget((2,))}
    attempts.aim([], [1, 2])
    assert attempts.live[1].handle.wanted == (Split(32), 2)
    assert attempts.live[2].handle.wanted is None
    wishes.targets[1] = AttemptTarget((0, 1), batch=Split(64, 1))
    attempts.tell(0.0)
    assert attempts.live[1].handle.wanted == (Split(64, 1), 2)
    wishes.targets[1] = AttemptTarget((0,), batch=Split(128))
    attempts.tell(0.0)
    assert attempts.live[1].handle.wanted == (Split(64, 1), 2), "it stops, and is started with the new batch"
