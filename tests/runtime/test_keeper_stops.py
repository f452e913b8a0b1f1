"""Stopping, suspending and limiting the processes of an attempt: what was asked for happens, and nothing is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_processes import (
    attempt_alone,
    end_of,
    launch,
    log_of,
    processes_of,
    python,
    said,
    start,
    state_of,
    wait_for,
)

from fairway.runtime.processes import containment, keeper, local
from fairway.runtime.processes.local import Running
from fairway.runtime.processes.site import Outcome

IGNORES = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(600)"
SAVES = (
    "import signal, sys, time\n"
    "def stop(*_):\n    print('saved'); sys.exit(75)\n"
    "signal.signal(15, stop); print('ready')\n"
    "time.sleep(600)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield from attempt_alone(tmp_path)


def test_a_job_that_ignores_sigterm_is_killed_after_its_grace_period(folder: Path) -> None:
    running = start(folder, python(IGNORES), grace_s=0.5)
    said(running, "ready")
    began_s = time.monotonic()
    running.stop()
    outcome = end_of(running)
    assert time.monotonic() - began_s >= 0.5
    assert outcome.codes == (137,)
    assert (outcome.cause, outcome.killed) == ("request", True)


def test_a_job_that_saves_its_state_has_the_time_to(folder: Path) -> None:
    running = start(folder, python(SAVES))
    said(running, "ready")
    running.stop()
    outcome = end_of(running)
    assert (outcome.codes, outcome.cause, outcome.killed) == ((75,), "request", False)
    assert "saved" in log_of(running)


def test_a_second_request_to_stop_neither_shortens_nor_lengthens_the_first(folder: Path) -> None:
    running = start(folder, python(IGNORES), grace_s=0.6)
    said(running, "ready")

    def ended() -> bool:
        running.stop()
        return running.ended

    wait_for(ended, "its grace period to end although it is asked all the time")
    outcome = end_of(running)
    assert outcome.codes == (137,)
    assert outcome.stop_s is not None
    assert outcome.stop_s >= 0.6


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.005, 0.02, 0.05])
def test_a_signal_in_the_first_milliseconds_is_not_lost(folder: Path, delay_s: float) -> None:
    running = start(folder, ["sleep", "600"])
    time.sleep(delay_s)
    running.stop()
    outcome = end_of(running)
    assert outcome.codes == (143,)
    assert outcome.cause == "request"


def test_suspending_at_once_and_going_on_at_once_leaves_it_running(folder: Path) -> None:
    running = start(folder, python("print('did it')"))
    running.pause()
    running.go_on()
    assert end_of(running).codes == (0,)


def test_the_time_limit_ends_a_job_and_does_not_count_while_it_is_suspended(folder: Path) -> None:
    begun_s = time.monotonic()
    running = start(folder, ["sleep", "600"], limit_s=2.5)
    ranks = containment._ranks(folder) or wait_for(lambda: containment._ranks(folder))
    running.pause()
    wait_for(lambda: all(state_of(pid) == "T" for pid in ranks))
    time.sleep(1.0)
    assert not running.ended
    running.go_on()
    outcome = end_of(running)
    assert outcome.cause == "limit"
    assert outcome.codes == (143,)
    assert outcome.ran_s is not None
    assert 2.5 <= outcome.ran_s <= time.monotonic() - begun_s - 1.0
    assert outcome.ended is not None
    assert outcome.ended.boot == keeper.boot_id()
    assert keeper.uptime_s() - 10.0 < outcome.ended.uptime_s <= keeper.uptime_s()


def test_suspending_stops_every_process_even_outside_the_group(folder: Path) -> None:
    # One child stays in the group, one has a session of its own, and one is a daemon with another parent.
    code = """
import os, time
def tick(name):
    with open(name, 'ab', buffering=0) as file:
        while True:
            file.write(b'.'); time.sleep(0.01)
def child(name, sessions):
    if os.fork():
        return
    if sessions:
        os.setsid()
    if sessions > 1 and os.fork():
        os._exit(0)
    tick(name)
