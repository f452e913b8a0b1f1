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
from live_cli import LiveCli, live_cli_in, until

from fairway.runtime.daemon.daemon import announce, running_daemon


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LiveCli]:
    yield from live_cli_in(tmp_path)


def _communicated(cli: LiveCli) -> str:
    assert cli.daemon is not None
    return cli.daemon.communicate(timeout=60)[0]


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_jobs_running_and_says_so(cli: LiveCli, signo: signal.Signals) -> None:
    cli.start("--gpus", "1")
    job = cli.submit("--", "bash", "-c", "echo begun; while [ ! -e go ]; do sleep 0.1; done; echo done")
    cli.wait_for(job, "RUNNING")
    assert cli.daemon is not None
    cli.daemon.send_signal(signo)
    assert "scheduling has stopped; 1 running job goes on by itself; the next `fairway up`" in _communicated(cli)
    assert cli.daemon.returncode == 0
    (cli.folder / "go").touch()
    cli.start()
    told = cli.wait_for(job, "COMPLETED")
    assert told["attempts"] == 1
    assert cli("logs", job).out == "begun\ndone\n"


def test_down_stops_it_and_everything_then_says_that_it_is_not_up(cli: LiveCli) -> None:
    cli.start("--gpus", "1")
    assert cli("down").out == "the scheduler has stopped\n"
    _communicated(cli)
    for words in (("status",), ("ls",), ("submit", "--", "true"), ("top", "--once"), ("down",), ("logs", "1", "-f")):
        call = cli(*words)
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


def test_down_can_stop_jobs_which_go_on_with_the_next(cli: LiveCli) -> None:
    cli.start("--gpus", "2")
    job = cli.submit("--preempt", "checkpoint", "--grace", "20", "--", "bash", "-c", SAVES)
    frozen = cli.submit("--grace", "1", "--", "sleep", "60")
    cli.wait_for(frozen, "RUNNING")
    until(lambda: "ready" in cli("logs", job).out, "the job to be ready")
    told = cli("down", "--jobs", "stop", "--json").json
    assert told == {"stopped": True, "jobs_stopped": 2, "jobs_from_the_beginning": 1}
    assert "`fairway down` stops 2 running jobs; the next `fairway up` starts them again" in _communicated(cli)
    assert (cli.state / "jobs" / job / "attempt-1" / "exit.json").exists()
    cli.start()
    cli.wait_for(job, "COMPLETED")
    assert cli("logs", job).out == "ready\nsaved\nagain\n"
    cli.wait_for(frozen, "RUNNING")
    assert cli("cancel", frozen).code == 0


def test_following_survives_a_scheduler_that_is_killed(cli: LiveCli) -> None:
    cli.start("--gpus", "2")
    script = "for i in 1 2 3 4 5 6; do echo $RANK:$i; sleep 0.5; done"
    job = cli.submit("--gpus", "2", "--per-gpu", "--", "bash", "-c", script)
    seen = cli.folder / "seen"
    with seen.open("w") as out:
        follower = cli.popen("logs", job, "-f", out=out)
    until(lambda: "0:1" in seen.read_text() and "1:1" in seen.read_text(), "the first lines")
    cli.kill()
    cli.start()
    _, err = follower.communicate(timeout=60)
    assert follower.returncode == 0, err
    expected = [f"[{rank}] {rank}:{at}" for rank in (0, 1) for at in range(1, 7)]
    assert sorted(seen.read_text().splitlines()) == expected, err


def test_a_second_scheduler_is_refused(cli: LiveCli) -> None:
    cli.start("--gpus", "1")
    call = cli("up", "--gpus", "1")
    assert call.code == 5
    assert "already running" in call.err
    assert cli("status").code == 0


def test_dependencies_and_arrays_are_remembered_by_the_next_scheduler(cli: LiveCli) -> None:
    cli.start("--gpus", "4", "--policy", "fifo")
    wait = "while [ ! -e go ]; do sleep 0.1; done"
    array = cli.submit("--array", "0-3%2", "--", "bash", "-c", wait)
    after = cli.submit("--depends", f"afterok:{array}", "--", "true")
    until(lambda: [row["state"] for row in cli.show(array)["tasks"]].count("RUNNING") == 2, "two tasks")
    cli.kill()
    cli.start()
    states = [row["state"] for row in cli.show(array)["tasks"]]
    assert states.count("RUNNING") == 2
    assert cli.show(after)["state"] == "PENDING"
    (cli.folder / "go").touch()
    cli.wait_for(after, "COMPLETED")
    assert {(row["state"], row["attempts"]) for row in cli.show(array)["tasks"]} == {("COMPLETED", 1)}


