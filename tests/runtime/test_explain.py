"""Why a job waits and when it will run, asked of a scheduler with real processes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairway.api import what_if as looking
from fairway.api.what_if import what_if, why
from fairway.core.batch import Timing, limits_of
from fairway.core.errors import InputError
from fairway.core.event import JobMeasured
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon import engine
from fairway.runtime.daemon.explain import explain
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.commands import UnknownJobError
from fairway.runtime.jobs.life import RECLAIMED
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import Dependency, JobRequest
from fairway.runtime.processes.machine import virtual_machine
from fairway.testing.waiting import wait_for

Start = Callable[..., Scheduler]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts schedulers; afterwards their jobs are cancelled and they are stopped."""
    running: list[tuple[Scheduler, threading.Thread]] = []

    def begin(policy: str = "fifo", gpus: int = 2, round_s: float | None = None) -> Scheduler:
        scheduler = Scheduler(
            tmp_path / f"state{len(running)}",
            virtual_machine(gpus).cluster,
            make_policy(policy),
            placement("packed"),
            round_s=round_s,
            min_run_s=0.2,
            policy_text=policy,
        )
        running.append((scheduler, scheduler.start()))
        return scheduler

    yield begin
    for scheduler, thread in running:
        for record in scheduler.store:
            scheduler.cancel(record.id)
        wait_for(lambda scheduler=scheduler: not scheduler.engine.attempts.live)  # type: ignore[misc]
        scheduler.close()
        thread.join()


def job(seconds: float, **about: Any) -> JobRequest:
    """A job that sleeps, and says for how long."""
    terms = {"user": "ana", "grace_s": 1.0, "expected_s": seconds, **about}
    return JobRequest(command=("sleep", str(seconds)), **terms)


def submit(scheduler: Scheduler, *requests: JobRequest) -> list[JobRecord]:
    return [scheduler.submit([request])[0] for request in requests]


def test_the_reason_names_who_holds_gpus_and_when_they_let_go(start: Start) -> None:
    scheduler = start()
    submit(scheduler, job(50), job(90), job(10, gpus=2), job(5))
    wait_for(lambda: str(scheduler.store[1].state) == "RUNNING")
    head, behind = why(scheduler, "3"), why(scheduler, "4")
    assert head["reason"] == "needs 2 GPUs, 0 free"
    assert [one["id"] for one in head["ahead"]] == ["1", "2"]
    assert [(one["id"], one["gpus"]) for one in head["frees"]] == [("1", 1), ("2", 1)]
    assert 40.0 < head["frees"][0]["in_s"] <= 50.0
    assert head["position"] == 1
    assert "behind job 3" in behind["reason"]
    assert {"id": "3", "why": "is at the head of the queue and does not fit yet"} in behind["ahead"]
    assert behind["position"] == 2
    assert 90.0 < behind["estimate"]["start_in_s"] <= 100.0
    assert behind["estimate"]["basis"] == "its owner's estimate"
    running = why(scheduler, "1")
    assert running["reason"] == "it runs"
    assert 0.0 < running["expected_end_in_s"] <= 50.0
    json.dumps([head, behind, running], allow_nan=False)


@pytest.mark.parametrize(
    ("terms", "basis", "seconds"),
    [
        ({"limit_s": 86400.0}, "nothing; an hour is assumed", 3600.0),
        ({"limit_s": 3600.0}, "its time limit", 3600.0),
        ({"limit_s": 600.0}, "its time limit", 600.0),
        ({}, "nothing; an hour is assumed", 3600.0),
        ({"name": "alike"}, "1 earlier run of this name", 7200.0),
        ({"name": "alike", "limit_s": 5400.0}, "its time limit", 5400.0),
    ],
)
def test_the_time_limit_is_named_only_where_the_figure_is_from_it(
    start: Start, terms: dict[str, Any], basis: str, seconds: float
) -> None:
    scheduler = start()
    ended = JobRecord(0, "0", job(7, name="alike"), 0.0, ran_s=7200.0)
    scheduler.observations.times.learn(ended)
    submit(scheduler, job(50, gpus=2), job(1, expected_s=None, **terms))
    (told,) = what_if(scheduler, {"ids": ["2"]})["jobs"]
    assert told["basis"] == basis
    assert told["finish_in_s"] - told["start_in_s"] == pytest.approx(seconds, abs=1.0)


def test_a_single_gpu_that_is_not_there_is_refused_in_words(start: Start) -> None:
    with pytest.raises(InputError, match="it asks for 1 GPU of type t4; there are"):
        what_if(start(), {"job": {"gpus": 1, "gpu_types": ("t4",)}})


