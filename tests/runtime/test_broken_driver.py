"""A driver that does not answer, before the start and while jobs run: nothing starts, and nothing is lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_cli import LiveCli
from live_scheduler import clear, ended, log_of, submit, until
from real_processes import wait_for

from fairway.api import views
from fairway.runtime.daemon.daemon import Daemon, Options
from fairway.runtime.daemon.explain import explain
from fairway.runtime.jobs.records import JobState
from fairway.runtime.processes import machine
from fairway.runtime.processes.hands import RemoteHands
from fairway.testing.fake_nvml import MISMATCH, FakeGpu, FakeNvml

WHY = "NVML: Driver/library version mismatch; the driver was upgraded: reboot, or reload the nvidia modules"
SHOW = ("bash", "-c", "echo devices $CUDA_VISIBLE_DEVICES; exec sleep ${0}")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml([FakeGpu(uuid=f"GPU-{number}") for number in range(2)])
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(machine, "AGAIN_S", 0.0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    left = clear(tmp_path)
    assert not left, f"processes {left} were left behind"


@contextmanager
def _up(folder: Path, **options: str) -> Iterator[Daemon]:
    daemon = Daemon(Options(folder, policy="fifo", **options))  # type: ignore[arg-type]
    daemon._watch._every_s = 0.05
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.close()


def test_a_box_whose_driver_is_broken_waits_with_the_gpus_that_it_knew(
    folder: Path, library: FakeNvml, capfd: pytest.CaptureFixture[str]
) -> None:
    with _up(folder) as daemon:
        first = until(submit(daemon.scheduler, [*SHOW, "600"], grace_s=5.0), JobState.RUNNING)
        wait_for(lambda: "devices GPU-0" in log_of(daemon.scheduler, first))
    library.trouble = MISMATCH
    capfd.readouterr()
    with _up(folder) as daemon:
        scheduler = daemon.scheduler
        told = capfd.readouterr().err
        assert told.count("\n") == 1, told
        assert f"2 GPUs are blocked: {WHY}" in told
        first = scheduler.store[first.number]
        assert (first.state, len(first.attempts)) == (JobState.RUNNING, 1), "whoever runs is left alone"
        second, third = submit(scheduler, [*SHOW, "0"]), submit(scheduler, [*SHOW, "0"], gpus=2)
        wait_for(lambda: {second.number, third.number} <= scheduler.reasons.all().keys(), "a decision about them")
        assert [views.reason_of(scheduler, job) for job in (second, third)] == [f"2 GPUs are blocked: {WHY}"] * 2
        assert WHY in explain(scheduler, second.id)["reason"]
        (node,) = views.nodes(daemon)
        assert [(gpu["device"], gpu["reason"]) for gpu in node["gpus"]] == [("GPU-0", WHY), ("GPU-1", WHY)]
        assert [job.attempts for job in (second, third)] == [[], []]
        library.trouble = None
        assert ended(second).state is JobState.COMPLETED
        assert "devices GPU-1" in log_of(scheduler, second)
        scheduler.cancel(first.id)
        assert ended(third).state is JobState.COMPLETED
        assert "devices GPU-0,GPU-1" in log_of(scheduler, third)
        wait_for(lambda: "2 GPUs are free again" in capfd.readouterr().err)


def test_a_driver_that_fails_while_jobs_run_stops_no_job_and_starts_none(folder: Path, library: FakeNvml) -> None:
    with _up(folder) as daemon:
        scheduler = daemon.scheduler
        first = until(submit(scheduler, [*SHOW, "600"], grace_s=5.0), JobState.RUNNING)
        other = until(submit(scheduler, [*SHOW, "600"], grace_s=5.0), JobState.RUNNING)
        scheduler.suspend(other.id)
        until(other, JobState.SUSPENDED)
        library.trouble = MISMATCH
        wait_for(lambda: set(daemon.foreign.values()) == {WHY}, "both GPUs to be blocked")
        scheduler.release(other.id)
        second = submit(scheduler, [*SHOW, "0"])
        wait_for(lambda: second.number in scheduler.reasons.all(), "a decision about it")
        assert (second.state, second.attempts) == (JobState.PENDING, [])
        assert other.state is JobState.SUSPENDED
        library.trouble = None
        until(other, JobState.RUNNING)
        assert [(one.state, len(one.attempts)) for one in (first, other)] == [(JobState.RUNNING, 1)] * 2
        scheduler.cancel(first.id)
        assert ended(second).state is JobState.COMPLETED
        scheduler.cancel(other.id)
        ended(first)
        ended(other)


def test_a_machine_of_a_cluster_with_a_broken_driver_is_not_used(tmp_path: Path, library: FakeNvml) -> None:
    library.trouble = MISMATCH
    asked = RemoteHands("n1", "127.0.0.1").hello("owner", str(tmp_path), "auto", "", "")
    assert WHY in asyncio.run(asked)["problem"]


def test_up_refuses_a_broken_driver_if_it_knows_no_gpus(tmp_path: Path, library: FakeNvml) -> None:
    library.trouble = MISMATCH
    cli = LiveCli(tmp_path)
    call = cli("up")
    assert (call.code, call.out) == (2, "")
    assert call.err.count("\n") == 1
    assert f"--gpus auto: no NVIDIA GPU can be used here: {WHY}. `--gpus N` makes N virtual GPUs" in call.err
    assert not cli.state.exists()
