"""Live attempts by GPU, and what a large number of them costs a look."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from fairway.core.cluster import Cluster, Node
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon import engine
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.live_attempt import Live, LiveAttempts
from fairway.runtime.processes.site import Handle, Report
from fairway.testing.simulated_site import Behaviour, SimulatedTime
from fairway.testing.training_site import TrainingSite


def live(job: int, *gpus: int) -> Live:
    return Live(job, gpus, cast(Handle, None))


def test_attempts_are_found_by_their_gpus_until_they_end_or_move() -> None:
    attempts = LiveAttempts()
    one, two = live(1, 0, 1), live(2, 1)
    attempts.put(one)
    attempts.put(two)
    assert attempts.on((1,)) == [one, two]
    assert attempts.on((0, 1)) == [one, two], "each once"
    attempts.move(one, (2, 3))
    assert attempts.on((0, 1)) == [two]
    assert attempts.on((3,)) == [one]
    del attempts[2]
    assert attempts.on((0, 1, 2)) == [one]
    again = live(2, 1)
    attempts.put(again)
    assert attempts.on((1,)) == [again], "not the attempt that has ended"


class CountingSite(TrainingSite):
    """Counts how often each job's reports are read."""

    def __init__(self, time: SimulatedTime, cluster: Cluster) -> None:
        super().__init__(time, cluster)
        self.read: dict[str, int] = {}

    def reports(self, folder: Path, read_bytes: int, *, final: bool = False) -> Report:
        self.read[folder.name] = self.read.get(folder.name, 0) + 1
        return super().reports(folder, read_bytes, final=final)


def test_where_many_jobs_run_they_are_looked_at_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_LOOKED_AT", 3)
    time = SimulatedTime()
    cluster = Cluster.of([Node("one", "v100", 8)])
    site = CountingSite(time, cluster)
    scheduler = Scheduler(
        tmp_path, cluster, make_policy("fifo"), placement("packed"), devices=list("abcdefgh"), site=site, time=time
    )
    scheduler.begin()
    command = Behaviour(1e4, speeds={"v100": 1.0}).command()
    answer = scheduler.submission([JobRequest(command, cwd="/") for _ in range(8)])
    while len(scheduler.engine.attempts.live) < 8 or not answer.done():
        scheduler.loop.step()
    site.read.clear()
    begin_s, most = time.monotonic(), 0
    while time.monotonic() < begin_s + 15.0:
        before = sum(site.read.values())
        scheduler.loop.step()
        most = max(most, sum(site.read.values()) - before)
    assert most == 3
    assert len(site.read) == 8
    # Three looks for all of them, two looks per second.
    assert all(9 <= count <= 11 for count in site.read.values()), site.read
    assert all(record.progress.step > 10 for record in scheduler.store)
    scheduler.stop()
