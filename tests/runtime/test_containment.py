"""Control groups: nothing leaves a job, not even when its keeper is killed, and devices of others are shut."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_processes import attempts, end_of, launch, log_of, python, said, state_of, wait_for

from fairway.runtime.processes import containment
from fairway.runtime.processes.containment import Containment
from fairway.runtime.processes.local import LocalSite, Running
from fairway.runtime.processes.machine import Nvml
from fairway.runtime.processes.site import LOST
from fairway.testing.fake_nvml import FakeNvml

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
GROUPS = containment.found(Path("/tests of containment"))
pytestmark = pytest.mark.skipif(GROUPS.root is None, reason=f"no control groups: {GROUPS.why}")
AWAY = """
import os, time
def leave(seconds):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", seconds], {})
        os._exit(0)
    os.wait()
for _ in range(5): leave("604")
print("ready")
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = next(attempts(tmp_path))
    yield made
    group = _group(made)
    assert not group.exists() or not (group / "cgroup.procs").read_text()
    containment.end(group)


def _group(folder: Path) -> Path:
    assert GROUPS.root is not None
    return GROUPS.root / f"attempt-{folder.name}"


def _start(folder: Path, *commands: list[str], site: LocalSite | None = None, **about: object) -> Running:
    told = launch(folder / "attempt-1", *commands, **about)
    return (site or LocalSite(GROUPS)).start(folder / "attempt-1", {**told, "account": "", "token": folder.name})


def _inside(folder: Path) -> list[int]:
    return [int(pid) for pid in (_group(folder) / "cgroup.procs").read_text().split()]


def test_processes_that_hide_end_with_their_job(folder: Path) -> None:
    running = _start(folder, python(AWAY), grace_s=0.5)
    said(running, "ready")
    hidden = _inside(folder)
    assert len(hidden) == 6
    running.stop()
    assert end_of(running).cause == "request"
    assert {state_of(pid) for pid in hidden} <= {"X", "Z"}
    assert not _group(folder).exists()


def test_processes_that_hide_end_with_a_keeper_that_is_killed(folder: Path) -> None:
    site = LocalSite(GROUPS)
    running = _start(folder, python(AWAY), site=site)
    said(running, "ready")
    hidden = _inside(folder)
    running.signal(signal.SIGKILL)
    over = wait_for(lambda: site.wait(0.2))
    assert over[0].outcome._replace(said_no_memory=False) == LOST
    assert {state_of(pid) for pid in hidden} <= {"X", "Z"}
    assert not _group(folder).exists()


def test_processes_that_hide_are_suspended_with_their_job(folder: Path) -> None:
    running = _start(folder, python(AWAY), grace_s=0.5)
    said(running, "ready")
    running.pause()
    wait_for(lambda: all(state_of(pid) == "T" for pid in _inside(folder)))
    running.go_on()
    wait_for(lambda: not any(state_of(pid) == "T" for pid in _inside(folder)))
    running.stop()
    end_of(running)


def test_an_attempt_that_an_earlier_scheduler_left_is_found_by_its_group(folder: Path) -> None:
    running = _start(folder, python(AWAY))
    said(running, "ready")
    running.signal(signal.SIGKILL)
    wait_for(lambda: running.ended)
    running.close()
    found = LocalSite(GROUPS).find(folder / "attempt-1", folder.name)
    assert found is not None
    assert not _group(folder).exists()
    assert containment.kill_strays(folder / "attempt-1", folder.name) == 0


@AS_ROOT
def test_devices_that_were_not_granted_cannot_be_opened(folder: Path) -> None:
    nvml = Nvml(FakeNvml([]))
    nvml.device_numbers = {"GPU-mine": (1, 9), "GPU-theirs": (1, 5)}
    site = LocalSite(GROUPS, nvml=nvml)
    command = ["bash", "-c", "head -c 1 /dev/zero | wc -c; head -c 1 /dev/urandom | wc -c"]
    running = _start(folder, command, site=site, devices=["GPU-mine"])
    assert end_of(running).codes == (0,)
    assert "Operation not permitted" in log_of(running)
    assert [line for line in log_of(running).splitlines() if line.isdigit()] == ["0", "1"]


@pytest.mark.skipif("memory" not in GROUPS.controllers, reason="no memory controller is delegated")
def test_a_job_over_its_memory_is_killed_and_that_is_told_exactly(folder: Path) -> None:
    running = _start(folder, python("x = b'x' * 300_000_000"), host_memory_bytes=100_000_000)
    outcome = end_of(running)
    assert outcome.codes == (137,)
    assert outcome.memory_kills == 1


@pytest.mark.skipif("cpu" not in GROUPS.controllers, reason="no cpu controller is delegated")
def test_a_job_gets_no_more_than_its_cpus(folder: Path) -> None:
    code = "import time; end = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    began_s = time.monotonic()
    running = _start(folder, python(code), cpus=0.25)
    assert end_of(running).codes == (0,)
    assert float(log_of(running)) < 0.35 * (time.monotonic() - began_s)


def test_status_says_what_is_contained() -> None:
    assert Containment(Path("/x"), ["cpu", "memory"]).words() == "cgroup v2, with limits of memory and cpus"
    assert Containment(Path("/x")).words() == "cgroup v2, without limits"
    assert Containment(None, why="it is not there").words().startswith("none: it is not there.")
