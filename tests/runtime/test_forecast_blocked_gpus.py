"""Forecasts where GPUs are blocked: foreign processes compute on them, or they are out of order."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_scheduler import clear, live_scheduler
from real_processes import wait_for
from rich.console import Console, RenderableType

from fairway.api.what_if import what_if, why
from fairway.cli.why import _outlook, _reasons
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest

OTHERS = "process 4711 (python) of bea computes on it"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    clear(tmp_path)


def submit(scheduler: Scheduler, seconds: float, **about: Any) -> JobRecord:
    """A job that says how long it takes, and takes longer than the test."""
    request = JobRequest(command=("sleep", "600"), user="ana", grace_s=0.5, expected_s=seconds, **about)
    return scheduler.submit([request])[0]


def shown(what: RenderableType) -> str:
    """What the command line prints, in words."""
    console = Console(width=300, file=io.StringIO())
    with console.capture() as caught:
        console.print(what)
    return " ".join(caught.get().split())


def block(scheduler: Scheduler, *gpus: int) -> None:
    scheduler.block_gpus(dict.fromkeys(gpus, OTHERS))
    wait_for(lambda: set(scheduler.blocked.why) == set(gpus), "GPUs to be blocked")


def runs(scheduler: Scheduler, *jobs: JobRecord) -> None:
    wait_for(lambda: all(str(job.state) == "RUNNING" for job in jobs), "jobs to run")


@pytest.mark.parametrize("policy", ["fifo", "backfill", "max_min_fairness", "gandiva", "gandiva_fair"])
def test_no_job_starts_on_a_blocked_gpu(folder: Path, policy: str) -> None:
    with live_scheduler(folder, 3, policy, round_s=0.0) as scheduler:
        block(scheduler, 1)
        first, second = (submit(scheduler, seconds, preempt="never") for seconds in (500, 300))
        runs(scheduler, first, second)
        third = submit(scheduler, 100, gpus=2)
        told = what_if(scheduler)
        starts = {row["id"]: row["start_in_s"] for row in told["jobs"]}
        # With the third GPU it could start when the first of the others ends.
        assert starts[third.id] == pytest.approx(500.0, abs=20.0)
        assert told["blocked_gpus"] == [1]
        assert told["note"] == "1 GPU is blocked (`fairway nodes` says why); the forecast assumes that this stays so"
        json.dumps(told, allow_nan=False)
        scheduler.end_all()


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "max_min_fairness", "gandiva", "shockwave"])
def test_a_gang_that_is_too_large_for_what_is_left_gets_no_start(folder: Path, policy: str) -> None:
    with live_scheduler(folder, 4, policy) as scheduler:
        block(scheduler, 0, 2)
        large = submit(scheduler, 100, gpus=3)
        told = what_if(scheduler)
        (row,) = told["jobs"]
        assert (row["start_in_s"], row["finish_in_s"]) == (None, None)
        assert row["why"] == "it needs 3 GPUs; 2 are there while 2 are blocked"
        assert told["never_start"] == 1
        assert not told["cut"], "it is known at once"
        assert told["note"].startswith("2 GPUs are blocked (`fairway nodes` says why); the forecast assumes")
        reasons = why(scheduler, large.id)
        assert reasons["estimate"]["start_in_s"] is None
        assert reasons["estimate"]["why"] == row["why"]
        assert reasons["estimate"]["note"] == told["note"]
        assert shown(_outlook(told)).endswith(told["note"])
        assert f"note {told['note']}" in shown(_reasons(reasons))
        (new,) = what_if(scheduler, {"job": {"gpus": 4, "expected_s": 60.0}, "ids": [large.id]})["new"]
        assert (new["start_in_s"], new["why"]) == (None, "it needs 4 GPUs; 2 are there while 2 are blocked")
        block(scheduler)
        free = what_if(scheduler)
        assert free["jobs"][0]["finish_in_s"] is not None
        assert (free["note"], free["blocked_gpus"]) == ("", [])
        scheduler.end_all()


def test_who_is_behind_a_gang_that_never_starts_does_as_the_policy_has_it(folder: Path) -> None:
    with live_scheduler(folder, 4, "fifo") as scheduler:
        block(scheduler, 0, 2)
        submit(scheduler, 100, gpus=3)
        behind = submit(scheduler, 50)
        told = what_if(scheduler, {"ids": [behind.id]})
        assert told["jobs"][0]["start_in_s"] is None, "a strict queue waits for its head"
        other = what_if(scheduler, {"ids": [behind.id], "policy": "backfill"})
        assert other["jobs"][0]["start_in_s"] == pytest.approx(0.0, abs=5.0)
        assert other["jobs"][0]["finish_in_s"] == pytest.approx(50.0, abs=20.0)
        scheduler.end_all()


def test_a_job_that_is_there_already_stays_and_leaves_nothing(folder: Path) -> None:
    with live_scheduler(folder, 2, "backfill") as scheduler:
        first = submit(scheduler, 200)
        runs(scheduler, first)
        (gpu,) = scheduler.state.held_gpus[first.number]
        block(scheduler, gpu)
        second = submit(scheduler, 400)
        runs(scheduler, second)
        third = submit(scheduler, 100)
        told = {row["id"]: row for row in what_if(scheduler)["jobs"]}
        assert told[first.id]["finish_in_s"] == pytest.approx(200.0, abs=20.0)
        assert told[third.id]["start_in_s"] == pytest.approx(400.0, abs=20.0), "not where the first one was"
        reasons = why(scheduler, third.id)
        assert [one["id"] for one in reasons["frees"]] == [second.id]
        scheduler.end_all()