child('a', 0); child('b', 1); child('c', 2); tick('d')
"""
    running = start(folder, python(code), cwd=str(folder.parent), grace_s=1.0)
    files = [folder.parent / name for name in "abcd"]
    wait_for(lambda: all(file.exists() and file.stat().st_size for file in files))
    running.pause()
    wait_for(lambda: all(state_of(pid) in "T" for pid in processes_of(folder.name) if pid != running.pid))
    before = [file.stat().st_size for file in files]
    time.sleep(0.3)
    assert [file.stat().st_size for file in files] == before
    running.go_on()
    wait_for(lambda: all(file.stat().st_size > size for file, size in zip(files, before, strict=True)))
    running.stop()
    assert end_of(running).cause == "request"


def test_a_suspended_job_can_be_stopped(folder: Path) -> None:
    running = start(folder, python(SAVES))
    said(running, "ready")
    running.pause()
    pids = [pid for pid in processes_of(folder.name) if pid != running.pid]
    wait_for(lambda: all(state_of(pid) == "T" for pid in pids))
    running.stop()
    assert end_of(running).codes == (75,)


def test_a_rank_that_fails_takes_the_gang_down(folder: Path) -> None:
    running = start(folder, ["sleep", "600"], python("import sys; sys.exit(3)"), ["sleep", "600"], grace_s=20.0)
    outcome = end_of(running)
    assert outcome.cause == "gang"
    assert outcome.codes == (143, 3, 143)


def test_a_rank_that_ends_well_leaves_the_others_alone(folder: Path) -> None:
    running = start(folder, ["true"], python("import time; time.sleep(0.7)"))
    outcome = end_of(running)
    assert outcome.codes == (0, 0)
    assert outcome.cause == ""


def test_a_rank_that_has_saved_leaves_the_others_their_whole_grace_period(folder: Path) -> None:
    slow = SAVES.replace("print('saved')", "time.sleep(1.5); print('saved')").replace("print('ready')", "print('r')")
    first = f"while [ ! -s {folder}/rank-1.log ]; do sleep 0.02; done; exit 75"
    running = start(folder, ["bash", "-c", first], python(slow), grace_s=120.0)
    outcome = end_of(running)
    assert outcome.codes == (75, 75)
    assert not outcome.killed


def test_ranks_that_end_while_others_are_being_started_are_noticed(folder: Path) -> None:
    running = start(folder, *[python("import sys; sys.exit(7)")] * 3, *[["true"]] * 12, *[["sleep", "600"]] * 3)
    outcome = end_of(running)
    assert outcome.codes[:3] == (7, 7, 7)
    assert outcome.codes[3:15] == (0,) * 12


def test_a_fork_bomb_leaves_nothing_behind(folder: Path) -> None:
    code = """
import os, time
for number in range(200):
    if os.fork() == 0:
        if number % 3 == 0: os.setsid()
        if number % 2: os.fork()
        time.sleep(600)
print('ready'); time.sleep(600)
"""
    running = start(folder, python(code), grace_s=0.3)
    said(running, "ready")
    assert len(processes_of(folder.name)) >= 200
    running.stop()
    assert end_of(running).cause == "request"
    assert processes_of(folder.name) == []


def test_a_process_that_runs_away_by_forking_is_caught(folder: Path) -> None:
    # Each link of the chain starts the next in a session of its own and ends; the chain ends by itself after a while.
    code = """
import os, signal, time
signal.signal(15, signal.SIG_IGN)
end = time.monotonic() + 150
for link in range(15000):
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.01)
        if time.monotonic() > end: os._exit(0)
    elif link:
        os._exit(0)
    else:
        print('ready')
        time.sleep(600)
"""
    running = start(folder, python(code), grace_s=0.2)
    said(running, "ready")
    running.stop()
    end_of(running)
    assert processes_of(folder.name) == []


def test_daemons_that_a_job_leaves_behind_end_with_it(folder: Path) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        time.sleep(600)
    os._exit(0)
os.wait()
print('done')
"""
    running = start(folder, ["bash", "-c", "(setsid env -i sleep 601 &) ; sleep 0.2; exit 0"], python(code))
    outcome = end_of(running)
    assert outcome.codes == (0, 0)
    assert processes_of(folder.name) == []


def test_ranks_end_with_a_keeper_that_is_killed(folder: Path) -> None:
    running: Running = start(folder, ["bash", "-c", "setsid sleep 600 & sleep 600 & echo ready; wait"])
    said(running, "ready")
    running.signal(signal.SIGKILL)
    wait_for(lambda: running.ended)
    running.close()
    assert local.outcome_of(folder) is None
    lost = local.find_attempt(folder)
    assert isinstance(lost, Outcome)
    assert lost.ended is not None
    assert (lost.cause, lost.ended.boot) == ("lost", keeper.boot_id())
    assert lost.ran_s is not None
    containment.kill_strays(folder, folder.name, just_now=True)
    wait_for(lambda: processes_of(folder.name) == [])


def test_strays_without_a_token_are_found_by_their_session(folder: Path) -> None:
    running = start(folder, ["bash", "-c", "env -i sleep 602 & env -i sleep 602 & echo ready; wait"])
    said(running, "ready")
    ranks = containment._ranks(folder) or wait_for(lambda: containment._ranks(folder))
    running.signal(signal.SIGKILL)
    wait_for(lambda: running.ended)
    running.close()
    assert containment.kill_strays(folder, folder.name, just_now=True) >= 2
    assert ranks
    assert not containment._strays(folder, folder.name, just_now=True)


def test_a_keeper_that_finds_its_place_taken_starts_nothing(folder: Path) -> None:
    folder.mkdir()
    told = launch(folder, ["touch", str(folder / "started")])
    assert local.find_attempt(folder) is None
    running = local.start_keeper(folder, told)
    wait_for(lambda: running.ended)
    running.close()
    assert not (folder / "started").exists()
    assert local.find_attempt(folder) is None
