"""Long lists say the same as rows do, and say it fast."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from fairway.api import views
from fairway.api.json_rows import Listing
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs import life
from fairway.runtime.jobs.records import Attempt, JobRecord, JobState, Progress
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.waiting import GRANTED
from fairway.runtime.processes.attempts import BlockedGpus
from fairway.testing.pace import loops


def fake(outside: dict[int, str] | None = None) -> Scheduler:
    clock = SimpleNamespace(now_s=lambda: 50.0, shift_s=0.0)
    engine = SimpleNamespace(ran_s=lambda record, now_s: record.ran_s + 5.0)
    decided = {0: "needs 4 GPUs, 0 free", 2: "not told", 5: "not its turn", 8: GRANTED, 9: GRANTED}
    reasons, state = SimpleNamespace(all=lambda: decided), SimpleNamespace(held_gpus={9: (0,)})
    guard, cluster = SimpleNamespace(outside=outside or {}), SimpleNamespace(node_of_gpu=[0] * 4)
    parts = {"clock": clock, "engine": engine, "guard": guard, "reasons": reasons, "state": state, "cluster": cluster}
    return cast(Scheduler, SimpleNamespace(**parts, blocked=BlockedGpus()))


def request(**fields: Any) -> JobRequest:
    return JobRequest(command=("python", "train.py", "--name", 'a "b" ü\n'), user="ada", name="ü\u2028", **fields)


RECORDS = [
    JobRecord(0, "1", request(), 10.5),
    JobRecord(1, "2_1", request(gpus=2, steps=100.0), 11.0, reason='why "so"'),
    JobRecord(2, "3", request(), 12.0, held=True),
    JobRecord(3, "4", request(), 1.0, JobState.RUNNING, attempts=[Attempt(1, [0, 1], "t", 2.0)], ran_s=3.0, gpu_s=6.0),
    JobRecord(4, "5", request(), 1.0, JobState.FAILED, "exited with code 3", 2.0, 3.0, 3, preemptions=2),
    JobRecord(5, "6", request(), 1.0, JobState.PREEMPTED, attempts=[Attempt(1, [0], "t", 2.0)], started_s=2.0),
    JobRecord(6, "7", request(), 1.0, JobState.CANCELLED, ended_s=5.0),
    JobRecord(7, "8", request(), 1.0, JobState.RUNNING, progress=Progress(step=7.0, steps=9.0)),
]


def test_a_list_says_the_same_as_rows() -> None:
    scheduler = fake({2: "held by its owner"})
    listing = Listing(scheduler)
    for _ in range(2):
        told = json.loads(listing.text(RECORDS))["jobs"]
        assert told == json.loads(json.dumps(views.rows(scheduler, RECORDS)))
    assert json.loads(listing.text([])) == {"jobs": []}


def test_what_was_decided_about_a_job_that_waits_counts_more_than_how_it_was_stopped() -> None:
    def reason(number: int, state: JobState, outside: dict[int, str] | None = None) -> str:
        record = JobRecord(number, str(number), request(), 1.0, state, "saved its state and stopped")
        return views.reason_of(fake(outside), record)

    assert reason(5, JobState.PREEMPTED) == "not its turn"
    assert reason(5, JobState.SUSPENDED) == "not its turn"
    assert reason(5, JobState.PREEMPTED, {5: "held by its owner"}) == "held by its owner"
    assert reason(6, JobState.PREEMPTED) == "saved its state and stopped", "nothing has been decided yet"


def test_gpus_that_were_granted_and_lost_since_are_no_reason() -> None:
    for state in (JobState.PENDING, JobState.PREEMPTED):
        records = [JobRecord(number, str(number), request(), 1.0, state, "was stopped") for number in (8, 9)]
        assert [views.reason_of(fake(), one) for one in records] == ["was stopped", GRANTED]


def test_what_changes_is_seen() -> None:
    scheduler, record = fake(), JobRecord(0, "1", request(), 10.5)
    listing = Listing(scheduler)
    assert json.loads(listing.text([record]))["jobs"][0]["priority"] == 0
    record.request = replace(record.request, priority=4, name="new")
    record.progress.steps = math.inf
    row = json.loads(listing.text([record]))["jobs"][0]
    assert (row["priority"], row["name"], row["steps"]) == (4, "new", None)
    life.move(record, JobState.RUNNING, 11.0)
    record.progress.step = math.nan
    row = json.loads(listing.text([record]))["jobs"][0]
    assert (row["state"], row["step"]) == ("RUNNING", None)


def test_one_that_ends_twice_is_told_as_it_ended_last() -> None:
    scheduler = fake()
    record = JobRecord(0, "1", request(), 1.0, JobState.FAILED, "first", ended_s=2.0, exit_code=1)
    listing = Listing(scheduler)
    assert json.loads(listing.text([record]))["jobs"][0]["reason"] == "first"
    record._state, record.reason, record.ended_s, record.exit_code = JobState.COMPLETED, "", 3.0, 0
    row = json.loads(listing.text([record]))["jobs"][0]
    assert (row["state"], row["reason"], row["exit_code"]) == ("COMPLETED", "", 0)


def test_ten_thousand_jobs_are_told_in_a_moment() -> None:
    records = [JobRecord(k, str(k + 1), request(), 10.0) for k in range(10_000)]
    listing = Listing(fake())
    listing.text(records)
    assert loops(lambda: listing.text(records)) < 40
