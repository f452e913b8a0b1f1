"""When a job counts as idle, and what follows."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import pytest

from fairway.runtime.daemon.config import Config, Idle
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import Settings
from fairway.runtime.daemon.watch import IdleJobs, Sample, Watch
from fairway.runtime.processes.attempts import BlockedGpus
from fairway.runtime.processes.keeper import cpu_s
from fairway.runtime.processes.local import LocalSite
from fairway.testing.waiting import wait_for

TERMS = Idle(60.0, 300.0)


def _sample(cpu_s: float = 5.0, gpu: float | None = 0.0, reported_s: float | None = None, attempt: int = 1) -> Sample:
    return Sample(attempt, cpu_s, gpu, reported_s)


def test_a_job_that_does_nothing_is_warned_once_and_then_loses_its_gpus() -> None:
    jobs = IdleJobs()
    told = [jobs.look(1, _sample(), float(now_s), TERMS) for now_s in range(0, 310, 10)]
    assert [(10 * at, verdict) for at, verdict in enumerate(told) if verdict] == [(60, "warn"), (300, "reclaim")]


def test_anything_that_a_job_does_counts() -> None:
    for busy in (_sample(cpu_s=6.0), _sample(gpu=50.0), _sample(reported_s=9.0), _sample(cpu_s=1.0)):
        jobs = IdleJobs()
        jobs.look(1, _sample(), 0.0, TERMS)
        assert jobs.look(1, _sample(), 59.0, TERMS) is None
        assert jobs.look(1, busy, 69.0, TERMS) is None
        assert jobs.idle_s(1) == 0.0
        assert jobs.look(1, busy._replace(gpu_percent=0.0), 120.0, TERMS) is None


def test_a_warned_job_that_goes_on_is_told_to_be_active_again() -> None:
    jobs = IdleJobs()
    jobs.look(1, _sample(), 0.0, TERMS)
    assert jobs.look(1, _sample(), 60.0, TERMS) == "warn"
    assert jobs.look(1, _sample(cpu_s=20.0), 70.0, TERMS) == "active"
    assert jobs.look(1, _sample(cpu_s=20.0), 120.0, TERMS) is None
    assert jobs.look(1, _sample(cpu_s=20.0), 130.0, TERMS) == "warn"


def test_heartbeats_do_not_count_as_work() -> None:
    jobs = IdleJobs()
    told = [jobs.look(1, _sample(cpu_s=5.0 + now_s * 0.005), float(now_s), TERMS) for now_s in range(0, 70, 10)]
    assert told[-1] == "warn"


def test_a_new_attempt_begins_anew_and_others_are_forgotten() -> None:
    jobs = IdleJobs()
    jobs.look(1, _sample(), 0.0, TERMS)
    assert jobs.look(1, _sample(attempt=2), 400.0, TERMS) is None
    assert jobs.look(1, _sample(attempt=2), 459.0, TERMS) is None
    jobs.forget({2})
    assert jobs.look(1, _sample(attempt=2), 900.0, TERMS) is None


def test_what_is_not_asked_for_does_not_happen() -> None:
    jobs = IdleJobs()
    assert [jobs.look(1, _sample(), 1000.0 * k, Idle()) for k in range(5)] == [None] * 5
    assert [jobs.look(2, _sample(), 1000.0 * k, Idle(warn_s=10.0)) for k in range(4)] == [None, "warn", None, None]


def test_cpu_time_of_processes_below_one_is_counted() -> None:
    code = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ntime.sleep(60)"
    before_s = cpu_s(os.getpid())
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    try:
        wait_for(lambda: cpu_s(os.getpid()) >= before_s + 0.25, "its CPU time")
    finally:
        child.kill()
        child.wait()


def test_a_broken_stderr_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    broken = os.fdopen(write, "w")
    monkeypatch.setattr(sys, "stderr", broken)
    looks: list[int] = []
    settings = SimpleNamespace(poll=lambda scheduler: looks.append(1) or "was read again", config=Config())
    engine = SimpleNamespace(attempts=SimpleNamespace(live={}), devices=None)
    scheduler = SimpleNamespace(clock=SimpleNamespace(jump=None), blocked=BlockedGpus(), engine=engine, cluster=None)
    watch = Watch(cast(Scheduler, scheduler), cast(Settings, settings), LocalSite())
    watch._every_s = 0.01
    watch.start()
    wait_for(lambda: len(looks) >= 5, "the watch to go on")
    watch.close()
    monkeypatch.undo()
    with suppress(OSError):
        broken.close()
