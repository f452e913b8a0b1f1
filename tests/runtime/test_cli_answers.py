"""What verbs answer: about what they did, to whoever reads it, or to nobody."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_cli import WAIT_S, LiveCli, live_cli_in, until

TALKS = "echo begun; while sleep 0.1; do echo more; done"
SILENT = "echo begun; sleep 100"
WAITS_FOR_TERM = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print(1); time.sleep(99)"
)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCli]:
    yield from live_cli_in(tmp_path_factory.mktemp("cli"), "--gpus", "2", "--policy", "fifo")


def named(cli: LiveCli, name: str) -> str:
    """The state of the job of this name."""
    (row,) = [row for row in cli("ls", "--all", "--json").json if row["name"] == name]
    return str(row["state"])


def left(process: subprocess.Popen[str]) -> tuple[int | None, str]:
    """Read the first line and go; the code with which it ends by itself, if it does, and its remarks."""
    assert process.stdout is not None
    assert process.stderr is not None
    assert "begun" in process.stdout.readline()
    process.stdout.close()
    try:
        process.wait(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait(), process.stderr.read()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("text", [TALKS, SILENT])
def test_run_ends_with_whoever_reads_it_and_cancels_its_job(cli: LiveCli, text: str, ranks: int) -> None:
    name = f"unread-{ranks}-{text == SILENT}"
    words = ("--grace", "1", "--gpus", str(ranks), "--per-gpu", "--name", name, "--", "bash", "-c", text)
    with cli.popen("run", *words) as process:
        code, err = left(process)
    cli("cancel", re.sub(r"[^0-9]", "", err.partition("\n")[0]))
    assert code == 141
    assert re.fullmatch(r"fairway: note: this is job [0-9]+\n", err)
    assert named(cli, name) == "CANCELLED"


def test_following_ends_with_whoever_reads_it_and_the_job_goes_on(cli: LiveCli) -> None:
    job = cli.submit("--grace", "1", "--", "bash", "-c", TALKS)
    with cli.popen("logs", job, "-f") as process:
        told = left(process)
    state = cli.show(job)["state"]
    assert cli("cancel", job).code == 0
    assert (told, state) == ((141, ""), "RUNNING")


def test_output_that_cannot_be_written_is_an_error(cli: LiveCli) -> None:
    with Path("/dev/full").open("w") as full:
        process = cli.popen("run", "--grace", "1", "--name", "full", "--", "bash", "-c", SILENT, out=full)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert err.splitlines()[1:] == ["fairway: error: standard output: No space left on device"]
    assert named(cli, "full") == "CANCELLED"


def test_one_that_is_refused_leaves_json_to_be_json(cli: LiveCli) -> None:
    jobs = [cli.submit("--hold", "--", "true") for _ in range(2)]
    changed = cli("update", jobs[0], "999999", "--priority", "3", "--json")
    assert ([row["priority"] for row in changed.json], changed.code) == ([3], 4)
    call = cli("cancel", jobs[0], "999999", jobs[1], "--json")
    assert [row["id"] for row in call.json] == jobs
    assert (call.code, call.err) == (4, "fairway: error: there is no job '999999'\n")
    assert cli("hold", jobs[0], "--json").json == []


def test_what_is_let_go_is_said_to_go_on_and_why_it_does_not_yet(cli: LiveCli) -> None:
    job = cli.submit("--gpus", "2", "--grace", "1", "--", "sleep", "100")
    saves = cli.submit(
        *("--gpus", "2", "--grace", "9", "--preempt", "checkpoint", "--hold"),
        "--",
        sys.executable,
        "-uc",
        WAITS_FOR_TERM,
    )
    cli.wait_for(job, "RUNNING")
    assert cli("suspend", job).code == 0
    assert cli("release", saves).out.startswith(f"job {saves} starts when it is its turn")
    until(lambda: "1" in cli("logs", saves).out, "the job to be ready for its signal")
    told = cli("resume", job).out
    assert told.startswith(f"job {job} goes on when it is its turn")
    assert "suspended" not in told
    until(lambda: cli.show(job)["reason"] == "needs 2 GPUs, 0 free", "the reason of the policy")

    assert cli("suspend", saves).code == 0
    until(lambda: cli.show(saves)["history"][-1]["codes"] == [75], "the job to have saved its state")
    assert cli.show(saves)["reason"] == "suspended by its owner; `fairway resume` lets it go on"
    assert cli("hold", saves).out.startswith(f"job {saves} held; SUSPENDED: suspended by its owner")
    told = cli("resume", saves).out
    assert told.startswith(f"job {saves} goes on when it is its turn")
    assert "stopped" not in told
    assert "suspended" not in told
    assert cli("cancel", job, saves).code == 0


def test_what_had_ended_is_said_to_have(cli: LiveCli) -> None:
    array = cli.submit("--hold", "--array", "0-1", "--", "true")
    assert cli("cancel", f"{array}_1").out == f"job {array}_1 CANCELLED\n"
    assert cli("cancel", f"{array}_1").out == f"job {array}_1 had ended already: CANCELLED\n"
    told = f"job {array}_0 updated\njob {array}_1 had ended already: CANCELLED\n"
    assert cli("update", array, "--priority", "-5").out == told
    assert cli("cancel", array).out == f"job {array}_0 CANCELLED\njob {array}_1 had ended already: CANCELLED\n"


def test_a_key_that_was_used_is_said_to_have_been(cli: LiveCli) -> None:
    job = cli.submit("--key", "k", "--", "true")
    cli.wait_for(job, "COMPLETED")
    told = f"job {job} was submitted before under this key: COMPLETED\n"
    assert cli("submit", "--key", "k", "--", "true").out == told
    assert cli("submit", "--key", "k", "--parsable", "--", "true").out == f"{job}\n"
    array = cli.submit("--hold", "--key", "a", "--array", "0-2", "--", "true")
    again = cli("submit", "--hold", "--key", "a", "--array", "0-2", "--", "true")
    assert again.out == f"job {array} was submitted before under this key, 3 tasks: 3 PENDING\n"
    call = cli("run", "--key", "k", "--", "true")
    assert (call.code, "submitted before" in call.err) == (0, True)
    assert cli("cancel", array).code == 0


def test_options_may_stand_after_a_task_file(cli: LiveCli) -> None:
    (cli.folder / "options.yaml").write_text("envs: {A: 1, B: null}\nrun: echo $A $B $FAIRWAY_JOB_NAME\n")
    call = cli("run", "--env", "A=2", "options.yaml", "--env", "B=3", "--name", "behind")
    assert (call.code, call.out) == (0, "2 3 behind\n")
    assert cli("submit", "options.yaml", "--env", "B=3", "more").code == 2
    assert "no such option" in cli("submit", "options.yaml", "--emv", "B=3").err


def test_weights_are_shown(cli: LiveCli) -> None:
    job = cli.submit("--hold", "--weight", "2.5", "--", "true")
    assert re.search(r"^weight +2.5$", cli("show", job).out, re.MULTILINE)
    assert cli("cancel", job).code == 0


def test_q_leaves_top(cli: LiveCli) -> None:
    terminal, there = pty.openpty()
    environment = {**cli.env, "TERM": "xterm", "LINES": "24", "COLUMNS": "80"}
    argv = [sys.executable, "-m", "fairway", "top", "--every", "30"]
    process = subprocess.Popen(argv, stdin=there, stdout=there, stderr=there, env=environment, start_new_session=True)
    os.close(there)
    try:
        seen = b""
        while b"GPUs held" not in seen:
            seen += os.read(terminal, 65536)
        os.write(terminal, b"xq")
        assert process.wait(timeout=WAIT_S) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(terminal)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("submit", "--name", "x" * 300, "--", "true"), "is longer than 200 characters"),
        (("update", "JOB", "--name", "a/b"), "--name: has characters that it may not have: 'a/b'"),
        (("update", "JOB", "--weight", "0"), "--weight: must be more than 0, not 0.0"),
        (("submit", "-"), "standard input: the script is empty"),
        (("submit", "folder"), "folder: this is a directory"),
    ],
)
def test_refusals_name_what_is_wrong(cli: LiveCli, words: tuple[str, ...], told: str) -> None:
    (cli.folder / "folder").mkdir(exist_ok=True)
    job = cli.submit("--hold", "--", "true")
    before = len(cli("ls", "--all", "--json").json)
    call = cli(*(job if word == "JOB" else word for word in words))
    assert (call.code, call.out, call.err.count("\n")) == (2, "", 1)
    assert told in call.err
    assert len(cli("ls", "--all", "--json").json) == before
    assert cli("cancel", job).code == 0


def test_nothing_is_estimated_beyond_the_horizon(cli: LiveCli) -> None:
    job = cli.submit("--expect", "1h", "--", "sleep", "100")
    cli.wait_for(job, "RUNNING")
    told = json.loads(cli("what-if", "--horizon", "5", "--json").out)
    assert told["cut"] == "nothing was looked at beyond 5 s"
    assert [row["finish_in_s"] for row in told["jobs"]] == [None]
    assert told["until_s"] - told["now_s"] == pytest.approx(5.0)
    assert cli("cancel", job).code == 0
