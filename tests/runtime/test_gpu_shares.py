"""Jobs with shares of a GPU as real processes: at once on one GPU, in turns or through MPS and its daemon."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_scheduler import clear, ended, live_scheduler, log_of, submit, until
from real_processes import end_of, launch, python, said, wait_for

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.runtime.daemon.daemon import Daemon, Options
from fairway.runtime.daemon.gpu_sharing import GpuSharing
from fairway.runtime.jobs.records import JobState
from fairway.runtime.processes import keeper, local
from fairway.runtime.processes.local import Running
from fairway.runtime.processes.machine import Nvml, nvidia_machine
from fairway.runtime.processes.mps import MpsError, MpsUse, client_variables
from fairway.testing.fake_mps import FakeMps
from fairway.testing.fake_nvml import FakeGpu, FakeNvml

WAIT = ["sleep", "30"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    left = clear(tmp_path)
    assert not left, f"processes {left} were left behind"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMps:
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return FakeMps(tools)


def test_two_halves_of_a_virtual_gpu_run_at_once(folder: Path) -> None:
    with live_scheduler(folder, gpus=1) as scheduler:
        halves = [submit(scheduler, WAIT, gpu_share=0.5) for _ in range(2)]
        third = submit(scheduler, WAIT, gpu_share=0.5)
        for record in halves:
            until(record, JobState.RUNNING)
        assert {gpu: len(jobs) for gpu, jobs in scheduler.engine.attempts.busy().items()} == {0: 2}
        assert third.state is JobState.PENDING
        scheduler.cancel(halves[0].id)
        until(third, JobState.RUNNING)
        scheduler.end_all()


def test_shares_that_differ_are_kept_in_turns(folder: Path) -> None:
    with live_scheduler(folder, gpus=1) as scheduler:
        small = until(submit(scheduler, WAIT, gpu_share=0.3), JobState.RUNNING)
        large = until(submit(scheduler, WAIT, gpu_share=0.7), JobState.RUNNING)
        live = scheduler.engine.attempts.live
        wait_for(lambda: live[small.number].throttle == 0.6, "the smaller one to be throttled")
        assert live[large.number].throttle == 1.0
        scheduler.cancel(large.id)
        wait_for(lambda: live[small.number].throttle == 1.0, "all of the time, alone")
        scheduler.end_all()


def test_a_share_is_told_to_the_job_and_a_policy_change_leaves_it(folder: Path) -> None:
    from fairway.policies import make_policy

    with live_scheduler(folder, gpus=1) as scheduler:
        records = [
            submit(scheduler, ["sh", "-c", "echo $FAIRWAY_GPU_SHARE; sleep 30"], gpu_share=0.5) for _ in range(2)
        ]
        for record in records:
            until(record, JobState.RUNNING)
        scheduler.set_policy(make_policy("srtf"), "srtf")
        assert all(record.state is JobState.RUNNING for record in records)
        wait_for(lambda: log_of(scheduler, records[1]).strip() == "0.5", "the share in its environment")
        scheduler.end_all()


# MPS.


def _gpu() -> Cluster:
    return Cluster.of([Node("here", "h200", 1)], [GpuType("h200", 141 << 30, 0.0, 1.0)])


def test_the_daemon_runs_while_jobs_share_and_ends_with_the_last(folder: Path, fake: FakeMps) -> None:
    with live_scheduler(folder, cluster=_gpu(), devices=["GPU-0"]) as scheduler:
        own = scheduler.folder / "mps" / str(os.geteuid())
        whole = ended(submit(scheduler, ["true"]))
        assert (whole.state, fake.calls()) == (JobState.COMPLETED, [])
        show = ["sh", "-c", "env | grep CUDA; sleep 30"]
        first, second = (until(submit(scheduler, show, gpu_share=share), JobState.RUNNING) for share in (0.25, 0.5))
        wait_for(lambda: "CUDA_MPS_PINNED" in log_of(scheduler, second), "its environment")
        env = dict(line.split("=", 1) for line in log_of(scheduler, second).split())
        assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
        assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={141 * 512}M"
        assert (env["CUDA_MPS_PIPE_DIRECTORY"], env["CUDA_VISIBLE_DEVICES"]) == (str(own / "pipe"), "GPU-0")
        assert scheduler.engine.attempts.live[first.number].throttle == 1.0
        assert (fake.calls(), fake.daemon(own) is not None) == (["start"], True)
        scheduler.cancel(first.id)
        ended(first)
        assert fake.calls() == ["start"]
        scheduler.cancel(second.id)
        ended(second)
        wait_for(lambda: fake.daemon(own) is None, "the daemon to end")
        assert fake.calls() == ["start", "quit"]


def test_where_the_daemon_cannot_be_started_auto_goes_on_without_and_mps_says_why(folder: Path, fake: FakeMps) -> None:
    fake.fail()
    for must in (False, True):
        about = {"program": str(fake.program), "folder": str(folder / "mps" / "me"), "must": must}
        directory = folder / f"attempt-{must}"
        env = client_variables(folder / "mps" / "me", 0.5, 1 << 30)
        running = local.start_keeper(directory, launch(directory, ["env"], mps=about, env=env))
        outcome = end_of(running)
        if must:
            assert (outcome.codes, outcome.problem) == ((), "MPS cannot be started: no GPU can be used with MPS")
        else:
            assert outcome.codes == (0,)
            assert "CUDA_MPS" not in (directory / "rank-0.log").read_text()
            assert "without limits" in (directory / "keeper.log").read_text()


def test_jobs_whose_daemon_has_crashed_are_tried_again(folder: Path, fake: FakeMps) -> None:
    own = folder / "mps" / "me"
    about = {"program": str(fake.program), "folder": str(own), "must": True}

    def started(name: str) -> Running:
        directory = folder / name
        waits = python("import time\nprint('ready')\ntime.sleep(0.5)\nraise SystemExit(3)")
        return local.start_keeper(directory, launch(directory, waits, mps=about))

    running = started("first")
    said(running, "ready")
    daemon = fake.daemon(own)
    assert daemon is not None
    os.kill(daemon, signal.SIGKILL)
    outcome = end_of(running)
    assert (outcome.cause, outcome.codes) == ("lost", (3,))
    again = end_of(started("second"))
    assert (again.cause, again.codes) == ("", (3,)), "the fault is the job's own: the next one has a new daemon"
    assert fake.calls().count("start") == 2
    wait_for(lambda: keeper.started_at(daemon) < 0)


def test_a_program_that_is_missing_or_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairway.runtime.processes import mps

    monkeypatch.setattr(mps, "_ANSWERS_S", 0.2)
    with pytest.raises(MpsError, match="No such file"):
        MpsUse(str(tmp_path / "nothing"), tmp_path / "mps" / "me").begin()
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 5\n")
    hangs.chmod(0o755)
    with pytest.raises(MpsError, match="timed out"):
        MpsUse(str(hangs), tmp_path / "mps" / "me").begin()


@pytest.mark.parametrize(("share", "percent"), [(0.5, 50), (1 / 3, 34), (0.001, 1), (0.29, 29), (0.999, 100)])
def test_threads_are_limited_to_whole_percent(tmp_path: Path, share: float, percent: int) -> None:
    found = client_variables(tmp_path, share, 0)
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percent)
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in found


# What is told.


def _words(folder: Path, wish: Any, devices: list[str] | None) -> tuple[str, bool]:
    sharing = GpuSharing(folder, devices, lambda: wish)
    return sharing.words(), sharing.in_turns()


def test_the_way_is_told_with_its_reason(folder: Path, fake: FakeMps, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _words(folder, "auto", ["GPU-0"]) == ("MPS", False)
    assert _words(folder, "turns", ["GPU-0"]) == ("turns", True)
    assert _words(folder, "auto", None) == ("turns (virtual GPUs)", True)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("fairway.runtime.processes.mps._PATHS", "/nowhere")
    assert _words(folder, "auto", ["GPU-0"]) == ("turns (there is no nvidia-cuda-mps-control)", True)
    assert _words(folder, "mps", ["GPU-0"])[0].startswith("MPS, which is not there")


@pytest.mark.parametrize("what", ["warn", "cancel"])
def test_a_job_with_more_memory_than_its_share_is_told_or_ended(folder: Path, fake: FakeMps, what: str) -> None:
    gpu = FakeGpu(memory_bytes=40 << 30)
    machine = nvidia_machine(Nvml(FakeNvml([gpu])))
    assert machine is not None
    state = folder / "state"
    state.mkdir()
    (state / "fairway.toml").write_text(f'sharing = "turns"\nover_share = "{what}"\n')
    daemon = Daemon(Options(state, policy="fifo"), machine)
    daemon._watch._every_s = 0.05
    daemon.start()
    try:
        scheduler = daemon.scheduler
        greedy, other = (until(submit(scheduler, WAIT, gpu_share=0.5), JobState.RUNNING) for _ in range(2))
        pids = [
            wait_for(lambda job=job: keeper.descendants(scheduler.engine.attempts.live[job].handle.pid), "a rank")[0]
            for job in (greedy.number, other.number)
        ]
        gpu.memory, gpu.pids = {pids[0]: 30 << 30, pids[1]: 20 << 30}, pids
        wait_for(lambda: "has 30.0 GiB on a GPU that it shares, and may have 20.0 GiB" in greedy.reason, "a reason")
        assert greedy.state is (JobState.CANCELLED if what == "cancel" else JobState.RUNNING)
        assert (other.state, other.reason) == (JobState.RUNNING, "")
        scheduler.end_all()
    finally:
        daemon.close()


def test_the_configuration_chooses_and_nodes_tell(folder: Path, fake: FakeMps) -> None:
    from fairway.api import views

    machine = nvidia_machine(Nvml(FakeNvml([FakeGpu()])))
    assert machine is not None
    (folder / "state").mkdir()
    (folder / "state" / "fairway.toml").write_text('sharing = "turns"\n')
    daemon = Daemon(Options(folder / "state", policy="fifo"), machine)
    daemon.start()
    try:
        assert [node["sharing"] for node in views.nodes(daemon)] == ["turns"]
    finally:
        daemon.close()
