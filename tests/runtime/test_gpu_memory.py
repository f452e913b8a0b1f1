"""Suspended jobs leave the memory of their GPU when another job needs it: keeper, scheduler and processes are real."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from live_scheduler import clear, ended, live_scheduler, log_of, submit, until
from real_processes import wait_for

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.runtime.daemon.explain import explain
from fairway.runtime.daemon.scheduler import NoTerms, Scheduler
from fairway.runtime.jobs import live_jobs
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.processes import executors
from fairway.runtime.processes.local import LocalSite
from fairway.runtime.processes.movable_memory import MovableMemory
from fairway.runtime.processes.site import GpuMemory

GB = 1 << 30
CAPACITY = 16 * GB
WORKER = Path(__file__).with_name("movable_worker.py")
SLICES = "las:levels=0.5/1/1.5/2/2.5/3/3.5/4,metric=time"


class PretendedMemory(MovableMemory):
    """The memory of one pretended GPU. Jobs say in files what they have of it."""

    def __init__(self, folder: Path) -> None:
        self.gpu = folder / "gpu"
        self.gpu.mkdir(exist_ok=True)
        self.socket = folder / "helper.sock"
        super().__init__(folder, self.now)

    def now(self, gpu: int) -> GpuMemory:
        found = [one for one in self.gpu.iterdir() if one.name.isdigit()]
        living = [one for one in found if Path(f"/proc/{one.name}").exists()]
        return GpuMemory(CAPACITY - sum(int(one.read_text() or 0) for one in living), CAPACITY)

    def movable(self, launch: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**launch, "checkpointer": str(self.socket)}


class PretendedDriver:
    """Answers in the place of the helper that talks to the driver."""

    def __init__(self, memory: PretendedMemory, problem: str = "") -> None:
        self.calls: list[str] = []
        self.while_it_leaves: Callable[[], object] = lambda: None
        self._memory, self._problem = memory, problem
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(memory.socket))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            one, _ = self._socket.accept()
            with one, one.makefile("rb") as lines:
                asked = json.loads(lines.readline())
                self.calls.append(asked["do"])
                one.sendall(json.dumps(self._do(asked)).encode() + b"\n")

    def _do(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if self._problem:
            return {"problem": self._problem}
        for pid in asked["pids"]:
            here, away = self._memory.gpu / str(pid), self._memory.gpu / f"{pid}.out"
            before, after = (here, away) if asked["do"] == "out" else (away, here)
            if before.exists():
                before.rename(after)
        if asked["do"] == "out":
            self.while_it_leaves()
        return {"pids": asked["pids"]}


class HostMemory(NoTerms):
    """Terms that leave this much host memory for suspended jobs."""

    def __init__(self, size: int) -> None:
        self._size = size

    def host_bytes(self) -> int:
        return self._size


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    left = clear(tmp_path)
    assert not left, left


@pytest.fixture
def memory(folder: Path) -> PretendedMemory:
    return PretendedMemory(folder)


def scheduler_of(folder: Path, memory: PretendedMemory, policy: str = SLICES, **about: Any) -> Any:
    cluster = Cluster.of([Node("here", "h200", 1)], [GpuType("h200", CAPACITY, 0.0, 1.0)])
    site = LocalSite(memory=memory)
    about = {"terms": HostMemory(100 * GB), **about}
    return live_scheduler(folder, policy=policy, cluster=cluster, devices=["GPU-0"], site=site, **about)


def job(scheduler: Scheduler, memory: PretendedMemory, size: int, steps: int, *words: str, **about: Any) -> JobRecord:
    command = [sys.executable, str(WORKER), str(memory.gpu), str(CAPACITY), str(size), str(steps), *words]
    return submit(scheduler, command, **{"preempt": "suspend", **about})


def places(scheduler: Scheduler) -> dict[str, str]:
    live = scheduler.engine.attempts.live.values()
    return {scheduler.store[one.job].id: one.handle.memory.place for one in live}


def steps_of(scheduler: Scheduler, record: JobRecord) -> list[int]:
    whole, _, _ = log_of(scheduler, record).rpartition("\n")
    words = [line.split() for line in whole.splitlines()]
    return [int(line[1]) for line in words if line[:1] == ["step"]]


@pytest.mark.parametrize("known", [True, False])
def test_jobs_whose_memory_does_not_fit_together_take_turns(folder: Path, memory: PretendedMemory, known: bool) -> None:
    about = {"memory_bytes": 10 * GB} if known else {}
    PretendedDriver(memory)
    with scheduler_of(folder, memory) as scheduler:
        jobs = [job(scheduler, memory, 10 * GB, 40, "movable", **about) for _ in range(3)]
        for one in jobs:
            assert ended(one).state is JobState.COMPLETED, log_of(scheduler, one)
            assert steps_of(scheduler, one) == list(range(1, 41))
            assert len(one.attempts) == 1
        assert sum(one.preemptions for one in jobs) >= 3


def test_memory_that_nobody_needs_stays_on_the_gpu(folder: Path, memory: PretendedMemory) -> None:
    PretendedDriver(memory)
    with scheduler_of(folder, memory) as scheduler:
        jobs = [job(scheduler, memory, 5 * GB, 40, "movable", memory_bytes=5 * GB) for _ in range(2)]
        wait_for(lambda: any(one.preemptions for one in jobs))
        assert set(places(scheduler).values()) == {"gpu"}
        for one in jobs:
            assert ended(one).state is JobState.COMPLETED
            assert not list((scheduler.folder / "jobs" / one.id).glob("attempt-1/where.json"))


def test_the_driver_moves_what_the_job_cannot(folder: Path, memory: PretendedMemory) -> None:
    driver = PretendedDriver(memory)
    with scheduler_of(folder, memory) as scheduler:
        jobs = [job(scheduler, memory, 10 * GB, 40) for _ in range(2)]
        for one in jobs:
            assert ended(one).state is JobState.COMPLETED, log_of(scheduler, one)
    assert driver.calls.count("out") == driver.calls.count("in") >= 1


def test_a_job_computes_on_while_the_driver_moves_its_memory(folder: Path, memory: PretendedMemory) -> None:
    """The driver cannot move the memory of a process that stands still, so a job may reach its end meanwhile."""
    driver = PretendedDriver(memory)
    with scheduler_of(folder, memory, policy="fifo") as scheduler:
        first = job(scheduler, memory, 10 * GB, 20)
        wait_for(lambda: steps_of(scheduler, first))

        def until_the_last_step() -> None:
            wait_for(lambda: steps_of(scheduler, first)[-1] == 20)
            time.sleep(0.2)

        driver.while_it_leaves = until_the_last_step
        scheduler.suspend(first.id)
        other = job(scheduler, memory, 10 * GB, 3)
        assert ended(other).state is JobState.COMPLETED, log_of(scheduler, other)
        assert (first.state, places(scheduler)) == (JobState.SUSPENDED, {first.id: "host"}), log_of(scheduler, first)
        scheduler.release(first.id)
        assert ended(first).state is JobState.COMPLETED, log_of(scheduler, first)
    assert driver.calls == ["out", "in"]


def test_the_driver_moves_what_does_not_answer(folder: Path, memory: PretendedMemory) -> None:
    # The keeper is another process, so its limit is the real one: ten seconds.
    driver = PretendedDriver(memory)
    with scheduler_of(folder, memory, policy="fifo") as scheduler:
        deaf = job(scheduler, memory, 10 * GB, 10_000, "movable", "deaf")
        until(deaf, JobState.RUNNING)
        wait_for(lambda: steps_of(scheduler, deaf))
        scheduler.suspend(deaf.id)
        other = job(scheduler, memory, 10 * GB, 3)
        assert ended(other).state is JobState.COMPLETED, log_of(scheduler, other)
        assert driver.calls == ["out"]
        assert places(scheduler) == {deaf.id: "host"}
        scheduler.cancel(deaf.id)
        ended(deaf)


@pytest.mark.parametrize(("size", "ways"), [(10 * GB, ["moved"]), (15 * GB, ["moved", "driver"])])
def test_the_driver_takes_what_a_job_leaves_behind_if_it_stands_in_the_way(
    folder: Path, memory: PretendedMemory, size: int, ways: list[str]
) -> None:
    driver = PretendedDriver(memory)
    with scheduler_of(folder, memory, policy="fifo") as scheduler:
        first = job(scheduler, memory, 10 * GB, 40, "movable", "rests", memory_bytes=10 * GB)
        wait_for(lambda: steps_of(scheduler, first))
        scheduler.suspend(first.id)
        other = job(scheduler, memory, size, 3, memory_bytes=size)
        assert ended(other).state is JobState.COMPLETED, log_of(scheduler, other)
        where = json.loads(next(scheduler.folder.glob("jobs/1/attempt-1/where.json")).read_text())
        assert (where["place"], where["ways"]) == ("host", ways)
        scheduler.release(first.id)
        assert ended(first).state is JobState.COMPLETED, log_of(scheduler, first)
        assert steps_of(scheduler, first) == list(range(1, 41))
        assert driver.calls == (["out", "in"] if len(ways) > 1 else [])


@pytest.mark.parametrize("how", ["no driver", "no host memory", "no host memory for the driver", "driver refuses"])
def test_a_job_that_cannot_leave_is_stopped_by_a_checkpoint(folder: Path, memory: PretendedMemory, how: str) -> None:
    if how.endswith(("for the driver", "refuses")):
        PretendedDriver(memory, "the driver cannot save this kind of memory" if how == "driver refuses" else "")
    words = ("movable", "saves") if how == "no host memory" else ("saves",)
    with scheduler_of(folder, memory, policy="fifo", terms=HostMemory(GB)) as scheduler:
        first = job(scheduler, memory, 10 * GB, 60, *words)
        wait_for(lambda: first.progress.checkpoint is not None)
        wait_for(lambda: len(steps_of(scheduler, first)) > 2)
        scheduler.suspend(first.id)
        other = job(scheduler, memory, 10 * GB, 3)
        assert ended(other).state is JobState.COMPLETED, log_of(scheduler, other)
        assert first.attempts[0].codes == [75]
        scheduler.release(first.id)
        assert ended(first).state is JobState.COMPLETED
        assert "CUDA out of memory" not in log_of(scheduler, first, attempt=2)


def test_no_work_is_lost_where_memory_cannot_leave(
    folder: Path, memory: PretendedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can save anything, and host memory takes one job only. The others wait until there is room."""
    monkeypatch.setattr(live_jobs, "ROOM_RETRY_S", 1.0)
    PretendedDriver(memory)
    with scheduler_of(folder, memory, terms=HostMemory(12 * GB)) as scheduler:
        jobs = [job(scheduler, memory, 10 * GB, 30, "movable", memory_bytes=10 * GB) for _ in range(3)]
        for one in jobs:
            assert ended(one).state is JobState.COMPLETED, log_of(scheduler, one)
            assert steps_of(scheduler, one) == list(range(1, 31))
            assert len(one.attempts) == 1


