"""Memory of jobs in an executor: measured, given by lanes, grown, waited for, and never more than there is."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counted_jobs import CountedDevice
from executor_process import FakeSeat

from fairway.gpu import executor as module
from fairway.testing.seeds import some
from fairway.testing.waiting import wait_for


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def hosting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts an executor in a thread, on a device of so many bytes. Its threads end with the tests."""
    codes: list[int] = []

    def exit_with(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(module.os, "_exit", exit_with)

    def start(capacity: int) -> Callable[..., FakeSeat]:
        made = module.Executor(tmp_path, CountedDevice(capacity), idle_s=30.0)

        def run() -> None:
            try:
                made.run()
            except Ended:
                return

        threading.Thread(target=run, daemon=True).start()

        def host(job: str, *arguments: int, **about: Any) -> FakeSeat:
            return FakeSeat(tmp_path).host(job, "counted_jobs:taking", *map(str, arguments), **about)

        host.codes = codes  # type: ignore[attr-defined]
        return host

    return start


def test_what_a_job_needs_is_measured(hosting: Any) -> None:
    host = hosting(1000)
    long = host("long", 400, 300, 1_000_000)
    long.until("step")
    # It fits beside the other only in its lane.
    assert host("small", 200, 250, 20).until("done") == 20
    large = host("large", 350, 200, 20)
    assert large.until("waits") == "it needs 3.5e-07 GB and 2e-07 GB in each iteration; 3e-07 GB of 1e-06 GB are free"
    long.close()
    assert large.until("done") == 20


def test_a_job_that_grows_gets_a_larger_lane(hosting: Any) -> None:
    assert hosting(1000)("1", 100, 10, 50, 10).until("done") == 50


def test_a_job_that_grows_past_the_gpu_is_ended(hosting: Any) -> None:
    told = hosting(1000)("1", 100, 10, 500, 10).until("error")
    assert told.startswith("OutOfMemoryError: tried to allocate 910 bytes")


def test_a_job_that_grows_past_its_hint_gets_more_if_there_is_more(hosting: Any) -> None:
    host = hosting(1000)
    other = host("other", 100, 100, 1_000_000)
    other.until("step")
    assert host("grows", 100, 10, 30, 10, memory_bytes=120).until("done") == 30
    other.until("step")
    other.close()


def test_a_job_that_grows_past_its_hint_waits_while_others_have_the_memory(hosting: Any) -> None:
    host = hosting(1000)
    other = host("other", 500, 100, 1_000_000)
    other.until("step")
    grows = host("grows", 100, 10, 60, 10, memory_bytes=120)
    told = {"waits", "log"} & grows.until_any("waits", "log", "done", "error").keys()
    assert told, "it found more than there is"
    other.until("step")
    other.close()
    assert grows.until("done") == 60


def test_a_job_that_finds_no_memory_is_tried_again_when_there_is_more(hosting: Any) -> None:
    host = hosting(1000)
    first = host("first", 700, 100, 1_000_000)
    first.until("step")
    second = host("second", 600, 100, 10)
    assert "memory ran out" in second.until("log")
    first.close()
    assert second.until("done") == 10


def test_a_job_that_says_what_it_needs_is_not_loaded_before_there_is_room(hosting: Any) -> None:
    host = hosting(1000)
    first = host("first", 700, 100, 100_000)
    first.until("step")
    second = host("second", 600, 100, 10, memory_bytes=700)
    assert second.until("waits").endswith("2e-07 GB of 1e-06 GB are free")
    first.close()
    assert second.until("done") == 10
    assert not any("memory ran out" in one.get("log", "") for one in second.heard)


def test_a_lost_device_ends_the_process_and_is_told_to_the_job_that_lost_it(hosting: Any) -> None:
    host = hosting(1000)
    other = host("other", 100, 10, 100_000)
    other.until("step")
    told = host("bad", 100, 10, 100, 0, 5).until("error")
    assert told.startswith("RuntimeError: an illegal memory access was encountered (counted_jobs.py:")
    assert told.endswith("; the GPU does not answer any more")
    wait_for(lambda: host.codes, "a code")
    assert host.codes == [module.LOST]


@pytest.mark.parametrize("seed", some(range(3), 1))
def test_no_job_runs_out_of_memory_while_the_condition_holds(hosting: Any, seed: int) -> None:
    draw, host = random.Random(seed), hosting(1000)
    seats = {}
    for number in range(20):
        persistent = draw.randint(0, 300)
        ephemeral = draw.randint(1, 1000 - persistent)
        about = {"memory_bytes": persistent + ephemeral}
        seats[number] = host(str(number), persistent, ephemeral, draw.randint(1, 30), **about)
    for seat in seats.values():
        assert seat.until("done") > 0
        assert not any("log" in one for one in seat.heard)