def test_jobs_that_are_not_eligible_say_what_they_wait_for(start: Start) -> None:
    scheduler = start()
    submit(scheduler, job(3000, gpus=2))
    wait_for(lambda: str(scheduler.store[0].state) == "RUNNING")
    later_s = time.time() + 6000.0
    terms: list[dict[str, Any]] = [
        {"hold": True},
        {"depends": (Dependency("afterok", "1"),)},
        {"begin_s": later_s},
        {"depends": (Dependency("afternotok", "1"),)},
    ]
    submit(scheduler, *(job(5, **term) for term in terms))
    held, dependent, early, never = (why(scheduler, name) for name in "2345")
    assert held["frees"] == [{"what": "its owner releases it", "command": "fairway release 2"}]
    assert held["estimate"]["finish_s"] is None
    assert "held" in held["estimate"]["why"]
    assert dependent["frees"][0]["id"] == "1"
    assert 2000.0 < dependent["estimate"]["start_in_s"] <= 3000.0
    assert 5000.0 < early["frees"][0]["in_s"] <= 6000.0
    assert 5000.0 < early["estimate"]["start_in_s"] <= 6000.0
    assert never["estimate"]["start_s"] is None
    scheduler.suspend("1")
    suspended = why(scheduler, "1")
    assert suspended["frees"] == [{"what": "its owner resumes it", "command": "fairway resume 1"}]


def test_an_unknown_job_is_an_error_and_an_ended_one_has_nothing_to_wait_for(start: Start) -> None:
    scheduler = start()
    with pytest.raises(UnknownJobError):
        explain(scheduler, "77")
    submit(scheduler, job(0.1))
    wait_for(lambda: scheduler.store[0].state.ended)
    told = explain(scheduler, "1")
    assert told["state"] == "COMPLETED"
    assert told["reason"] == "it has done its work"
    assert len(told["attempts"]) == 1


def test_another_policy_and_a_job_not_submitted_change_the_outlook_and_nothing_else(start: Start) -> None:
    scheduler = start("fifo", gpus=1)
    submit(scheduler, job(10000), job(5000), job(100))
    wait_for(lambda: str(scheduler.store[0].state) == "RUNNING")
    now = {one["id"]: one for one in what_if(scheduler)["jobs"]}
    assert 14500.0 < now["3"]["start_in_s"] <= 15000.0
    # What is told of things as they are is a promise.
    scheduler.ask(lambda now_s: ([], None))
    assert [len(record.promises) for record in scheduler.store] == [1, 2, 2]
    records = json.dumps([record.plain() for record in scheduler.store])
    told = what_if(scheduler, {"policy": "srtf", "job": {"gpus": 1, "expected_s": 200.0}})
    other = {one["id"]: one for one in told["jobs"]}
    assert other["3"]["finish_in_s"] < 500.0
    assert other["1"]["preemptions"] == 1
    assert told["new"][0]["finish_in_s"] < 1000.0
    assert told["mean_jct_s"] < told["otherwise"]["mean_jct_s"]
    assert told["otherwise"]["policy"] == "fifo"
    assert json.dumps([record.plain() for record in scheduler.store]) == records
    assert scheduler.policy_text == "fifo"
    json.dumps(told, allow_nan=False)


def test_a_policy_goes_on_with_what_it_remembers(start: Start) -> None:
    scheduler = start("shockwave", gpus=1, round_s=0.5)
    submit(scheduler, *(job(100) for _ in range(3)))
    wait_for(lambda: scheduler.state.round > 3)
    told = what_if(scheduler)
    assert told["problem"] == ""
    assert told["not_finished"] == 0
    assert 200.0 < told["all_done_in_s"] < 400.0


@pytest.mark.parametrize(
    "body",
    [
        {"polcy": "srtf"},
        {"policy": "no_such_policy"},
        {"policy": 7},
        {"ids": "1"},
        {"job": {"gpus": 3}},
        {"job": {"gpus": "many"}},
        {"job": {"expected_s": -1}},
        {"job": {"colour": "red"}},
        {"job": [1]},
        {"jobs": [5]},
        {"jobs": [{}] * 2000},
        {"horizon_s": 0},
        {"horizon_s": "week"},
    ],
)
def test_nonsense_is_refused_with_a_sentence(start: Start, body: dict[str, Any]) -> None:
    scheduler = start()
    with pytest.raises(InputError):
        what_if(scheduler, body)
    assert len(scheduler.store) == 0


def running(scheduler: Scheduler, *jobs: int) -> None:
    wait_for(lambda: all(str(scheduler.store[job].state) == "RUNNING" for job in jobs))


