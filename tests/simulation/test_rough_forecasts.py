"""What a fresh scheduler tells in simulated time: single times, marked as rough, bounded by time limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fairway.api.promised import record_of_promises
from fairway.api.views import full
from fairway.api.what_if import all_ahead, what_if, why
from fairway.cli.eta import _record
from fairway.cli.live_tables import _estimate
from fairway.cli.why import _outlook, _reasons
from fairway.core.cluster import Cluster, Node
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import JobRequest
from fairway.testing.simulated_site import Behaviour, SimulatedTime
from fairway.testing.training_site import TrainingSite


class FreshMachine:
    """A scheduler on two GPUs that has never forecast anything."""

    def __init__(self, folder: Path) -> None:
        self.time = SimulatedTime()
        cluster = Cluster.of([Node("node-a", "v100", 2)])
        self.site = TrainingSite(self.time, cluster)
        self.scheduler = Scheduler(
            folder, cluster, make_policy("fifo"), placement("packed"), site=self.site, time=self.time
        )
        self.scheduler.begin()
        # The scheduler has no thread of its own here.
        self.scheduler.ask = lambda command: self.answered(self.scheduler.engine.ask(command))  # type: ignore[method-assign]

    def now_s(self) -> float:
        """The time of day."""
        return self.scheduler.clock.today_s(self.scheduler.clock.now_s())

    def answered(self, answer: Any) -> Any:
        while not answer.done():
            self.scheduler.loop.step()
        return answer.result()

    def submit(self, work_s: float, *, reports: bool = False, **terms: Any) -> JobRecord:
        command = Behaviour(work_s, speeds={"v100": 1.0} if reports else {}).command()
        request = JobRequest(command, **({"user": "ada", "cwd": "/"} | terms))
        records: list[JobRecord] = self.answered(self.scheduler.submission([request]))
        return records[0]

    def act(self, verb: str, record: JobRecord) -> None:
        commands = self.scheduler.commands
        self.answered(self.scheduler.engine.ask(commands.each(record.id, getattr(commands, verb))))

    def run_for(self, seconds: float) -> None:
        until_s = self.time.monotonic() + seconds
        while self.time.monotonic() < until_s:
            self.scheduler.loop.step()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[FreshMachine]:
    machine = FreshMachine(tmp_path)
    yield machine
    machine.scheduler.archive.close()
    machine.scheduler.journal.close()


def printed(shown: Any) -> str:
    console = Console(width=200)
    with console.capture() as text:
        console.print(shown)
    return text.get()


def test_a_fresh_machine_is_not_80_percent_sure_of_anything(fresh: FreshMachine) -> None:
    # Earlier jobs of the same user were short, so the forecast of this one is wrong, and so are these.
    for _ in range(3):
        fresh.submit(9.0)
    fresh.run_for(40.0)
    sleeper, waiting = fresh.submit(45.0, gpus=2), fresh.submit(45.0, gpus=2)
    fresh.run_for(9.0)
    assert (sleeper.state, waiting.state) == (JobState.RUNNING, JobState.PENDING)
    page = all_ahead(fresh.scheduler, 5.0)["jobs"]
    answer = what_if(fresh.scheduler)
    reasons = [why(fresh.scheduler, record.id) for record in (sleeper, waiting)]
    entries = [*page.values(), *answer["jobs"], *(one["estimate"] for one in reasons)]
    assert len(entries) == 6
    for entry in entries:
        assert (entry["start_between_s"], entry["finish_between_s"], entry["sure"]) == (None, None, None)
        assert (entry["finish_s"] is not None, entry["finish_rough"]) == (True, True)
        assert entry["start_rough"] == (entry["start_s"] is not None)
    estimate = full(fresh.scheduler, sleeper, own=True, seen=True)["estimate"]
    assert (estimate["low_s"], estimate["high_s"], estimate["sure"]) == (None, None, None)
    record = record_of_promises(fresh.scheduler, None, None, None)
    texts = [printed(shown) for shown in (*map(_reasons, reasons), _outlook(answer), _estimate(estimate))]
    for text in texts:
        assert "(rough)" in text
        assert "sure" not in text
    said = printed(_record(record))
    for kind in ("starts", "ends"):
        assert f"{kind}: intervals are shown after 30 scored forecasts, now 0" in said
    # They are scored all the same, so that there is a record one day.
    fresh.run_for(120.0)
    assert {record.state for record in (sleeper, waiting)} == {JobState.COMPLETED}
    decided = fresh.scheduler.promises
    assert decided.trust("finish").scored == 6
    assert decided.trust("start").scored == 3
    assert {one["verdict"] for one in full(fresh.scheduler, waiting, own=True, seen=True)["promises"]} == {"happened"}


def test_intervals_are_told_of_ends_while_starts_are_still_rough(fresh: FreshMachine) -> None:
    for _ in range(30):
        job = fresh.submit(20.0, expected_s=20.0)
        fresh.run_for(2.0)
        why(fresh.scheduler, job.id)
        fresh.run_for(30.0)
    for _ in range(3):
        job = fresh.submit(20.0, gpus=2, expected_s=20.0)
    fresh.run_for(2.0)
    estimate = why(fresh.scheduler, job.id)["estimate"]
    assert (estimate["start_rough"], estimate["start_between_s"]) == (True, None)
    assert (estimate["finish_rough"], estimate["sure"]) == (False, 0.8)
    assert estimate["finish_between_s"][0] <= estimate["finish_s"] <= estimate["finish_between_s"][1]
    assert full(fresh.scheduler, job, own=True, seen=True)["estimate"]["sure"] == 0.8


def test_a_time_limit_bounds_every_forecast(fresh: FreshMachine) -> None:
    reporting = fresh.submit(10_000.0, reports=True, limit_s=600.0)
    overdue = fresh.submit(10_000.0, limit_s=600.0, expected_s=20.0)
    behind = fresh.submit(10_000.0, gpus=2, limit_s=600.0, expected_s=36_000.0)
    for waited_s in (30.0, 300.0, 240.0):
        fresh.run_for(waited_s)
        page = all_ahead(fresh.scheduler, 5.0)["jobs"]
        rows = {row["id"]: row for row in what_if(fresh.scheduler)["jobs"]}
        reasons = {name: why(fresh.scheduler, name)["estimate"] for name in rows}
        for told in (page, rows, reasons):
            ends_s = [told[record.id]["finish_s"] for record in (reporting, overdue)]
            for record, end_s in zip((reporting, overdue), ends_s, strict=True):
                assert fresh.now_s() < end_s <= record.submitted_s + fresh.scheduler.clock.shift_s + 600.0 + 2.0
            start_s, end_s = told[behind.id]["start_s"], told[behind.id]["finish_s"]
            # What waits for them waits no longer than their limits.
            assert start_s <= max(ends_s) + 2.0
            assert start_s < end_s <= start_s + 600.0 + 1.0
    kept = [promise for one in (reporting, overdue) for promise in one.promises if promise.kind == "finish"]
    assert kept
    for promise in kept:
        assert promise.high_s <= promise.told_s + 600.0 + 1.0
    imagined = {"command": ["true"], "limit_s": 600, "expected_s": 600, "gpus": 1}
    (new,) = what_if(fresh.scheduler, {"job": imagined})["new"]
    assert new["finish_s"] <= new["start_s"] + 600.0 + 1.0


def test_a_held_or_suspended_job_has_no_start_and_no_end_and_all_others_do(fresh: FreshMachine) -> None:
    names = ("runs", "suspended", "held", "next", "last")
    jobs = {name: fresh.submit(1000.0, expected_s=100.0 + 10.0 * at) for at, name in enumerate(names)}
    fresh.run_for(10.0)
    fresh.act("hold", jobs["held"])
    fresh.act("suspend", jobs["suspended"])
    for waited_s in (0.0, 20.0):
        fresh.run_for(waited_s)
        page = all_ahead(fresh.scheduler, 5.0)["jobs"]
        rows = {row["id"]: row for row in what_if(fresh.scheduler)["jobs"]}
        for name, record in jobs.items():
            estimate = why(fresh.scheduler, record.id)["estimate"]
            for told in (page[record.id], rows[record.id], estimate):
                set_aside = name in ("suspended", "held")
                assert (told["finish_s"] is None) == set_aside, (name, told)
                assert (not told["finish_rough"]) == set_aside
                if set_aside:
                    assert (told["start_s"], told["start_rough"]) == (None, False)
                    assert name in told["why"]
