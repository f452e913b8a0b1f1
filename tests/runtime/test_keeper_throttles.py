"""Throttled processes: they compute for their part of the time, whoever comes and goes, and stop like any other."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_processes import (
    attempt_alone,
    end_of,
    log_of,
    processes_of,
    python,
    said,
    start,
    state_of,
    stays,
    takes_turns,
    wait_for,
)

from fairway.runtime.processes import keeper, local
from fairway.runtime.processes.local import HURRY_S, Running
from fairway.testing.seeds import some

BUSY = "print('ready')\nwhile True: pass"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield from attempt_alone(tmp_path)


def rank_of(running: Running, rank: int = 0) -> int:
    """The pid of a rank."""
    path = running.directory / "ranks.json"
    wait_for(path.exists)
    return int(json.loads(path.read_text())[rank][0])


def busy(folder: Path, **about: object) -> Running:
    """A rank that never rests."""
    running = start(folder, python(BUSY), **{"grace_s": 1.0, **about})
    said(running, "ready")
    return running


def test_a_throttled_job_rests_in_every_period_and_one_of_1_never(folder: Path) -> None:
    running = busy(folder)
    pid = rank_of(running)
    assert running.throttle(0.3)
    assert running.throttled == 0.3
    takes_turns(pid)
    running.throttle(1.0)
    stays(pid, stopped=False)
    running.stop()
    end_of(running)


def test_a_throttle_from_before_the_start_of_the_ranks_counts(folder: Path) -> None:
    running = start(folder, python(BUSY), grace_s=1.0)
    running.throttle(0.1)
    said(running, "ready")
    takes_turns(rank_of(running))
    running.stop()
    end_of(running)


def test_every_process_rests_even_outside_the_group(folder: Path) -> None:
    code = "import os\nif os.fork() == 0: os.setsid()\nelif os.fork() == 0: pass\nprint('ready')\nwhile True: pass"
    running = start(folder, python(code), grace_s=0.5)
    wait_for(lambda: log_of(running).count("ready") == 3)
    running.throttle(0.02)
    pids = [pid for pid in processes_of(folder.name) if pid != running.pid]
    assert len(pids) == 3
    wait_for(lambda: all(state_of(pid) == "T" for pid in pids), "a rest of all")
    running.throttle(1.0)
    for pid in pids:
        stays(pid, stopped=False)
    running.stop()
    end_of(running)


def test_suspending_comes_before_the_throttle_and_going_on_takes_it_up_again(folder: Path) -> None:
    running = busy(folder)
    pid = rank_of(running)
    running.throttle(0.5)
    takes_turns(pid)
    running.pause()
    stays(pid, stopped=True)
    running.throttle(0.1)
    stays(pid, stopped=True)
    running.go_on()
    takes_turns(pid)
    running.stop()
    end_of(running)


def test_a_request_to_stop_ends_the_throttle_so_that_there_is_time_to_save(folder: Path) -> None:
    # Two tenths of a second of computing: at a thousandth of the time they would take 200 s.
    code = """
