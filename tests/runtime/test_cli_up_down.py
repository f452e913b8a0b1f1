"""The scheduler's own life: up, down, killed, twice, with jobs that go on meanwhile."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_house import CliHouse, house_in, until

from fairway.runtime.daemon.daemon import announce, running_daemon


@pytest.fixture
def house(tmp_path: Path) -> Iterator[CliHouse]:
    yield from house_in(tmp_path)


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
    assert "scheduling has stopped; 1 running job goes on by itself; the next `fairway up`" in _communicated(house)
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
    assert told == {"stopped": True, "jobs_stopped": 2, "jobs_from_the_beginning": 1}
    assert "`fairway down` stops 2 running jobs; the next `fairway up` starts them again" in _communicated(house)
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
    assert house("reload", "--json").json == {"file": str(config)}
    job = house.submit("--gpus", "2", "--", "true")
    house.wait_for(job, "COMPLETED")
    config.write_text("[queues.default]\nmax_gpus_per_job = 'many'\n")
    call = house("reload")
    assert call.code == 2
    assert "max_gpus_per_job" in call.err
    house.submit("--gpus", "2", "--hold", "--", "true")
    told = house("status", "--json").json
    assert (told["policy_problem"], told["configuration"]) == ("", str(config))
    assert f"{config}: queues.default.max_gpus_per_job" in told["configuration_problem"]
    shown = {line.split("  ")[0].strip(): line for line in house("status").out.splitlines()}
    assert "max_gpus_per_job" not in shown["policy"]
    assert "max_gpus_per_job" in shown["configuration"]
    config.write_text("")
    assert house("reload").code == 0
    assert house("status", "--json").json["configuration_problem"] == ""


@pytest.mark.parametrize(
    "words",
    [
        ("--policy", "nonsense"),
        ("--placement", "nonsense"),
        ("--gpus", "many"),
        ("--gpus", "0"),
        ("--round", "-1"),
        ("--round", "often"),
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
    assert not house.state.exists(), "nothing is left behind"


def test_an_address_in_use_is_one_line_and_leaves_nothing_behind(house: CliHouse) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        call = house("up", "--listen", f"127.0.0.1:{other.getsockname()[1]}")
    assert call.code == 2
    assert "Address already in use" in call.err
    assert not house.state.exists()


def test_a_directory_that_was_there_is_kept_when_something_is_refused(house: CliHouse) -> None:
    house.state.mkdir()
    (house.state / "mine").touch()
    assert house("up", "--gpus", "many").code == 2
    assert (house.state / "mine").exists()


def test_a_free_port_is_told_and_strangers_hear_where_the_token_is(house: CliHouse) -> None:
    first = house.start("--gpus", "1", "--listen", "127.0.0.1:0")
    found = re.search(r"and (http://127\.0\.0\.1:(\d+)) \(its token is in (\S+)\)", first)
    assert found, first
    assert int(found[2]) > 0
    assert found[3] == str(house.state / "token")
    assert house("status", "--url", found[1]).code == 0
    for head, why in (({}, "needs a token"), ({"Authorization": "Bearer guess"}, "does not carry")):
        for path in ("/v1/status", "/metrics"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(urllib.request.Request(found[1] + path, headers=head))
            told = json.loads(caught.value.read())["error"]
            assert caught.value.code == 401
            assert why in told
            assert "the file `token` of the state directory" in told


def _cluster(house: CliHouse) -> int:
    return int(house("status", "--json").json["gpus"])


def test_the_number_of_gpus_is_remembered_and_changes_are_told(house: CliHouse) -> None:
    house.start("--gpus", "3", "--policy", "fifo")
    job = house.submit("--gpus", "2", "--hold", "--", "true")
    assert house("down").code == 0
    assert "GPUs are others" not in house.daemon.communicate()[1]  # type: ignore[union-attr]
    house.start()
    assert _cluster(house) == 3
    assert house("down").code == 0
    assert "--gpus 3, as last time" in house.daemon.communicate()[1]  # type: ignore[union-attr]
    house.start("--gpus", "2")
    assert _cluster(house) == 2
    assert house.show(job)["state"] == "PENDING"
    assert house("down").code == 0
    told = house.daemon.communicate()[1]  # type: ignore[union-attr]
    assert "the GPUs are others than last time: 2 × cpu, before 3 × cpu; 1 job that has not ended is queued" in told
    house.start()
    assert _cluster(house) == 2
    house.kill()
    house.start("--gpus", "auto")
    assert house("down").code == 0
    assert "as last time" not in house.daemon.communicate()[1]  # type: ignore[union-attr]


def test_without_a_configuration_reload_does_not_say_that_it_was_read(house: CliHouse) -> None:
    house.start("--gpus", "1")
    call = house("reload")
    assert (call.code, call.out) == (0, "there is no configuration, and so no limits\n")
    assert house("reload", "--json").json == {"file": None}
    (house.state / "fairway.toml").write_text("operators = ['anna']\n")
    assert house("reload").out == f"{house.state / 'fairway.toml'} was read\n"


def test_what_cannot_be_submitted_cannot_be_had_by_update_either(house: CliHouse) -> None:
    house.state.mkdir()
    terms = "[users.'*']\nmax_priority = 5\nmax_limit_s = '1h'\nweight = 2\npriority = 100\n"
    (house.state / "fairway.toml").write_text(terms)
    house.start("--gpus", "1")
    job = house.submit("--hold", "--priority", "5", "--", "true")
    array = house.submit("--hold", "--array", "0-2", "--", "true")
    for one in (job, array):
        for words in (("--priority", "6"), ("--time", "2h")):
            call = house("update", one, *words)
            assert call.code == 2
            assert "the most for user" in call.err
    assert (house.show(job)["priority"], house.show(job)["request"]["limit_s"]) == (105, 3600.0)
    assert house("update", job, "--priority", "1", "--weight", "3", "--time", "none").code == 0
    told = house.show(job)["request"]
    assert (told["priority"], told["weight"], told["limit_s"]) == (101, 6.0, 3600.0)


COUNTS = f"""
exec {sys.executable} -c '
import time
for at in range(100000):
    with open("beat", "a") as file:
        file.write(".")
    time.sleep(0.02)