def test_the_configuration_is_read_again_when_asked(cli: LiveCli) -> None:
    config = cli.folder / "cli.toml"
    config.write_text("[queues.default]\nmax_gpus_per_job = 1\n")
    cli.start("--gpus", "2", "--config", str(config))
    assert cli("submit", "--gpus", "2", "--", "true").code == 2
    config.write_text("[queues.default]\nmax_gpus_per_job = 2\n")
    assert cli("reload").out == f"{config} was read\n"
    assert cli("reload", "--json").json == {"file": str(config)}
    job = cli.submit("--gpus", "2", "--", "true")
    cli.wait_for(job, "COMPLETED")
    config.write_text("[queues.default]\nmax_gpus_per_job = 'many'\n")
    call = cli("reload")
    assert call.code == 2
    assert "max_gpus_per_job" in call.err
    cli.submit("--gpus", "2", "--hold", "--", "true")
    told = cli("status", "--json").json
    assert (told["policy_problem"], told["configuration"]) == ("", str(config))
    assert f"{config}: queues.default.max_gpus_per_job" in told["configuration_problem"]
    shown = {line.split("  ")[0].strip(): line for line in cli("status").out.splitlines()}
    assert "max_gpus_per_job" not in shown["policy"]
    assert "max_gpus_per_job" in shown["configuration"]
    config.write_text("")
    assert cli("reload").code == 0
    assert cli("status", "--json").json["configuration_problem"] == ""


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
        ("--web", "0.0.0.0:1"),
        ("--config", "missing.toml"),
    ],
)
def test_bad_settings_are_one_line(cli: LiveCli, words: tuple[str, ...]) -> None:
    call = cli("up", *words)
    assert (call.code, call.out) == (2, "")
    assert call.err.startswith("fairway: error: ")
    assert call.err.count("\n") == 1
    assert not cli.state.exists(), "nothing is left behind"