def test_who_is_not_in_the_queue_has_no_place_in_it_and_takes_nobodys(start: Start) -> None:
    scheduler = start(gpus=1)
    submit(scheduler, job(3000), job(5, begin_s=time.time() + 1000.0), job(5), job(5, hold=True))
    running(scheduler, 0)
    early, waiting, held = (why(scheduler, name) for name in "234")
    assert waiting["estimate"]["start_in_s"] > early["estimate"]["start_in_s"]
    assert {"id": "2", "why": "starts first"} in waiting["ahead"]
    assert (waiting["position"], waiting["waiting"]) == (1, 1)
    assert (early["position"], held["position"]) == (0, 0)


def test_who_can_never_start_is_given_no_start(start: Start) -> None:
    scheduler = start(gpus=1)
    bad = scheduler.submit([JobRequest(command=("false",), user="ana")])[0]
    wait_for(lambda: bad.state.ended)
    submit(
        scheduler,
        job(5, depends=(Dependency("afterok", "1"),)),
        job(5, depends=(Dependency("afterany", "2"),)),
        job(5, depends=(Dependency("afternotok", "1"),), begin_s=time.time() + 3000.0),
    )
    for name in "23":
        told = why(scheduler, name)
        assert told["estimate"]["start_s"] is None
        assert told["estimate"]["finish_s"] is None
        assert "waits for job" in told["estimate"]["why"]
    assert "never starts" in why(scheduler, "2")["reason"]
    assert 2000.0 < why(scheduler, "4")["estimate"]["start_in_s"] <= 3000.0
    told = what_if(scheduler)
    assert (told["finished"], told["not_finished"], told["never_start"]) == (1, 2, 2)


@pytest.mark.parametrize("preempt", ["suspend", "checkpoint"])
def test_a_job_that_was_taken_off_for_being_idle_is_told_so(start: Start, preempt: str) -> None:
    scheduler = start()
    record = submit(scheduler, job(60, preempt=preempt))[0]
    running(scheduler, 0)

    def command(now_s: float) -> tuple[list[Any], None]:
        record.reason = RECLAIMED
        return [], None

    scheduler.suspend("1")
    scheduler.ask(command)
    if preempt == "checkpoint":
        wait_for(lambda: not scheduler.engine.attempts.live)
    told = why(scheduler, "1")
    assert told["reason"] == RECLAIMED
    assert told["frees"][0]["command"] == "fairway resume 1"
    scheduler.release("1")
    running(scheduler, 0)
    scheduler.suspend("1")
    assert "suspended by its owner" in why(scheduler, "1")["reason"]


def test_the_time_that_is_left_until_a_start_is_counted_down(start: Start) -> None:
    scheduler = start()
    submit(scheduler, job(5, begin_s=time.time() + 100.0))

    def left_s() -> int:
        words = why(scheduler, "1")["reason"].split()
        assert words[:-2] == ["not", "to", "start", "for", "another"]
        return int(words[-2])

    first = left_s()
    assert first <= 100
    wait_for(lambda: left_s() < first)


def test_the_tasks_of_a_limited_array_come_one_after_the_other(start: Start) -> None:
    scheduler = start()
    scheduler.submit([job(2000, array_at_once=1).task(number) for number in range(4)], array=True)
    running(scheduler, 0)
    told = what_if(scheduler, {"ids": ["1"]})
    assert [one["id"] for one in told["jobs"]] == ["1_0", "1_1", "1_2", "1_3"]
    starts = [one["start_in_s"] for one in told["jobs"][1:]]
    assert starts == [pytest.approx(2000.0 * at, abs=200.0) for at in (1, 2, 3)]
    assert told["jobs"][3]["finish_in_s"] == pytest.approx(8000.0, abs=200.0)
    about = why(scheduler, "1")
    assert (about["id"], about["position"]) == ("1_1", 0)
    assert about["array"] == {"id": "1", "tasks": 4, "states": {"RUNNING": 1, "PENDING": 3}}
    assert about["frees"] == [{"what": "a task of its array ends", "tasks": ["1_0"]}]
    assert about["estimate"]["start_in_s"] == pytest.approx(starts[0], abs=200.0)
    with pytest.raises(UnknownJobError):
        what_if(scheduler, {"ids": ["2"]})


def test_a_forecast_is_made_from_this_very_instant(start: Start) -> None:
    scheduler = start()
    submit(scheduler, job(60))
    running(scheduler, 0)
    wait_for(lambda: scheduler.clock.now_s() > scheduler.state.now_s + 0.3)
    asked_s = time.time()
    told = what_if(scheduler)
    assert asked_s - 0.1 < told["now_s"] < time.time() + 0.1
    assert told["until_s"] == pytest.approx(told["jobs"][0]["finish_s"])