import signal, sys, time
asked = []
signal.signal(15, lambda *_: asked.append(1)); print('ready')
while not asked: time.sleep(0.01)
begin = time.process_time()
while time.process_time() < begin + 0.2: pass
print('saved'); sys.exit(75)
"""
    running = start(folder, python(code), grace_s=120.0)
    said(running, "ready")
    running.throttle(0.001)
    pid = rank_of(running)
    wait_for(lambda: state_of(pid) == "T")
    running.stop()
    outcome = end_of(running)
    assert (outcome.codes, outcome.killed) == ((75,), False)


def test_a_throttle_outlives_the_scheduler_that_set_it(folder: Path) -> None:
    running = busy(folder)
    running.throttle(0.2)
    os.close(running.pidfd)
    found = local.find_attempt(folder)
    assert isinstance(found, Running)
    assert found.throttled == 0.2
    takes_turns(rank_of(found))
    found.throttle(1.0)
    stays(rank_of(found), stopped=False)
    found.stop()
    end_of(found)
    assert running.child is not None
    running.child.wait()


def test_ranks_that_keep_to_the_throttle_themselves_are_left_alone_until_their_word_is_old(folder: Path) -> None:
    running = busy(folder)
    pid = rank_of(running)
    (folder / "eased-0").touch()
    said_s = (folder / "eased-0").stat().st_mtime
    running.throttle(0.05)
    wait_for(lambda: state_of(pid) == "T", "the keeper to do it")
    assert time.time() - said_s >= keeper._EASED_S
    running.stop()
    end_of(running)


def test_one_rank_that_says_nothing_is_enough_for_the_keeper_to_do_it(folder: Path) -> None:
    running = start(folder, python(BUSY), python(BUSY), grace_s=1.0)
    said(running, "ready")
    (folder / "eased-0").touch()
    running.throttle(0.05)
    pids = [rank_of(running, 0), rank_of(running, 1)]

    def all_rest() -> bool:
        (folder / "eased-0").touch()
        return all(state_of(pid) == "T" for pid in pids)

    wait_for(all_rest, "a rest of both, although one says all the time that it keeps the throttle")
    running.stop()
    end_of(running)


@pytest.mark.parametrize("word", some(["nan", "", "nonsense", "0", "-1", "7"], 2))
def test_a_throttle_that_makes_no_sense_is_none(folder: Path, word: str) -> None:
    running = busy(folder)
    (folder / "throttle").write_text(word)
    running.signal(keeper.signal.SIGURG)
    pid = rank_of(running)
    for _ in range(40):
        assert state_of(pid) != "T"
        time.sleep(0.01)
    running.stop()
    assert end_of(running).cause == "request"


def test_a_suspended_job_that_nobody_wants_any_more_has_little_time_to_stop(folder: Path) -> None:
    ignores = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('ready')\nwhile True: pass"
    running = start(folder, python(ignores), grace_s=600.0)
    said(running, "ready")
    running.pause()
    pid = rank_of(running)
    wait_for(lambda: state_of(pid) == "T")
    began_s = time.monotonic()
    running.stop(hurry=True)
    outcome = end_of(running)
    assert time.monotonic() - began_s >= HURRY_S
    assert (outcome.cause, outcome.killed) == ("request", True)
    assert outcome.stop_s is not None
    assert outcome.stop_s >= HURRY_S


def test_a_suspended_job_hears_of_the_request_before_it_computes_on(folder: Path) -> None:
    counter = folder.parent / "counter"
    counter.write_bytes(bytes(8))
    code = """
import mmap, os, signal
signal.signal(15, lambda *_: os._exit(75))
with open('counter', 'r+b') as file: cell = memoryview(mmap.mmap(file.fileno(), 8)).cast('Q')
print('ready')
while True: cell[0] += 1
"""
    running = start(folder, python(code), grace_s=20.0, cwd=str(folder.parent))
    said(running, "ready")
    running.pause()
    pid = rank_of(running)
    wait_for(lambda: state_of(pid) == "T")
    before = int.from_bytes(counter.read_bytes(), "little")
    running.stop(hurry=True)
    assert end_of(running).codes == (75,)
    # The interpreter looks for signals between any two turns of the loop.
    assert int.from_bytes(counter.read_bytes(), "little") - before <= 5


def test_a_running_job_that_nobody_wants_any_more_keeps_its_grace_period(folder: Path) -> None:
    code = "import signal, sys, time\nsignal.signal(15, lambda *_: (time.sleep(3), print('saved'), sys.exit(75)))"
    running = start(folder, python(code + "\nprint('ready')\ntime.sleep(600)"), grace_s=120.0)
    said(running, "ready")
    running.stop(hurry=True)
    assert end_of(running).codes == (75,)
    assert "saved" in log_of(running)