def test_an_address_in_use_is_one_line_and_leaves_nothing_behind(cli: LiveCli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        call = cli("up", "--listen", f"127.0.0.1:{other.getsockname()[1]}")
    assert call.code == 2
    assert "Address already in use" in call.err
    assert not cli.state.exists()


def test_a_directory_that_was_there_is_kept_when_something_is_refused(cli: LiveCli) -> None:
    cli.state.mkdir()
    (cli.state / "mine").touch()
    assert cli("up", "--gpus", "many").code == 2
    assert (cli.state / "mine").exists()


def test_a_free_port_is_told_and_strangers_hear_where_the_token_is(cli: LiveCli) -> None:
    first = cli.start("--gpus", "1", "--listen", "127.0.0.1:0")
    found = re.search(r"and (http://127\.0\.0\.1:(\d+)) \(its token is in (\S+)\)", first)
    assert found, first
    assert int(found[2]) > 0
    assert found[3] == str(cli.state / "token")
    assert cli("status", "--url", found[1]).code == 0
    for head, why in (({}, "needs a token"), ({"Authorization": "Bearer guess"}, "knows no such token")):
        for path in ("/v1/status", "/metrics"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(urllib.request.Request(found[1] + path, headers=head))
            told = json.loads(caught.value.read())["error"]
            assert caught.value.code == 401
            assert why in told
            assert "the file `token` of the state directory" in told


def _cluster(cli: LiveCli) -> int:
    return int(cli("status", "--json").json["gpus"])


def test_the_number_of_gpus_is_remembered_and_changes_are_told(cli: LiveCli) -> None:
    cli.start("--gpus", "3", "--policy", "fifo")
    job = cli.submit("--gpus", "2", "--hold", "--", "true")
    assert cli("down").code == 0
    assert "GPUs are others" not in cli.daemon.communicate()[1]  # type: ignore[union-attr]
    cli.start()
    assert _cluster(cli) == 3
    assert cli("down").code == 0
    assert "--gpus 3, as last time" in cli.daemon.communicate()[1]  # type: ignore[union-attr]
    cli.start("--gpus", "2")
    assert _cluster(cli) == 2
    assert cli.show(job)["state"] == "PENDING"
    assert cli("down").code == 0
    told = cli.daemon.communicate()[1]  # type: ignore[union-attr]
    assert "the GPUs are others than last time: 2 × cpu, before 3 × cpu; 1 job that has not ended is queued" in told
    cli.start()
    assert _cluster(cli) == 2
    cli.kill()
    cli.start("--gpus", "auto")
    assert cli("down").code == 0
    assert "as last time" not in cli.daemon.communicate()[1]  # type: ignore[union-attr]


def test_without_a_configuration_reload_does_not_say_that_it_was_read(cli: LiveCli) -> None:
    cli.start("--gpus", "1")
    call = cli("reload")
    assert (call.code, call.out) == (0, "there is no configuration; the defaults are in force\n")
    assert cli("reload", "--json").json == {"file": None}
    (cli.state / "fairway.toml").write_text("operators = ['anna']\n")
    assert cli("reload").out == f"{cli.state / 'fairway.toml'} was read\n"


def test_what_cannot_be_submitted_cannot_be_had_by_update_either(cli: LiveCli) -> None:
    cli.state.mkdir()
    terms = "[users.'*']\nmax_priority = 5\nmax_limit_s = '1h'\nweight = 2\npriority = 100\n"
    (cli.state / "fairway.toml").write_text(terms)
    cli.start("--gpus", "1")
    job = cli.submit("--hold", "--priority", "5", "--", "true")
    array = cli.submit("--hold", "--array", "0-2", "--", "true")
    for one in (job, array):
        for words in (("--priority", "6"), ("--time", "2h")):
            call = cli("update", one, *words)
            assert call.code == 2
            assert "the most for user" in call.err
    assert (cli.show(job)["priority"], cli.show(job)["request"]["limit_s"]) == (105, 3600.0)
    assert cli("update", job, "--priority", "1", "--weight", "3", "--time", "none").code == 0
    told = cli.show(job)["request"]
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
def test_down_can_suspend_jobs_which_go_on_where_they_were(cli: LiveCli, preempt: str) -> None:
    cli.start("--gpus", "2")
    job = cli.submit("--preempt", preempt, "--grace", "1", "--", "bash", "-c", COUNTS)
    beat = cli.folder / "beat"
    until(lambda: beat.exists() and beat.stat().st_size > 0, "the job to begin")
    call = cli("down", "--jobs", "suspend", "--json")
    assert call.code == 0, call.err
    assert call.json == {"stopped": True, "jobs_stopped": 0, "jobs_suspended": 1}
    assert "`fairway down` suspends 1 running job; the next `fairway up` lets it go on" in _communicated(cli)
    before = beat.stat().st_size
    time.sleep(2.0)
    assert beat.stat().st_size == before, "it stands still"
    assert "; 1 running job stands still, keeps its memory, and goes on" in cli("down", "--jobs", "suspend").out
    cli.start()
    until(lambda: beat.stat().st_size > before + 5, "the job to go on")
    shown = cli.wait_for(job, "RUNNING")
    assert shown["attempts"] == 1
    assert shown["ran_s"] < time.time() - shown["started_s"] - 1.5, "the time in between is not run time"
    assert cli("cancel", job).code == 0


def test_stopping_says_it_of_a_single_job_too(cli: LiveCli) -> None:
    cli.start("--gpus", "1")
    cli.wait_for(cli.submit("--grace", "1", "--", "sleep", "60"), "RUNNING")
    told = cli("down", "--jobs", "stop").out
    assert "; 1 running job was stopped and waits for the next one. It had saved nothing and will start" in told


def test_stopping_says_who_begins_again(cli: LiveCli) -> None:
    cli.start("--gpus", "2")
    jobs = [cli.submit("--grace", "1", "--", "sleep", "60") for _ in range(2)]
    for job in jobs:
        cli.wait_for(job, "RUNNING")
    call = cli("down", "--jobs", "stop")
    assert call.code == 0, call.err
    told = call.out
    assert "2 running jobs were stopped" in told
    assert "2 of them had saved nothing and will start from the beginning" in told
    assert cli("down", "--jobs", "nonsense").code == 2


@pytest.mark.parametrize("how", ["leave", "stop", "suspend"])
def test_nothing_is_said_of_running_jobs_where_there_are_none(cli: LiveCli, how: str) -> None:
    cli.start("--gpus", "1")
    job = cli.submit("--hold", "--", "true")
    told = cli("down", "--jobs", how)
    assert told.out == "the scheduler has stopped" + ("\n" if how == "leave" else "; no job was running\n")
    assert "scheduling has stopped; 1 job waits for the next `fairway up`\n" in _communicated(cli)
    assert " · 1 job taken over" in cli.start()
    assert cli("cancel", job).code == 0
    assert cli.daemon is not None
    cli.daemon.send_signal(signal.SIGTERM)
    assert "scheduling has stopped; no job was left\n" in _communicated(cli)


def test_a_word_about_jobs_is_for_the_scheduler_that_it_was_left_to(cli: LiveCli) -> None:
    """Whoever wanted to stop it has died before they could."""
    cli.start("--gpus", "1")
    told = running_daemon(cli.state)
    assert told is not None
    announce(cli.state, told, "stop")
    cli.kill()
    cli.start()
    job = cli.submit("--", "sleep", "60")
    cli.wait_for(job, "RUNNING")
    assert cli.daemon is not None
    cli.daemon.send_signal(signal.SIGTERM)
    assert "1 running job goes on by itself" in _communicated(cli)


def test_a_state_directory_that_cannot_be(cli: LiveCli) -> None:
    (cli.folder / "file").touch()
    call = cli("up", "--state", "file/below")
    assert call.code == 2
    assert call.err.count("\n") == 1


def test_a_damaged_journal_is_refused_and_can_be_salvaged(cli: LiveCli) -> None:
    cli.start("--gpus", "1")
    job = cli.submit("--hold", "--", "true")
    assert cli("down").code == 0
    _communicated(cli)
    journal = cli.state / "journal.db"
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) - 4096] + b"\0" * 100)
    call = cli("up")
    assert call.code == 2
    assert "salvage" in call.err
    told = cli("salvage", str(journal), str(cli.folder / "new.db"), "--json").json
    assert told["file"] == str(cli.folder / "new.db")
    assert cli("salvage", str(journal), str(cli.folder / "new.db")).code == 2
    assert job
    assert json.dumps(told)