'
"""


@pytest.mark.parametrize("preempt", ["suspend", "checkpoint", "never"])
def test_down_can_suspend_jobs_which_go_on_where_they_were(house: CliHouse, preempt: str) -> None:
    house.start("--gpus", "2")
    job = house.submit("--preempt", preempt, "--grace", "1", "--", "bash", "-c", COUNTS)
    beat = house.folder / "beat"
    until(lambda: beat.exists() and beat.stat().st_size > 0, "the job to begin")
    call = house("down", "--jobs", "suspend", "--json")
    assert call.code == 0, call.err
    assert call.json == {"stopped": True, "jobs_stopped": 0, "jobs_suspended": 1}
    assert "`fairway down` suspends 1 running job; the next `fairway up` lets it go on" in _communicated(house)
    before = beat.stat().st_size
    time.sleep(2.0)
    assert beat.stat().st_size == before, "it stands still"
    assert "; 1 running job stands still, keeps its memory, and goes on" in house("down", "--jobs", "suspend").out
    house.start()
    until(lambda: beat.stat().st_size > before + 5, "the job to go on")
    shown = house.wait_for(job, "RUNNING")
    assert shown["attempts"] == 1
    assert shown["ran_s"] < time.time() - shown["started_s"] - 1.5, "the time in between is not run time"
    assert house("cancel", job).code == 0


def test_stopping_says_it_of_a_single_job_too(house: CliHouse) -> None:
    house.start("--gpus", "1")
    house.wait_for(house.submit("--grace", "1", "--", "sleep", "60"), "RUNNING")
    told = house("down", "--jobs", "stop").out
    assert "; 1 running job was stopped and waits for the next one. It had saved nothing and will start" in told


def test_stopping_says_who_begins_again(house: CliHouse) -> None:
    house.start("--gpus", "2")
    jobs = [house.submit("--grace", "1", "--", "sleep", "60") for _ in range(2)]
    for job in jobs:
        house.wait_for(job, "RUNNING")
    call = house("down", "--jobs", "stop")
    assert call.code == 0, call.err
    told = call.out
    assert "2 running jobs were stopped" in told
    assert "2 of them had saved nothing and will start from the beginning" in told
    assert house("down", "--jobs", "nonsense").code == 2


@pytest.mark.parametrize("how", ["leave", "stop", "suspend"])
def test_nothing_is_said_of_running_jobs_where_there_are_none(house: CliHouse, how: str) -> None:
    house.start("--gpus", "1")
    job = house.submit("--hold", "--", "true")
    told = house("down", "--jobs", how)
    assert told.out == "the scheduler has stopped" + ("\n" if how == "leave" else "; no job was running\n")
    assert "scheduling has stopped; 1 job waits for the next `fairway up`\n" in _communicated(house)
    assert " · 1 job taken over" in house.start()
    assert house("cancel", job).code == 0
    assert house.daemon is not None
    house.daemon.send_signal(signal.SIGTERM)
    assert "scheduling has stopped; no job was left\n" in _communicated(house)


def test_a_word_about_jobs_is_for_the_scheduler_that_it_was_left_to(house: CliHouse) -> None:
    """Whoever wanted to stop it has died before they could."""
    house.start("--gpus", "1")
    told = running_daemon(house.state)
    assert told is not None
    announce(house.state, told, "stop")
    house.kill()
    house.start()
    job = house.submit("--", "sleep", "60")
    house.wait_for(job, "RUNNING")
    assert house.daemon is not None
    house.daemon.send_signal(signal.SIGTERM)
    assert "1 running job goes on by itself" in _communicated(house)


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


def test_a_truncated_journal_is_salvaged_and_gone_on_with(house: CliHouse) -> None:
    house.start("--gpus", "1", "--policy", "fifo")
    runs = house.submit("--", "bash", "-c", "while [ ! -e go ]; do sleep 0.1; done; echo done")
    house.submit("--hold", "--array", "0-199", "--", "true", "x" * 500)
    house.wait_for(runs, "RUNNING")
    assert house("down").code == 0
    _communicated(house)
    journal, fresh = house.state / "journal.db", house.folder / "new.db"
    whole = journal.read_bytes()
    journal.write_bytes(whole[: int(0.6 * len(whole))])
    assert house("up").code == 2
    call = house("salvage", str(journal), str(fresh))
    assert call.code == 0, call.err
    saved = int(call.out.split()[0])
    assert 20 < saved < 201
    assert f"{fresh} to {journal}" in call.out
    for one in house.state.glob("journal.db*"):
        one.unlink()
    fresh.rename(journal)
    house.start("--gpus", "1")
    assert len(house("ls", "-a", "--json").json) == saved
    (house.folder / "go").touch()
    assert house.wait_for(runs, "COMPLETED")["attempts"] == 1
    assert house("logs", runs).out == "done\n"
    assert house.submit("--hold", "--", "true") == "3", "no number is given twice"
