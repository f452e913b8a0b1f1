"""The scheduler's own life: up, down, killed, twice, with jobs that go on meanwhile."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_house import CliHouse, until


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CliHouse]:
    house = CliHouse(tmp_path)
    yield house
    house.close()


def _communicated(house: CliHouse) -> str:
    assert house.daemon is not None
    return house.daemon.communicate(timeout=60)[0]


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_jobs_running_and_says_so(house: CliHouse, signo: signal.Signals) -> None:
    house.start("--gpus", "1")
    job = house.submit("--", "bash", "-c", "echo begun; while [ ! -e go ]; do sleep 0.1; done; echo done")
    house.wait_for(job, "RUNNING")
    assert house.daemon is not None
    house.daemon.send_signal(signo)
    assert "1 running and 0 waiting" in _communicated(house)
    assert house.daemon.returncode == 0
    (house.folder / "go").touch()
    house.start()
    told = house.wait_for(job, "COMPLETED")
    assert told["attempts"] == 1
    assert house("logs", job).out == "begun\ndone\n"


def test_down_stops_it_and_everything_then_says_that_it_is_not_up(house: CliHouse) -> None:
    house.start("--gpus", "1")
    assert house("down").out == "the scheduler has stopped\n"
    _communicated(house)
    for words in (("status",), ("ls",), ("submit", "--", "true"), ("top", "--once"), ("down",), ("logs", "1", "-f")):
        call = house(*words)
        assert call.code == 3, words
        assert call.err.count("\n") == 1
        assert "no scheduler is running" in call.err


SAVES = f"""
exec {sys.executable} -c '
import os, signal, sys, time
if os.environ["FAIRWAY_RESTART_COUNT"] != "0":
    print("again")
    sys.exit(0)
def save(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
'
"""


def test_down_can_stop_jobs_which_go_on_with_the_next(house: CliHouse) -> None:
    house.start("--gpus", "2")
    job = house.submit("--preempt", "checkpoint", "--grace", "20", "--", "bash", "-c", SAVES)
    frozen = house.submit("--grace", "1", "--", "sleep", "60")
    house.wait_for(frozen, "RUNNING")
    until(lambda: "ready" in house("logs", job).out, "the job to be ready")
    told = house("down", "--jobs", "stop", "--json").json
    assert told == {"stopped": True, "jobs_stopped": 2}
    _communicated(house)
    assert (house.state / "jobs" / job / "attempt-1" / "exit.json").exists()
    house.start()
    house.wait_for(job, "COMPLETED")
    assert house("logs", job).out == "ready\nsaved\nagain\n"
    house.wait_for(frozen, "RUNNING")
    assert house("cancel", frozen).code == 0


def test_following_survives_a_scheduler_that_is_killed(house: CliHouse) -> None:
    house.start("--gpus", "2")
    script = "for i in 1 2 3 4 5 6; do echo $RANK:$i; sleep 0.5; done"
    job = house.submit("--gpus", "2", "--per-gpu", "--", "bash", "-c", script)
    seen = house.folder / "seen"
    with seen.open("w") as out:
        follower = house.popen("logs", job, "-f", out=out)
    until(lambda: "0:1" in seen.read_text() and "1:1" in seen.read_text(), "the first lines")
    house.kill()
    house.start()
    _, err = follower.communicate(timeout=60)
    assert follower.returncode == 0, err
    expected = [f"[{rank}] {rank}:{at}" for rank in (0, 1) for at in range(1, 7)]
    assert sorted(seen.read_text().splitlines()) == expected, err


def test_a_second_scheduler_is_refused(house: CliHouse) -> None:
    house.start("--gpus", "1")
    call = house("up", "--gpus", "1")
    assert call.code == 5
    assert "already running" in call.err
    assert house("status").code == 0


def test_dependencies_and_arrays_are_remembered_by_the_next_scheduler(house: CliHouse) -> None:
    house.start("--gpus", "4", "--policy", "fifo")
    wait = "while [ ! -e go ]; do sleep 0.1; done"
    array = house.submit("--array", "0-3%2", "--", "bash", "-c", wait)
    after = house.submit("--depends", f"afterok:{array}", "--", "true")
    until(lambda: [row["state"] for row in house.show(array)["tasks"]].count("RUNNING") == 2, "two tasks")
    house.kill()
    house.start()
    states = [row["state"] for row in house.show(array)["tasks"]]
    assert states.count("RUNNING") == 2
    assert house.show(after)["state"] == "PENDING"
    (house.folder / "go").touch()
    house.wait_for(after, "COMPLETED")
    assert {(row["state"], row["attempts"]) for row in house.show(array)["tasks"]} == {("COMPLETED", 1)}


def test_the_configuration_is_read_again_when_asked(house: CliHouse) -> None:
    config = house.folder / "house.toml"
    config.write_text("[queues.default]\nmax_gpus_per_job = 1\n")
    house.start("--gpus", "2", "--config", str(config))
    assert house("submit", "--gpus", "2", "--", "true").code == 2
    config.write_text("[queues.default]\nmax_gpus_per_job = 2\n")
    assert house("reload").out == f"{config} was read\n"
    job = house.submit("--gpus", "2", "--", "true")
    house.wait_for(job, "COMPLETED")
    config.write_text("[queues.default]\nmax_gpus_per_job = 'many'\n")
    call = house("reload")
    assert call.code == 2
    assert "max_gpus_per_job" in call.err
    house.submit("--gpus", "2", "--hold", "--", "true")


@pytest.mark.parametrize(
    "words",
    [
        ("--policy", "nonsense"),
        ("--placement", "nonsense"),
        ("--gpus", "many"),
        ("--gpus", "0"),
        ("--round", "-1"),
        ("--listen", "0.0.0.0:1"),
        ("--listen", "here"),
        ("--config", "missing.toml"),
    ],
)
def test_bad_settings_are_one_line(house: CliHouse, words: tuple[str, ...]) -> None:
    call = house("up", *words)
    assert (call.code, call.out) == (2, "")
    assert call.err.startswith("fairway: error: ")
    assert call.err.count("\n") == 1


def test_a_state_directory_that_cannot_be(house: CliHouse) -> None:
    (house.folder / "file").touch()
    call = house("up", "--state", "file/below")
    assert call.code == 2
    assert call.err.count("\n") == 1


def test_a_damaged_journal_is_refused_and_can_be_salvaged(house: CliHouse) -> None:
    house.start("--gpus", "1")
    job = house.submit("--hold", "--", "true")
    assert house("down").code == 0
    _communicated(house)
    journal = house.state / "journal.db"
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) - 4096] + b"\0" * 100)
    call = house("up")
    assert call.code == 2
    assert "salvage" in call.err
    told = house("salvage", str(journal), str(house.folder / "new.db"), "--json").json
    assert told["file"] == str(house.folder / "new.db")
    assert house("salvage", str(journal), str(house.folder / "new.db")).code == 2
    assert job
    assert json.dumps(told)