def test_a_truncated_journal_is_salvaged_and_gone_on_with(cli: LiveCli) -> None:
    cli.start("--gpus", "1", "--policy", "fifo")
    runs = cli.submit("--", "bash", "-c", "while [ ! -e go ]; do sleep 0.1; done; echo done")
    cli.submit("--hold", "--array", "0-199", "--", "true", "x" * 500)
    cli.wait_for(runs, "RUNNING")
    assert cli("down").code == 0
    _communicated(cli)
    journal, fresh = cli.state / "journal.db", cli.folder / "new.db"
    whole = journal.read_bytes()
    journal.write_bytes(whole[: int(0.6 * len(whole))])
    assert cli("up").code == 2
    call = cli("salvage", str(journal), str(fresh))
    assert call.code == 0, call.err
    saved = int(call.out.split()[0])
    assert 20 < saved < 201
    assert f"{fresh} to {journal}" in call.out
    for one in cli.state.glob("journal.db*"):
        one.unlink()
    fresh.rename(journal)
    cli.start("--gpus", "1")
    assert len(cli("ls", "-a", "--json").json) == saved
    (cli.folder / "go").touch()
    assert cli.wait_for(runs, "COMPLETED")["attempts"] == 1
    assert cli("logs", runs).out == "done\n"
    assert cli.submit("--hold", "--", "true") == "3", "no number is given twice"


def test_a_scheduler_that_fails_says_why_and_does_not_exit_with_0(tmp_path: Path) -> None:
    for cli in live_cli_in(tmp_path, "--gpus", "1"):
        # It stands still meanwhile: a checkpoint of SQLite between two of the files would mend the first one.
        cli.daemon.send_signal(signal.SIGSTOP)
        for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
            path = cli.state / name
            if path.exists():
                path.write_bytes(b"not a journal " * 5000)
        cli.daemon.send_signal(signal.SIGCONT)
        assert cli("policy", "set", "las").code != 0
        out, err = cli.daemon.communicate(timeout=60)
        assert cli.daemon.returncode == 1
        assert "scheduling has failed" in err
        assert "job" not in out.removeprefix(out.split("\n")[0])
