"""Answers for programs, and what a job that waits or is stopped is said to wait for or to lose."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from live_cli import WAIT_S, LiveCli, live_cli_in, until

SAVES = (
    "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); "
    "print('attempt', os.environ['FAIRWAY_RESTART_COUNT']); time.sleep(99 * (not os.path.exists('go_on')))"
)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCli]:
    yield from live_cli_in(tmp_path_factory.mktemp("json"), "--gpus", "2", "--policy", "fifo", "--min-run", "5")


@pytest.fixture(autouse=True)
def nothing_left(cli: LiveCli) -> Iterator[None]:
    """A test that fails is not to keep the GPUs from those after it."""
    yield
    for row in cli("ls", "--json").json:
        cli("cancel", row["id"])


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def line_of(job: str, attempt: int, rank: int, line: str) -> dict[str, Any]:
    return {"job": job, "attempt": attempt, "rank": rank, "line": line}


def test_run_tells_the_job_when_it_has_ended(cli: LiveCli) -> None:
    call = cli("run", "--json", "--name", "told", "--", "bash", "-c", "echo '{out'; echo err >&2; exit 3")
    assert call.code == 3
    told = call.json
    assert (told["name"], told["state"], told["exit_code"]) == ("told", "FAILED", 3)
    assert told == cli.show(told["id"])
    assert call.err.splitlines()[1:3] == ["{out", "err"]
    assert cli("run", "--json", "--", "true").json["state"] == "COMPLETED"


def test_run_tells_of_a_job_that_was_cancelled(cli: LiveCli) -> None:
    process = cli.popen("run", "--json", "--grace", "5", "--", "bash", "-c", "echo here; sleep 60")
    assert process.stderr is not None
    until(lambda: process.stderr is not None and process.stderr.readline() == "here\n", "the job to be there")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, json.loads(out)["state"]) == (130, "CANCELLED")


def test_run_for_a_program_ends_with_it(cli: LiveCli) -> None:
    process = cli.popen("run", "--json", "--grace", "1", "--name", "left", "--", "bash", "-c", "sleep 60")
    assert process.stdout is not None
    assert process.stderr is not None
    assert "this is job" in process.stderr.readline()
    process.stdout.close()
    try:
        assert process.wait(timeout=WAIT_S) == 141
    finally:
        process.kill()
        process.stderr.close()
    (row,) = [row for row in cli("ls", "--all", "--json").json if row["name"] == "left"]
    assert row["state"] == "CANCELLED"


def test_lines_say_of_which_attempt_and_rank_they_are(cli: LiveCli) -> None:
    script = (
        "echo $RANK-$FAIRWAY_RESTART_COUNT; printf 'ü \"\\377\\n\\nno end'; (( FAIRWAY_RESTART_COUNT )) || sleep 99"
    )
    words = ("--gpus", "2", "--per-gpu", "--grace", "1", "--", "bash", "-c", script)
    job = cli.submit(*words)
    until(lambda: cli("logs", job, "--json").out.count("no end") == 2, "both ranks to have written")
    assert cli("requeue", job).code == 0
    cli.wait_for(job, "COMPLETED")
    rest = ('ü "�', "", "no end")
    expected = [line_of(job, a, r, text) for r in (0, 1) for a in (1, 2) for text in (f"{r}-{a - 1}", *rest)]
    for words in ((), ("-f",)):
        told = lines(cli("logs", job, "--json", *words).out)
        assert sorted(told, key=lambda one: one["rank"]) == expected
    assert lines(cli("logs", job, "--json", "--rank", "1").out) == expected[8:]
    assert lines(cli("logs", job, "--json", "--rank", "1", "--attempt", "2").out) == expected[12:]
    assert lines(cli("logs", job, "--json", "--rank", "1", "--attempt", "1", "-f").out) == expected[8:12]
    for tail in (0, 1, 4, 6, 99):
        for words in ((), ("-f",)):
            told = lines(cli("logs", job, "--json", "--rank", "0", "--tail", str(tail), *words).out)
            assert told == expected[:8][-tail or 8 :], (tail, words)


def test_lines_are_followed_over_restarts_of_job_and_scheduler(tmp_path: Path) -> None:
    cli = LiveCli(tmp_path)
    try:
        cli.start("--gpus", "1", "--policy", "fifo")
        job = cli.submit("--preempt", "checkpoint", "--grace", "5", "--", sys.executable, "-uc", SAVES)
        follower = cli.popen("logs", job, "-f", "--json")
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline()) == line_of(job, 1, 0, "attempt 0")
        cli.kill()
        cli.start()
        cli.wait_for(job, "RUNNING")
        (tmp_path / "go_on").touch()
        # The answer may come before the job has stopped, or after.
        told = cli("requeue", job).out.removeprefix(f"job {job} ").strip()
        assert told.startswith("PENDING") or told == "PREEMPTED: saved its state and stopped", "nothing is lost"
        out, err = follower.communicate(timeout=WAIT_S)
        assert lines(out) == [line_of(job, 2, 0, "attempt 1")]
        # It says that the job keeps running only if it finds no scheduler for a moment.
        assert (follower.returncode, err.strip().count("\n")) == (0, 0)
    finally:
        cli.close()


def test_a_log_that_is_not_there_is_no_json(cli: LiveCli) -> None:
    job = cli.submit("--hold", "--", "true")
    call = cli("logs", job, "--json")
    assert (call.code, call.out) == (0, "")
    assert "has not been started" in call.err
    for words in (("--rank", "1"), ("--attempt", "2"), ("--rank", "1", "-f"), ("--attempt", "2", "-f")):
        call = cli("logs", job, "--json", *words)
        assert (call.code, call.out, call.err.count("\n")) == (2, "", 1)
    array = cli.submit("--hold", "--array", "0-1", "--", "true")
    for words in ((), ("-f",)):
        call = cli("logs", array, "--json", *words)
        assert (call.code, call.err.count("is an array")) == (2, 1)
    assert cli("logs", "9999999", "--json").code == 4
    assert cli("cancel", job, array).code == 0


def test_up_says_in_one_line_when_it_is_ready(tmp_path: Path) -> None:
    cli = LiveCli(tmp_path)
    daemon = cli.popen("up", "--gpus", "3", "--policy", "las", "--listen", "127.0.0.1:0", "--json")
    try:
        assert daemon.stdout is not None
        told = json.loads(daemon.stdout.readline())
        assert (told["pid"], told["gpus"], told["virtual"], told["policy"]) == (daemon.pid, 3, True, "las")
        assert (told["socket"], told["jobs"]) == (str(cli.state / "fairway.sock"), 0)
        assert told["listen"] == json.loads((cli.state / "daemon.json").read_text())["listen"]
        assert cli("status").code == 0
        daemon.send_signal(signal.SIGINT)
        out, err = daemon.communicate(timeout=WAIT_S)
        assert (daemon.returncode, out) == (0, "")
        assert "scheduling has stopped" in err
    finally:
        daemon.kill()
        daemon.communicate()
    assert cli("up", "--service", "--json").code == 2


def test_a_preempted_job_is_listed_with_what_it_waits_for(cli: LiveCli) -> None:
    saves = cli.submit(*("--gpus", "2", "--preempt", "checkpoint", "--grace", "9", "--", sys.executable, "-uc", SAVES))
    until(lambda: "attempt" in cli("logs", saves).out, "the job to be ready for its signal")
    first = cli.submit("--gpus", "2", "--priority", "5", "--grace", "1", "--", "sleep", "100")
    cli.wait_for(first, "RUNNING")
    assert cli.wait_for(saves, "PREEMPTED")["history"][-1]["codes"] == [75]
    until(lambda: "higher priority" in cli.show(saves)["reason"], "the reason of the decision")
    why = cli("why", saves, "--json").json["reason"]
    assert cli.show(saves)["reason"] == why
    (line,) = [line for line in cli("ls").out.splitlines() if line.startswith(f"{saves} ")]
    assert line.rstrip().endswith(why)
    assert cli("cancel", saves, first).code == 0


def test_requeueing_says_who_begins_again(cli: LiveCli) -> None:
    job = cli.submit("--grace", "1", "--", "sleep", "100")
    cli.wait_for(job, "RUNNING")
    # By now it may have been stopped already.
    assert cli("requeue", job).out.endswith("; it has saved nothing and starts from the beginning\n")
    until(lambda: cli.show(job)["attempts"] == 2 and cli.show(job)["state"] == "RUNNING", "the second attempt")
    assert [row["from_the_beginning"] for row in cli("requeue", job, "--json").json] == [True]
    assert cli("cancel", job).code == 0


def test_a_deadline_is_the_same_for_submit_and_update(cli: LiveCli) -> None:
    due = (datetime.now() + timedelta(hours=5)).replace(second=0, microsecond=0)
    jobs = [cli.submit("--hold", "--deadline", f"{due:%H:%M}", "--", "true"), cli.submit("--hold", "--", "true")]
    assert cli("update", jobs[1], "--deadline", f"{due:%H:%M}").code == 0
    told = [cli.show(job) for job in jobs]
    dates = [one["submitted_s"] + one["request"]["deadline_s"] for one in told]
    # A submission is dated a moment after its deadline was worked out; for an update that date is known.
    assert dates[0] == pytest.approx(due.timestamp(), abs=60)
    assert dates[1] == pytest.approx(due.timestamp(), abs=0.1)
    assert cli("cancel", *jobs).code == 0


def test_where_nothing_waits_or_runs_nothing_is_forecast(tmp_path: Path) -> None:
    cli = LiveCli(tmp_path)
    try:
        cli.start("--gpus", "1", "--policy", "fifo")
        assert cli("what-if").out == "no jobs wait or run\n"
        job = cli.submit("--", "true")
        cli.wait_for(job, "COMPLETED")
        assert cli("what-if", job).out == f"job {job} has ended: COMPLETED\n"
        assert cli("what-if", "nonsense").out.startswith("a new job: `nonsense`\n")
        assert cli("what-if", "77_3").code == 4
    finally:
        cli.close()


def test_a_follower_ends_with_ctrl_c(cli: LiveCli) -> None:
    job = cli.submit("--grace", "1", "--", "bash", "-c", "echo begun; sleep 99")
    follower = cli.popen("logs", job, "-f", "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["line"] == "begun"
    follower.send_signal(signal.SIGINT)
    try:
        out, err = follower.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        follower.kill()
        raise
    assert (follower.returncode, out, err) == (0, "", "")
    assert cli.show(job)["state"] == "RUNNING"
    assert cli("cancel", job).code == 0
