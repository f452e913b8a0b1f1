"""What a live scheduler tells of the past: who held which GPU, what jobs reported, what happened to them.

All of it is the same after the scheduler was killed and another one goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fairway.api.job_views import course_of
from fairway.api.timeline import Timeline
from fairway.api.what_if import all_ahead
from fairway.core.cluster import Cluster, Node
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.job_story import story
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.testing.simulated_site import Behaviour, SimulatedTime
from fairway.testing.training_site import TrainingSite


class TellingSite:
    """A scheduler on two GPUs whose jobs report every second."""

    def __init__(self, folder: Path, policy: str, recent: int = 1000) -> None:
        self.folder, self.policy, self.recent = folder, policy, recent
        self.time = SimulatedTime()
        self.cluster = Cluster.of([Node("node-a", "v100", 2)])
        self.site = TrainingSite(self.time, self.cluster)
        self.scheduler = self.made()

    def made(self) -> Scheduler:
        scheduler = Scheduler(
            self.folder,
            self.cluster,
            make_policy(self.policy),
            placement("packed"),
            devices=["gpu-0", "gpu-1"],
            site=self.site,
            time=self.time,
            recent=self.recent,
        )
        scheduler.begin()
        return scheduler

    def close(self) -> None:
        self.scheduler.archive.close()
        self.scheduler.journal.close()

    def restart(self) -> None:
        self.close()
        self.scheduler = self.made()

    def submit(self, work_s: float, **about: Any) -> JobRecord:
        command = Behaviour(work_s, speeds={"v100": 1.0}).command()
        asked = {"user": "ada", "cwd": "/", "preempt": "checkpoint"} | about
        answer = self.scheduler.submission([JobRequest(command, **asked)])
        while not answer.done():
            self.scheduler.loop.step()
        return answer.result()[0]

    def until(self, at_s: float) -> None:
        while self.time.monotonic() < 1000.0 + at_s:
            self.scheduler.loop.step()

    def record(self, name: str) -> JobRecord:
        found = self.scheduler.store.get(name)
        assert found is not None
        return found

    def events(self, name: str) -> list[tuple[str, str]]:
        record = self.record(name)
        notes = self.scheduler.archive.notes(record.number)
        told = story(record, notes, self.scheduler.cluster, shift_s=self.scheduler.clock.shift_s, seen=True)
        assert [one["time_s"] for one in told] == sorted(one["time_s"] for one in told)
        return [(one["what"], one["text"]) for one in told]


@pytest.fixture(params=["las:levels=30", "tiresias:queues=30"])
def busy(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TellingSite]:
    """Long jobs make way for short ones that come later, and go on."""
    site = TellingSite(tmp_path, request.param)
    site.submit(150.0, gpus=2)
    site.until(50.0)
    site.submit(20.0, gpus=1)
    site.submit(20.0, gpus=1, preempt="suspend")
    site.until(120.0)
    yield site
    site.close()


def test_who_held_a_gpu_adds_up_and_survives_a_restart(busy: TellingSite) -> None:
    busy.until(400.0)
    records = list(busy.scheduler.store)
    assert {record.state for record in records} == {JobState.COMPLETED}
    before = Timeline(busy.scheduler).told()
    held = {record.id: 0.0 for record in records}
    for _, job, from_s, to_s, share, host in before["spans"]:
        assert (share, host) == (1.0, None)
        held[job] += to_s - from_s
    for record in records:
        assert held[record.id] == pytest.approx(record.gpu_s, abs=0.02)
    for gpu in (0, 1):
        own = sorted(span[2:4] for span in before["spans"] if span[0] == gpu)
        assert all(two[0] >= one[1] - 0.002 for one, two in itertools.pairwise(own))
    assert before["gpus"] == [{"gpu": gpu, "node": "node-a", "type": "v100"} for gpu in (0, 1)]
    busy.recent = 0
    busy.restart()
    after = Timeline(busy.scheduler).told()
    assert sorted(after["spans"]) == sorted(before["spans"])
    assert after["jobs"] == before["jobs"] == {one.id: {"name": "", "user": "ada"} for one in records}


def test_a_window_has_only_what_is_in_it(busy: TellingSite) -> None:
    now_s = busy.scheduler.clock.today_s(busy.scheduler.clock.now_s())
    told = Timeline(busy.scheduler).told(now_s - 10.0, now_s - 5.0)
    assert (told["from_s"], told["to_s"]) == (pytest.approx(now_s - 10.0), pytest.approx(now_s - 5.0))
    assert all(from_s >= now_s - 10.001 for _, _, from_s, *_ in told["spans"])
    assert all(to_s is None or to_s > now_s - 10.0 for _, _, _, to_s, *_ in told["spans"])
    assert Timeline(busy.scheduler).told(0.0, 1.0)["spans"] == []
    running = [one.id for one in busy.scheduler.store if one.state is JobState.RUNNING]
    assert {job for _, job, _, to_s, *_ in told["spans"] if to_s is None} == set(running)


def test_a_job_is_told_for_whom_it_made_way_and_who_did_what(busy: TellingSite) -> None:
    name = busy.policy.partition(":")[0]
    what, texts = zip(*busy.events("1"), strict=True)
    assert (what[0], texts[0]) == ("submitted", "submitted by ada")
    assert (what[1], texts[1]) == ("started", "started on GPUs 0, 1 of node-a")
    way = texts[what.index("preempted")]
    assert way.startswith(f"preempted for job 2 by {name}: ")
    assert "saved its state and stopped" in texts
    busy.restart()
    assert list(zip(what, texts, strict=True)) == busy.events("1")[: len(what)]
    answer = busy.scheduler.cancellation("1", "root")
    while not answer.done():
        busy.scheduler.loop.step()
    busy.until(410.0)
    assert busy.events("1")[-1] == ("cancelled", "cancelled by the operator root")
    assert busy.events("2")[-1][0] == "ended"
    assert busy.events("2")[-1][1].startswith("completed after 20 s")


def test_what_jobs_report_is_kept_over_a_restart_and_after_their_end(busy: TellingSite) -> None:
    busy.scheduler.observations.courses.keep_all()
    busy.scheduler.writer.save()
    before = course_of(busy.scheduler, busy.record("1"))
    steps = [(time_s, step) for time_s, step in zip(before["time_s"], before["step"], strict=True) if step is not None]
    assert len(steps) > 40
    assert before["time_s"] == sorted(before["time_s"])
    assert set(before["gpus"]) == {0, 2}
    assert max(speed for speed in before["steps_per_s"] if speed is not None) == pytest.approx(1.0, abs=0.2)
    busy.restart()
    assert course_of(busy.scheduler, busy.record("1"))["step"] == before["step"]
    busy.until(500.0)
    assert busy.record("1").state is JobState.COMPLETED
    after = course_of(busy.scheduler, busy.record("1"))
    told = list(zip(after["time_s"], after["step"], strict=True))
    assert set(steps) <= set(told)
    assert max(step for step in after["step"] if step is not None) > 140.0
    assert busy.scheduler.observations.courses.of(busy.record("1").number) is None


def test_retention_takes_all_of_it_along(tmp_path: Path) -> None:
    site = TellingSite(tmp_path, "fifo")
    record = site.submit(5.0)
    site.until(20.0)
    site.scheduler.store.note(record, 0.0, "changed", "x")
    site.scheduler.writer.save()
    assert site.scheduler.archive.notes(record.number)
    assert site.scheduler.archive.course(record.number)
    forgotten = site.scheduler.engine.ask(site.scheduler.forgetting([record.number]))
    while not forgotten.done():
        site.scheduler.loop.step()
    assert not site.scheduler.archive.notes(record.number)
    assert not site.scheduler.archive.course(record.number)
    site.close()


def test_a_forecast_goes_on_where_the_timeline_ends(tmp_path: Path) -> None:
    site = TellingSite(tmp_path, "fifo")
    for gpus, expected_s in ((2, 60.0), (1, 30.0), (2, 40.0)):
        site.submit(1000.0, gpus=gpus, expected_s=expected_s)
    site.until(0.4)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(all_ahead, site.scheduler, 5.0)
        while not asked.done():
            site.scheduler.loop.step()
    told = asked.result()
    made_s = told["made_s"]
    spans = [(gpu, job, round(from_s - made_s), round(to_s - made_s)) for gpu, job, from_s, to_s in told["spans"]]
    second = [span for span in spans if span[1] == "2"]
    assert len(spans) == 5
    assert [span[:2] for span in spans if span[2] <= 1] == [(0, "1"), (1, "1")]
    assert [(from_s, to_s) for _, _, from_s, to_s in second] == [(pytest.approx(60, abs=3), pytest.approx(90, abs=3))]
    assert [from_s for _, job, from_s, _ in spans if job == "3"] == [pytest.approx(90, abs=3)] * 2
    site.close()