def test_where_the_memory_is_can_be_asked(folder: Path, memory: PretendedMemory) -> None:
    with scheduler_of(folder, memory, policy="fifo") as scheduler:
        first = job(scheduler, memory, 10 * GB, 10_000, "movable")
        wait_for(lambda: steps_of(scheduler, first))
        scheduler.suspend(first.id)
        other = job(scheduler, memory, 10 * GB, 10_000, "movable")
        wait_for(lambda: steps_of(scheduler, other))
        told = explain(scheduler, first.id)["memory"]
        assert told == {"place": "host", "bytes": 10 * GB, "gpus": [0], "problem": ""}
        for one in (first, other):
            scheduler.cancel(one.id)
            ended(one)


def test_a_job_is_cancelled_while_its_memory_is_out(folder: Path, memory: PretendedMemory) -> None:
    with scheduler_of(folder, memory, policy="fifo") as scheduler:
        first = job(scheduler, memory, 10 * GB, 10_000, "movable", grace_s=600.0)
        wait_for(lambda: steps_of(scheduler, first))
        scheduler.suspend(first.id)
        other = job(scheduler, memory, 10 * GB, 40, "movable")
        wait_for(lambda: steps_of(scheduler, other))
        scheduler.cancel(first.id)
        # It cannot be asked to save anything, so it does not get its grace period.
        ended(first)
        assert ended(other).state is JobState.COMPLETED


