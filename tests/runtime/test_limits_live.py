"""Configuration, limits, idle jobs and GPUs of others on a live scheduler."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_scheduler import clear, ended, log_of, submit, until
from real_processes import python, wait_for

from fairway.runtime.daemon.config import ConfigError, NotAdmittedError
from fairway.runtime.daemon.daemon import Daemon, Options
from fairway.runtime.jobs.records import JobState
from fairway.runtime.processes.machine import Machine, Nvml, nvidia_machine, virtual_machine
from fairway.testing.fake_nvml import FakeGpu, FakeNvml


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    left = clear(tmp_path)
    assert not left, f"processes {left} were left behind"


@contextmanager
def _up(folder: Path, machine: Machine, every_s: float = 0.05, policy: str = "fifo") -> Iterator[Daemon]:
    daemon = Daemon(Options(folder, policy=policy), machine)
    daemon._watch._every_s = every_s
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.close()


def test_limits_hold_for_real_processes(folder: Path) -> None:
    (folder / "fairway.toml").write_text('[users."*"]\nmax_gpus = 1\n')
    with _up(folder, virtual_machine(4)) as daemon:
        scheduler, most = daemon.scheduler, 0
        waits = ["bash", "-c", f"while [ ! -e {folder}/go ]; do sleep 0.05; done"]
        jobs = [submit(scheduler, command, user="anna") for command in (waits, *[["sleep", "0.3"]] * 3)]
        other = submit(scheduler, ["sleep", "0.3"], user="ben")
        until(other, JobState.RUNNING, JobState.COMPLETED)
        (folder / "go").touch()
        while not all(job.state.ended for job in jobs):
            running = [live.job for live in list(scheduler.engine.attempts.live.values())]
            most = max(most, sum(scheduler.store[job].request.user == "anna" for job in running))
            time.sleep(0.01)
        assert most == 1
        starts = [job.started_s or 0.0 for job in jobs]
        assert (other.started_s or 0.0) < starts[1], "it does not wait behind the others of a user who is at the limit"


def test_a_file_that_changes_is_read_again_and_queued_jobs_follow(folder: Path) -> None:
    path = folder / "fairway.toml"
    path.write_text("[users.anna]\nmax_gpus = 0\nweight = 2\n")
    with _up(folder, virtual_machine(2)) as daemon:
        scheduler = daemon.scheduler
        with pytest.raises(NotAdmittedError, match="user anna may have 0"):
            submit(scheduler, ["true"], user="anna")
        path.write_text("[users.anna]\nmax_running = 0\nweight = 2\n")
        wait_for(lambda: daemon.settings.config.user_of("anna").max_running == 0)
        job = submit(scheduler, ["true"], user="anna")
        assert job.request.weight == 2.0
        time.sleep(0.3)
        assert job.state is JobState.PENDING
        path.write_text("operators = ['anna']\n[users.anna]\nweight = 6\n")
        assert ended(job).state is JobState.COMPLETED
        assert job.request.weight == 6.0
        assert daemon.operators == ("anna",)
        path.unlink()
        wait_for(lambda: daemon.operators == ())


def test_a_bad_file_keeps_the_old_configuration_and_says_so(folder: Path) -> None:
    path = folder / "fairway.toml"
    path.write_text("[queues.a]\nmax_gpus = 1\n")
    with _up(folder, virtual_machine(2), every_s=60.0) as daemon:
        path.write_text("[queues.a]\nmax_gpus = 'all'\n")
        with pytest.raises(ConfigError, match=r"fairway.toml: queues.a.max_gpus: must be a whole number, not 'all'"):
            daemon.reload()
        assert daemon.settings.config.queues["a"].max_gpus == 1
        assert "still in force" in daemon.settings.problem
        path.write_text("[queues.a]\nmax_gpus = 2\n")
        assert daemon.reload() == str(path)
        assert daemon.settings.config.queues["a"].max_gpus == 2
        assert daemon.settings.problem == ""
    path.write_text("nonsense")
    with pytest.raises(ConfigError):
        Daemon(Options(folder), virtual_machine(2))
    path.write_text("")
    Daemon(Options(folder), virtual_machine(2)).close()


def test_weights_that_changed_while_nobody_scheduled_reach_queued_jobs(folder: Path) -> None:
    path = folder / "fairway.toml"
    path.write_text("[users.anna]\nweight = 2\n")
    with _up(folder, virtual_machine(1)) as daemon:
        job = submit(daemon.scheduler, ["true"], user="anna", weight=3.0, hold=True)
        assert job.request.weight == 6.0
    path.write_text("[users.anna]\nweight = 0.5\npriority = 9\n")
    with _up(folder, virtual_machine(1)) as daemon:
        job = daemon.scheduler.store[0]
        wait_for(lambda: job.request.weight == 1.5)
        assert job.request.priority == 9
        snapshot = daemon.scheduler.ask(lambda now_s: ([], daemon.scheduler.state.snapshot().copy()))
        assert (float(snapshot.weight[0]), int(snapshot.priority[0])) == (1.5, 9)


def test_the_size_of_logs_is_a_setting(folder: Path) -> None:
    (folder / "fairway.toml").write_text('[defaults]\nlog_bytes = "8K"\n')
    with _up(folder, virtual_machine(1)) as daemon:
        job = ended(submit(daemon.scheduler, python("print('x' * 100_000)")))
        logs = list((folder / "jobs" / job.id / "attempt-1").glob("rank-0.log*"))
        assert 0 < sum(path.stat().st_size for path in logs) <= 16_384


@pytest.mark.parametrize("action", ["hold", "cancel"])
def test_an_idle_job_is_warned_and_then_loses_its_gpus(folder: Path, action: str) -> None:
    (folder / "fairway.toml").write_text(f"[idle]\nwarn_s = 0.6\nreclaim_s = 2\naction = '{action}'\n")
    busy = "import time\nwhile True: sum(range(20000)); time.sleep(0.001)"
    with _up(folder, virtual_machine(2), every_s=0.2) as daemon:
        scheduler = daemon.scheduler
        idle = submit(scheduler, ["sleep", "600"], grace_s=5.0)
        working = submit(scheduler, python(busy), grace_s=5.0)
        waiting = submit(scheduler, ["true"])
        wait_for(lambda: "has done nothing" in idle.reason, "a warning")
        assert ended(waiting).state is JobState.COMPLETED, "it has got the GPU"
        assert working.state is JobState.RUNNING
        if action == "hold":
            wait_for(lambda: "taken off its GPUs" in idle.reason)
            assert idle.state is JobState.SUSPENDED
            scheduler.release(idle.id)
            until(idle, JobState.RUNNING)
        else:
            assert ended(idle).state is JobState.CANCELLED
            wait_for(lambda: "did nothing" in idle.reason)
        for job in (idle, working):
            scheduler.cancel(job.id)
            ended(job)


def test_a_job_that_must_not_be_stopped_is_only_warned(folder: Path) -> None:
    (folder / "fairway.toml").write_text("[idle]\nwarn_s = 0.2\nreclaim_s = 0.5\n")
    with _up(folder, virtual_machine(1), every_s=0.1) as daemon:
        waits = ["bash", "-c", f"read < {folder}/go"]
        os.mkfifo(folder / "go")
        job = submit(daemon.scheduler, waits, preempt="never")
        wait_for(lambda: "has done nothing" in job.reason)
        time.sleep(1.0)
        (folder / "go").write_text("go\n")
        assert ended(job).state is JobState.COMPLETED
        assert len(job.attempts) == 1


def _with_gpus(gpus: list[FakeGpu]) -> Machine:
    machine = nvidia_machine(Nvml(FakeNvml(gpus)))
    assert machine is not None
    return machine


def test_a_gpu_with_a_foreign_process_is_blocked_until_the_process_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = [FakeGpu(uuid=f"GPU-{number}") for number in range(2)]
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        gpus[0].pids = [stranger.pid]
        show = ["bash", "-c", "echo devices $CUDA_VISIBLE_DEVICES; exec sleep ${0}"]
        with _up(folder, _with_gpus(gpus)) as daemon:
            scheduler = daemon.scheduler
            assert list(daemon.foreign) == [0]
            assert f"process {stranger.pid} (sleep)" in daemon.foreign[0]
            first = until(submit(scheduler, [*show, "600"], grace_s=5.0), JobState.RUNNING)
            wait_for(lambda: "devices GPU-1" in log_of(scheduler, first))
            # Our own process on a GPU is no stranger.
            rank = scheduler.engine.attempts.live[first.number].handle.directory / "ranks.json"
            wait_for(rank.exists)
            gpus[1].pids = [int(rank.read_text().strip("[").split(",")[0])]
            second, both = submit(scheduler, [*show, "0"]), submit(scheduler, [*show, "0"], gpus=2)
            time.sleep(0.4)
            assert list(daemon.foreign) == [0]
            assert second.state is JobState.PENDING
            assert stranger.poll() is None
            stranger.kill()
            stranger.wait()
            gpus[0].pids = []
            assert ended(second).state is JobState.COMPLETED
            assert "devices GPU-0" in log_of(scheduler, second)
            gpus[1].pids = []
            scheduler.cancel(first.id)
            assert ended(both).state is JobState.COMPLETED
            assert "devices GPU-0,GPU-1" in log_of(scheduler, both)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_stranger_that_comes_to_a_gpu_of_ours_disturbs_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = [FakeGpu(uuid="GPU-0")]
    with _up(folder, _with_gpus(gpus)) as daemon:
        job = until(submit(daemon.scheduler, ["sleep", "1"]), JobState.RUNNING)
        gpus[0].pids = [os.getpid()]
        wait_for(lambda: daemon.foreign)
        after = submit(daemon.scheduler, ["true"])
        assert ended(job).state is JobState.COMPLETED
        assert len(job.attempts) == 1
        time.sleep(0.3)
        assert after.state is JobState.PENDING
        gpus[0].pids = []
        assert ended(after).state is JobState.COMPLETED