def test_an_elastic_job_is_shown_with_the_gpus_that_it_holds(start: Start) -> None:
    scheduler = start("optimus", round_s=0.5)
    submit(scheduler, job(60, gpus=1, gpus_max=2, preempt="checkpoint"))
    wait_for(lambda: len(scheduler.state.held_gpus.get(0, ())) == 2)
    assert what_if(scheduler)["jobs"][0]["gpus"] == 2
    assert why(scheduler, "1")["gpus"] == 2


def test_work_that_a_preemption_destroys_is_done_again(start: Start) -> None:
    scheduler = start("srtf", gpus=1)
    submit(scheduler, job(200, preempt="restart"))
    running(scheduler, 0)
    wait_for(lambda: scheduler.engine.ran_s(scheduler.store[0], scheduler.clock.now_s()) > 3.0)
    told = what_if(scheduler, {"job": {"gpus": 1, "expected_s": 10.0}})
    assert told["jobs"][0]["preemptions"] == 1
    # Ten seconds of the other, the start anew and all of its own work, of which three seconds had been done.
    assert told["jobs"][0]["finish_in_s"] > 210.0
    assert told["otherwise"]["all_done_in_s"] < 198.0


def test_a_job_not_submitted_waits_for_what_it_names(start: Start) -> None:
    scheduler = start(gpus=2)
    submit(scheduler, job(5000))
    running(scheduler, 0)
    terms: list[dict[str, Any]] = [
        {"begin_s": time.time() + 10000.0},
        {"depends": [{"kind": "afterok", "job": "1"}]},
        {"hold": True},
        {"array_at_once": 1},
        {"array_at_once": 1},
    ]
    new = what_if(scheduler, {"jobs": [{"expected_s": 10.0, **term} for term in terms]})["new"]
    assert new[0]["start_in_s"] == pytest.approx(10000.0, abs=500.0)
    assert new[1]["start_in_s"] == pytest.approx(5000.0, abs=500.0)
    assert (new[2]["start_s"], new[2]["why"]) == (None, "it would be held")
    assert new[4]["start_in_s"] == pytest.approx(new[3]["finish_in_s"], abs=0.1)
    with pytest.raises(InputError):
        what_if(scheduler, {"job": {"depends": [{"kind": "afterok", "job": "77"}]}})


def test_a_job_of_lower_priority_that_starts_sooner_is_behind_in_the_queue_all_the_same(start: Start) -> None:
    scheduler = start("fifo", gpus=2)
    kept = [job(seconds, preempt="never") for seconds in (3000, 30000)]
    submit(scheduler, *kept, job(6000, gpus=2, priority=5), job(1000, priority=-1))
    running(scheduler, 0, 1)
    small, large = why(scheduler, "4"), why(scheduler, "3")
    assert small["estimate"]["start_in_s"] < large["estimate"]["start_in_s"]
    assert (small["position"], large["position"], small["waiting"]) == (2, 1, 2)


def test_a_long_queue_is_looked_into_for_a_moment_only(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = start("fifo", gpus=1)
    submit(scheduler, *(job(60) for _ in range(4)))
    running(scheduler, 0)
    monkeypatch.setattr(looking, "WHY_WALL_S", 0.0)
    told = why(scheduler, "4")
    assert told["estimate"]["start_s"] is None
    assert "stopped after 0 s" in told["estimate"]["cut"]
    assert 0.0 < told["estimate"]["looked_s"] < 150.0
    assert (told["position"], told["waiting"]) == (3, 3)


def test_a_question_does_not_wait_for_the_next_look_at_reports(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "REPORTS_EVERY_S", 1e6)
    scheduler = start()
    submit(scheduler, job(30))
    for _ in range(10):
        scheduler.ask(lambda now_s: ([], None))


def test_why_tells_the_batch_of_a_job_that_is_adapted(start: Start) -> None:
    scheduler = start("pollux", round_s=0.5)
    (record,) = submit(scheduler, job(60.0))
    limits = limits_of(32, 512, 8, 64, True)
    measured = JobMeasured(0.0, record.number, limits, Timing(1, 1, 32, 0, 0.2, 0.15), 200.0)
    scheduler.ask(lambda now_s: ([measured._replace(time_s=now_s)], None))
    wait_for(lambda: explain(scheduler, record.id)["state"] == "RUNNING")
    wait_for(lambda: explain(scheduler, record.id)["reason"].startswith("trains with a batch of"))