def test_a_scheduler_that_starts_again_finds_memory_that_is_out(folder: Path, memory: PretendedMemory) -> None:
    with scheduler_of(folder, memory, policy="fifo") as scheduler:
        first = job(scheduler, memory, 10 * GB, 60, "movable")
        wait_for(lambda: steps_of(scheduler, first))
        scheduler.suspend(first.id)
        other = job(scheduler, memory, 10 * GB, 60, "movable")
        wait_for(lambda: steps_of(scheduler, other))
    with scheduler_of(folder, memory, policy="fifo") as scheduler:
        again = scheduler.store[first.number]
        assert places(scheduler)[first.id] == "host"
        scheduler.release(first.id)
        assert ended(again).state is JobState.COMPLETED
        assert steps_of(scheduler, again) == list(range(1, 61))
        assert ended(scheduler.store[other.number]).state is JobState.COMPLETED


def test_a_hosted_job_makes_room_for_a_program(folder: Path, memory: PretendedMemory) -> None:
    PretendedDriver(memory)
    with scheduler_of(folder, memory, policy="fifo") as scheduler:
        env = {"FAIRWAY_EXECUTOR_IDLE_S": "0.5", "CUDA_VISIBLE_DEVICES": ""}
        command, cwd = [sys.executable, "100000", "0.01"], str(WORKER.parents[1] / "unit" / "gpu")
        about = {"executor": "hosted_jobs:counting", "cwd": cwd, "env": env, "preempt": "suspend"}
        hosted = submit(scheduler, command, **about)
        wait_for(lambda: "step" in log_of(scheduler, hosted))
        scheduler.suspend(hosted.id)
        other = job(scheduler, memory, 10 * GB, 5)
        assert ended(other).state is JobState.COMPLETED, log_of(scheduler, other)
        assert places(scheduler) == {hosted.id: "host"}
        assert json.loads(next(scheduler.folder.glob("jobs/1/attempt-1/where.json")).read_text())["ways"] == ["moved"]
        scheduler.release(hosted.id)
        wait_for(lambda: places(scheduler) == {hosted.id: "gpu"})
        scheduler.cancel(hosted.id)
        ended(hosted)
    wait_for(lambda: not executors.wardens(folder / "executors"), "executors to end")


def test_executors_know_whose_turn_is_next(folder: Path, memory: PretendedMemory) -> None:
    with scheduler_of(folder, memory) as scheduler:
        env = {"FAIRWAY_EXECUTOR_IDLE_S": "0.5", "CUDA_VISIBLE_DEVICES": ""}
        cwd = str(WORKER.parents[1] / "unit" / "gpu")
        about = {"executor": "hosted_jobs:counting", "cwd": cwd, "env": env, "preempt": "suspend"}
        jobs = [submit(scheduler, [sys.executable, "100000", "0.01"], **about) for _ in range(3)]

        seen: set[tuple[str, str]] = set()

        def all_were_next() -> bool:
            words = {one.id: scheduler.folder / "jobs" / one.id / "attempt-1" / "in_plan" for one in jobs}
            seen.update((job, word.read_text()) for job, word in words.items() if word.exists())
            return seen >= {(one.id, "0") for one in jobs}

        wait_for(all_were_next, "the turns of all three")
        assert {word for _, word in seen} == {"0", "1", ""}
        for one in jobs:
            scheduler.cancel(one.id)
            ended(one)
    wait_for(lambda: not executors.wardens(folder / "executors"), "executors to end")
